"""Codes by two lookups against a binary search, at every border and beside it, and which tables are refused."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from actfit.kernels.engine.cells import MOST_CELLS, Cells, cut
from actfit.kernels.engine.traced import traceable
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.methods.few_bit import FewBit
from actfit.kernels.methods.method import KernelSpec, register_kernel
from actfit.kernels.methods.table import Table, read_table

FAR = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -1e-45, 3e38, -3e38]
TABLED = [name for name, info in FUNCTIONS.items() if info.tables]


def searched(x: Tensor, borders: Sequence[float], codes: Sequence[int]) -> Tensor:
    """NaN has the first code."""
    numbers = x.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    return torch.tensor(codes, dtype=torch.int32)[torch.bucketize(numbers, x.new_tensor(borders))]


def numbers(borders: Sequence[float], dtype: torch.dtype) -> Tensor:
    at = torch.tensor(borders, dtype=dtype)
    beside = [torch.nextafter(at, at.new_tensor(end)) for end in (torch.inf, -torch.inf)]
    spread = 4 * torch.randn(1000, generator=torch.Generator().manual_seed(0))
    return torch.cat([at, *beside, spread.to(dtype), torch.tensor(FAR, dtype=dtype)])


def cells(borders: Sequence[float], codes: Sequence[int]) -> Cells:
    made = cut(borders, codes)
    assert made is not None
    return made


@pytest.mark.parametrize("bits", [5, 6, 7, 8])
@pytest.mark.parametrize("name", TABLED)
def test_every_packaged_table(name: str, bits: int) -> None:
    table: Table = read_table(name, f"fewbit-{bits}bit", "", "levels")
    for borders, dtype in ((table.float32_borders, torch.float32), (table.borders, torch.float64)):
        made, x = cells(borders, table.codes), numbers(borders, dtype)
        assert len(made.borders) <= MOST_CELLS
        assert torch.equal(made.codes_of(x), searched(x, borders, table.codes))
        assert traceable(register_kernel(KernelSpec(FUNCTIONS[name], FewBit(bits=bits))), dtype)


def test_borders_far_apart_and_far_from_zero() -> None:
    for borders in ([-1000.0, 7.0, 900.25], [1000000.0, 1000000.5, 1000003.0], [-(2.0**-149), 0.5]):
        codes = range(len(borders) + 1)
        x = numbers(borders, torch.float32)
        assert torch.equal(cells(borders, codes).codes_of(x), searched(x, borders, codes))


@pytest.mark.parametrize(
    "borders", [[0.0, 0.0], [0.0, 1e-8, 100.0], [0.0, 0.001, 1000.0], [0.0, torch.inf], [1e8, 1e8 + 8]]
)
def test_tables_that_are_refused(borders: list[float]) -> None:
    """Two borders in one place or too close, and borders whose cells float32 does not tell apart."""
    assert cut(borders, range(len(borders) + 1)) is None
