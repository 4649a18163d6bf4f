"""Planning takes seconds: a terminal shows what is being done, and nothing else does."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from actfit import compress, front, make_plan
from actfit.coefficients import progress
from tests.kernels.planning.nets import text

PLANNERS: dict[str, Callable[[Any, Any], Any]] = {
    "make_plan": lambda model, inputs: make_plan(model, inputs, 0.3, goal="error"),
    "compress": lambda model, inputs: compress(model, fit=0.3, inputs=inputs),
    "front": lambda model, inputs: front(model, inputs, count=2),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "terminal"), [("make_plan", True), ("compress", False), ("front", True)])
def test_progress_is_for_terminals(
    name: str, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "PERIOD", 0.01)
    PLANNERS[name](*text(1))
    out, err = capsys.readouterr()
    assert out == ""
    assert ("backward pass" in err) == terminal
    if not terminal:
        assert err == ""
    else:
        assert err.endswith("\r")  # the line is cleared


def test_progress_as_given(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    shown: list[str] = []
    make_plan(*text(1), 0.3, progress=shown.append, goal="error")
    assert shown[0] == "a step as it is"
    assert capsys.readouterr().err == ""
