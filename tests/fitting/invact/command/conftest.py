"""Fixtures: a cache of fits; engines that find nothing; few functions."""

from typing import Any

import pytest

from actfit.fitting.activations import Activation
from actfit.fitting.invact import __main__ as command
from actfit.fitting.invact import front, solve
from actfit.fitting.invact import sweep as sweeping
from actfit.fitting.invact.engines import ENGINES
from actfit.fitting.invact.solve import Fit
from tests.fitting.invact.command.words import CLOSED

FITS: dict[Any, Fit] = {}


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache the fits of this process: each takes seconds."""

    def fit(activation: Activation, dtype: str, **options: Any) -> Fit:
        options.pop("progress")
        asked = (activation.name, activation.expr, dtype, options["weight"].label, repr({**options, "weight": None}))
        if asked not in FITS:
            FITS[asked] = solve.fit(activation, dtype, **options)
        return FITS[asked]

    monkeypatch.setattr(command, "fit", fit)


@pytest.fixture
def hopeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that quickly find nothing."""
    monkeypatch.setattr(front, "ENGINES", {name: lambda *_: [] for name in ENGINES})


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only functions with closed forms in the sweep."""
    monkeypatch.setattr(sweeping, "names", lambda: CLOSED)
