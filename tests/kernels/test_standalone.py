"""Emitted standalone modules return the runtime kernels' results at every 16-bit input."""

from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from actfit.codegen.standalone import Request, emit
from actfit.codegen.subject import of_catalogue
from actfit.fitting.errors import InputError
from actfit.kernels.engine import launch
from actfit.kernels.engine.elements import allocate
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.methods.method import KernelSpec
from benchmarks.baselines.oracle import DTYPES, all_inputs, ulps
from tests.codegen.run import module
from tests.kernels.specs import spec

pytestmark = pytest.mark.slow

NAMES = ("gelu", "silu", "relu", "softplus")
METHODS = [("forward-ad", 0), ("fewbit", 3), ("invact", 0), ("invact", 2)]  # and bits


def emitted(name: str, method: str, bits: int, dtype: str, folder: Path) -> ModuleType:
    try:
        return module(
            emit(Request(of_catalogue(name), spec(name, method, bits).method, dtype, ("python",)), "triton"), folder
        )
    except InputError as error:
        if "python-flint must be installed" not in str(error):
            raise
        pytest.skip("not run: python-flint is missing, and this function's text is made by it")


def run(module: ModuleType, kernel: KernelSpec, x: Tensor, params: tuple[float, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """y, what is saved, and the gradient of y.sum()."""
    y, dx, grad, saved = torch.empty_like(x), torch.empty_like(x), torch.ones_like(x), allocate(kernel, x)
    store = [saved] if saved.numel() else []
    given = [params] if params else []
    rows = 128 if x.is_cuda else 1 << 13  # the interpreter runs program after program
    grid = (-(-x.numel() // (8 * rows)),)
    module.forward_kernel[grid](x, y, *store, *given, x.numel(), ROWS=rows)
    outputs = [y] if kernel.storage.keeps_output else []
    takes = given if kernel.storage.name not in ("derivative", "codes") else []
    module.backward_kernel[grid](grad, *outputs, *store, dx, *takes, x.numel(), ROWS=rows)
    return y.cpu(), saved.cpu(), dx.cpu()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("method", "bits"), METHODS)
@pytest.mark.parametrize("name", NAMES)
def test_it_gives_what_the_runtime_gives(
    name: str, method: str, bits: int, dtype: str, device: str, tmp_path: Path
) -> None:
    kernel = spec(name, method, bits)
    params = tuple(FUNCTIONS[name].parameters.values())
    x = all_inputs(DTYPES[dtype]).to(device)
    y, saved, dx = run(emitted(name, method, bits, dtype, tmp_path), kernel, x, params)
    expected, kept = launch.forward(kernel, x, params)
    needed = expected if kernel.storage.keeps_output else None
    gradient = launch.backward(kernel, torch.ones_like(x), needed, kept, params).cpu()
    number = ~torch.isnan(x.cpu()) & ~torch.isnan(expected.cpu())
    # The same operations; the compiler may fuse a product and a sum in one of them only, which moves a result by less
    # than a unit. The interpreter fuses nothing.
    units = 1 if device == "cuda" else 0
    assert ulps(y, expected.cpu())[number].max() <= units
    assert ulps(dx, gradient)[number].max() <= units
    if kernel.storage.name == "derivative":
        assert ulps(saved, kept.cpu())[number].max() <= units
    else:
        assert torch.equal(saved, kept.cpu())
