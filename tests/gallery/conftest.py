"""The page that the tests of the gallery look at, made once a process."""

from pathlib import Path

import pytest

from notebooks.gallery.__main__ import main


@pytest.fixture(scope="session")
def gallery(tmp_path_factory) -> Path:
    """The page of all packaged files."""
    folder = tmp_path_factory.mktemp("gallery")
    assert main(["--out", str(folder)]) == 0
    return folder / "index.html"


@pytest.fixture(scope="session")
def html(gallery) -> str:
    return gallery.read_text(encoding="utf-8")
