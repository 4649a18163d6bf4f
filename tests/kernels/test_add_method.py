"""The methods defined by the code of docs/how-to/add_method.md do all that the page says."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from actfit import functional, saved_bytes
from actfit.codegen.standalone import Request, emit
from actfit.codegen.subject import of_catalogue
from actfit.fitting.errors import InputError
from actfit.kernels.engine import launch, reference
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.methods.registry import ELEMENTWISE, make
from actfit.nn import GELU
from tests.codegen.run import module
from tests.kernels.specs import spec

NAME, PACKED = "forward-ad-bfloat16", "sign-only"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add_method.md"


@pytest.fixture(scope="module", autouse=True)
def added(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for example in examples:
        module(example, tmp_path_factory.mktemp("page"))
    yield
    for name in (NAME, PACKED):
        del ELEMENTWISE[name]


def gradient(x: Tensor, method: str) -> Tensor:
    (gradient,) = torch.autograd.grad(functional.gelu(x, method=method).sum(), x)
    return gradient


def test_it_saves_half_and_rounds_to_eight_bits() -> None:
    x = torch.randn(1003, requires_grad=True)
    kept = {name: saved_bytes(lambda x, name=name: functional.gelu(x, method=name), x) for name in ("forward-ad", NAME)}
    assert [kept[name].total for name in ("forward-ad", NAME)] == [4 * 1003, 2 * 1003]
    assert kept[NAME].tensors[0].by[0].operation == f"gelu, {NAME}"
    exact = gradient(x, "forward-ad")
    assert ((gradient(x, NAME) - exact).abs() <= 2.0**-8 * exact.abs()).all()  # half a unit in the last of 8 bits


def test_the_triton_kernels_do_as_the_reference(device: str) -> None:
    kernel, x = spec("silu", NAME), torch.randn(1003, device=device)
    _, saved = launch.forward(kernel, x, ())
    _, kept = reference.forward(kernel, x, ())
    assert saved.dtype == kept.dtype == torch.bfloat16
    grad = torch.ones_like(x)
    torch.testing.assert_close(saved, kept, rtol=2.0**-7, atol=2.0**-20)  # a unit of bfloat16
    torch.testing.assert_close(
        launch.backward(kernel, grad, None, kept, ()), reference.backward(kernel, grad, None, kept, ())
    )


def test_modules_take_it_and_are_emitted(tmp_path: Path) -> None:
    assert saved_bytes(GELU(method=NAME), torch.randn(16, 8, requires_grad=True)).total == 2 * 16 * 8
    text = emit(Request(of_catalogue("gelu"), make(NAME, ELEMENTWISE), "float32", ("python",)), "torch")
    x = torch.randn(64)
    y, _ = module(text, tmp_path).forward_pass(x)
    assert torch.equal(y, functional.gelu(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_table_packs_one_bit(device: str, dtype: torch.dtype) -> None:
    x = torch.randn(1003, dtype=dtype, requires_grad=True)
    assert saved_bytes(lambda x: functional.gelu(x, method=PACKED), x).total == 126
    step = (x > 0).to(dtype)
    assert torch.equal(gradient(x, PACKED), step)
    kernel, grad = spec("gelu", PACKED), torch.ones_like(x, device=device)
    y, saved = launch.forward(kernel, x.detach().to(device), ())
    assert torch.equal(launch.backward(kernel, grad, y, saved, ()).cpu(), step)
    with pytest.raises(InputError, match="must have emitted code for a module that stands alone, got sign-only"):
        emit(Request(of_catalogue("gelu"), make(PACKED, ELEMENTWISE), "float32", ("python",)), "torch")


def test_kernels_move_what_they_say() -> None:
    kernel = spec("gelu", NAME)
    assert kernel.function is FUNCTIONS["gelu"]
    assert [kernel.moved_bytes(direction, "float32") for direction in ("forward", "backward")] == [10, 10]
