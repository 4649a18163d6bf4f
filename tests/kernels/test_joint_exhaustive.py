"""Every bfloat16 and float16 input through the joint codes of the package: Triton, plain PyTorch, and as traced."""

import numpy as np
import pytest
import torch
from torch import Tensor

from actfit.coefficients import load
from actfit.fitting.joint.command import SHIPPED
from actfit.kernels.engine import launch, reference, traced
from actfit.kernels.engine.planes import unpack
from actfit.kernels.methods.joint import COMPONENTS, SHIPPED_BITS
from actfit.kernels.validate import joint_kernels
from benchmarks.baselines.oracle import DTYPES, all_inputs

pytestmark = pytest.mark.slow

CASES = [pytest.param(name, bits, id=f"{name}-{bits}") for name in SHIPPED for bits in SHIPPED_BITS]


def every_number(dtype: torch.dtype) -> Tensor:
    """All 2^16 of a dtype but NaNs."""
    x = all_inputs(dtype)
    return x[~x.isnan()]


def expected(name: str, bits: int, x: Tensor) -> tuple[np.ndarray, list[Tensor]]:
    """The codes of x, and the levels of f' and f in its dtype, from the file."""
    solution = load(name, f"joint-{bits}bit")["solution"]
    codes = np.searchsorted(solution["borders"], x.double().numpy(), side="left")
    levels = (torch.tensor(solution[key], dtype=torch.float32)[torch.from_numpy(codes)] for key in COMPONENTS)
    return codes, [level.to(x.dtype) for level in levels]


# Only reading x differs between dtypes: each table is tested in one of them, as in test_exhaustive.
def dtype_of(bits: int) -> torch.dtype:
    return list(DTYPES.values())[bits % 2]


@pytest.mark.parametrize(("name", "bits"), CASES)
def test_plain_pytorch_and_traced(name: str, bits: int) -> None:
    dtype = dtype_of(bits)
    x = every_number(dtype)
    codes, levels = expected(name, bits, x)
    grad = torch.ones_like(x)
    kernels = joint_kernels(name, bits, None)
    _, saved = reference.forward(kernels[0], x, ())
    assert saved.shape == (bits, -(-len(x) // 8))
    np.testing.assert_array_equal(unpack(saved, len(x)).numpy(), codes)
    assert torch.equal(reference.backward(kernels[0], grad, None, saved, ()), levels[0])
    assert torch.equal(reference.levels(kernels[1], saved, len(x), dtype), levels[1])
    assert all(traced.traceable(kernel.key, dtype) for kernel in kernels)
    _, planes = traced.forward(x, kernels[0].key, [], [])
    assert planes.numel() == saved.numel()
    assert torch.equal(traced.backward(grad, None, planes, kernels[0].key, []), levels[0])
    assert torch.equal(traced.levels(planes, kernels[1].key, x), levels[1])


@pytest.mark.parametrize(("name", "bits"), CASES)
def test_triton(name: str, bits: int, device: str) -> None:
    dtype = dtype_of(bits)
    x = every_number(dtype)
    codes, levels = expected(name, bits, x)
    kernels = joint_kernels(name, bits, None)
    _, planes = launch.forward(kernels[0], x.to(device), ())
    np.testing.assert_array_equal(unpack(planes.cpu(), len(x)).numpy(), codes)
    assert torch.equal(launch.backward(kernels[0], torch.ones_like(x).to(device), None, planes, ()).cpu(), levels[0])
    assert torch.equal(launch.levels(kernels[1], planes, len(x), dtype).cpu(), levels[1])
