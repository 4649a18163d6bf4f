"""What tests of coded partitions share."""

import pytest
import torch

from tests.kernels.compression.graphs import code_from


@pytest.fixture
def small_and_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code tensors of 64 elements, not of 4096 at least: models of tests are small. And the same random numbers."""
    code_from(64, monkeypatch)
    torch.manual_seed(0)
