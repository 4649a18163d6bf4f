"""Tests begin without captured graphs, which Dynamo keeps for ever: each trial run collects all garbage several times."""

import pytest


@pytest.fixture(autouse=True)
def _afresh(afresh: None) -> None:
    pass
