"""Modules that `python -m` finds."""

import os

import pytest


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that `python -m` finds."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))

    def write(name, source):
        (folder / f"{name}.py").write_text(source, "utf-8")
        return name

    return write
