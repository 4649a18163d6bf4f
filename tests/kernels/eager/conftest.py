"""Fixtures: exact codes, and codes for small tensors."""

import pytest
import torch

from kernels.eager import coder
from kernels.eager.provenance import Provenance
from tests.kernels.eager.nets import ExactCode


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors of 64 elements have codes."""
    monkeypatch.setattr(Provenance, "smallest", 64)


@pytest.fixture
def exact_codes(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace codes by copies: gradients are stock's, unless one tensor is mistaken for another."""
    for name in ("Groups", "Logarithms", "Phases", "Sided"):
        monkeypatch.setattr(coder, name, ExactCode)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
