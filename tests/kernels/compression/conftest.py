"""What tests of coded partitions share."""

import pytest
import torch

from actfit.kernels.compression import forms


@pytest.fixture
def small_and_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code tensors of 64 elements, not of 4096 at least: models of tests are small. And the same random numbers."""
    monkeypatch.setattr(forms, "SMALLEST", 64)
    torch.manual_seed(0)
