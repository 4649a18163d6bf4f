"""The Triton kernels of codes that tell sides: what plain PyTorch gives, bit for bit but in NaNs."""

import math

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kernels.engine import launch_sides, reference_sides
from kernels.engine.planes import unpack

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 3e38, -3e38, 1e-40)


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_sides, "loops", lambda: None)  # loops have tests of their own


def check(device: str, x: torch.Tensor, inside: torch.Tensor, group: int, bits: int) -> None:
    made = [part.cpu() for part in launch_sides.encode_sides(x.to(device), inside.to(device), group, bits)]
    planes, minimum, scale, edge = reference_sides.encode_sides(x, inside, group, bits)
    assert torch.equal(unpack(made[0], len(x)), unpack(planes, len(x)))
    assert torch.equal(made[1].nan_to_num(7.0), minimum.nan_to_num(7.0))
    assert torch.equal(made[2].view(torch.int16), scale.view(torch.int16))  # with the sign of 0
    assert torch.equal(made[3], edge)


@pytest.mark.slow
@given(
    dtype=st.sampled_from(DTYPES),
    bits=st.integers(1, 8),
    group=st.one_of(st.sampled_from([8, 49, 64, 98, 112, 128]), st.integers(1, 300)),
    count=st.integers(0, 900),
    threshold=st.sampled_from([0.0, 1.0, 9.0, None]),
    special=st.lists(st.sampled_from(SPECIAL), max_size=3),
)
@example(torch.float32, 4, 8, 16, None, [0.0, -0.0])
@example(torch.float16, 1, 128, 500, 0.0, [])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
def test_groups_of_any_size(
    device: str, dtype: torch.dtype, bits: int, group: int, count: int, threshold: float | None, special: list[float]
) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(count)).to(dtype)
    x[: len(special)] = torch.tensor(special[:count], dtype=dtype)
    inside = torch.arange(count) % 3 > 0 if threshold is None else (x < threshold if count % 2 else x > threshold)
    check(device, x, inside, group, bits)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -1e30])
@pytest.mark.parametrize("inside", [True, False])
def test_groups_of_one_number(device: str, value: float, inside: bool) -> None:
    check(device, torch.full((100,), value), torch.full((100,), inside), 64, 4)
    check(device, torch.full((100,), value), torch.arange(100) % 2 == 0, 64, 4)


def test_several_programs(device: str) -> None:
    x = torch.randn(200_003, generator=torch.Generator().manual_seed(0))
    for group in (112, 1024):
        check(device, x, x > 0.1, group, 3)
