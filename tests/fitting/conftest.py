"""Fixtures that run the commands of fitting in this process, each in an empty folder."""

from pathlib import Path
from types import ModuleType

import pytest

from actfit.fitting.fewbit import __main__ as of_fewbit
from actfit.fitting.invact import __main__ as of_invact
from tests.fitting.commands import Command, Ended


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("actfit.fitting.options.DATA", tmp_path / "none")  # shipped files have their own tests
    return tmp_path


def in_this_process(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command: from words to (status, stdout, stderr)."""

    def call(*words: str) -> Ended:
        try:
            status = command.run(list(words))
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def fewbit(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return in_this_process(of_fewbit, capsys)


@pytest.fixture
def invact(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return in_this_process(of_invact, capsys)
