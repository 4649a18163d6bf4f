"""An empty folder for each test of python -m fitting.fewbit, and the command in this process."""

from pathlib import Path

import pytest

from fitting.fewbit import __main__ as command
from tests.fitting.fewbit.command.running import Command, Ended


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("fitting.options.DATA", tmp_path / "none")  # what ships is looked at by tests of its own
    return tmp_path


@pytest.fixture
def fewbit(capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process: (status, stdout, stderr)."""

    def call(*words: str) -> Ended:
        try:
            status = command.run(list(words))
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return call
