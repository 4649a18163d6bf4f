"""Codes for tests of what is known of tensors: exact ones, for small tensors too."""

import pytest
import torch

from kernels.eager import mode
from kernels.eager.provenance import Provenance
from tests.kernels.eager.nets import ExactCode


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors of 64 elements take part."""
    monkeypatch.setattr(Provenance, "smallest", 64)


@pytest.fixture
def exact_codes(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let codes give back what was coded: so gradients are stock's, unless a tensor is taken for another one."""
    for name in ("Groups", "Logarithms"):
        monkeypatch.setattr(mode, name, ExactCode)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
