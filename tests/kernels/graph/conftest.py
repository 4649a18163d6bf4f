"""Tests begin without captured graphs, and with the same random numbers."""

import pytest

from actfit.kernels.graph.partition import Partitioner


@pytest.fixture(autouse=True)
def _afresh(afresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partitioner, "smallest", 128)
