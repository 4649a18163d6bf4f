"""Functions of users with coefficient files of their own: what they compute and keep, and which files are refused."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actfit import KernelError, elementwise, functional, saved_bytes
from actfit.coefficients import load
from actfit.coefficients.document import seal
from actfit.coefficients.store import write
from actfit.fitting.activations import from_expression
from actfit.fitting.fewbit.document import to_document
from actfit.fitting.fewbit.solve import fit
from actfit.kernels.engine import launch, reference
from actfit.kernels.methods.method import spec_of


def snake(x: Tensor, a: float = 1.5) -> Tensor:
    return x + torch.sin(a * x) ** 2 / a


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@pytest.fixture(scope="module")
def table() -> Any:
    """The document of a table of 2 bits of `snake`."""
    function = from_expression("x + sin(a*x)**2/a", "snake", {"a": 1.5})
    return seal(to_document(fit(function, 2, domain=(-3, 3))), 1)


@pytest.fixture
def path(table: Any, tmp_path: Path) -> Path:
    write(table, tmp_path / "snake.json")
    return tmp_path / "snake.json"


def gradient(function: Any, x: Tensor) -> Tensor:
    x = x.detach().clone().requires_grad_()
    function(x).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_table_of_an_own_function_gives_its_levels_and_keeps_its_bits(
    dtype: torch.dtype, table: Any, path: Path
) -> None:
    own = elementwise(snake, coefficients=path)
    x = torch.linspace(-3, 3, 1003, dtype=dtype)
    # Sine, square, quotient and sum, each rounded in float32, and the result in the dtype.
    rounding = 8 * 2.0**-24 + torch.finfo(dtype).eps
    torch.testing.assert_close(own(x).double(), snake(x.double()), rtol=rounding, atol=rounding)
    solution = table["solution"]
    places = np.searchsorted(solution["borders"], x.double().numpy(), side="left")
    levels = torch.tensor(np.array(solution["levels"])[np.array(solution["codes"])[places]], dtype=dtype)
    got = gradient(own, x)
    assert torch.equal(got, levels)
    slope = gradient(snake, x.double())
    assert (got.double() - slope).abs().max() <= table["error"]["linf"] + 2 * torch.finfo(dtype).eps
    assert saved_bytes(own, x.requires_grad_()).total == 2 * ((1003 + 7) // 8)


@pytest.mark.parametrize("name", ["invact-bfloat16", "invact-bfloat16-2bit", "invact-float16", "fewbit-6bit"])
def test_formulas_and_large_tables_do_what_the_packages_own_do(name: str) -> None:
    document = load("silu", name)
    bits, dtype = document["options"].get("bits"), getattr(torch, document["options"].get("dtype", "float32"))
    x = (3 * torch.randn(5, 7, 11)).to(dtype).transpose(0, 2)
    own = elementwise(swish, document)
    shipped = functional.silu(x, method=document["method"], bits=bits)
    assert torch.equal(own(x), shipped)
    assert torch.equal(
        gradient(own, x), gradient(lambda x: functional.silu(x, method=document["method"], bits=bits), x)
    )


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("name", ["invact-float32", "fewbit-2bit"])
def test_the_triton_kernels_do_what_plain_pytorch_does(name: str) -> None:
    own = elementwise(swish, load("silu", name))
    x = torch.randn(1000)  # whole bytes: what fills the last one is undefined
    spec = spec_of(own.kernel(own.program((), {}), x))
    y, saved = launch.forward(spec, x, ())
    expected, kept = reference.forward(spec, x, ())
    torch.testing.assert_close(y, expected, rtol=4 * 2.0**-24, atol=2.0**-24)
    assert torch.equal(saved, kept)
    output = expected if spec.storage.keeps_output else None
    dx = launch.backward(spec, torch.ones_like(x), output, kept, ())
    # A formula in y of some twenty operations moves by 2**-19 at most in float32.
    rounding = 2 * 2.0**-19 if spec.storage.keeps_output else 0.0
    torch.testing.assert_close(
        dx, reference.backward(spec, torch.ones_like(x), output, kept, ()), rtol=0, atol=rounding
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["invact-float32", "fewbit-2bit"])
def test_it_compiles(name: str) -> None:
    own, x = elementwise(swish, load("silu", name)), torch.randn(1003)
    compiled = torch.compile(lambda x: own(2 * x), backend="aot_eager", fullgraph=True)
    # The compiled formula uses torch's operations, eager the runtime's faster ones.
    torch.testing.assert_close(gradient(compiled, x), gradient(lambda x: own(2 * x), x), rtol=0, atol=2 * 2.0**-19)


def test_it_is_copied_and_pickled_with_its_table(table: Any) -> None:
    own, x = elementwise(snake, coefficients=table), torch.randn(64)
    assert copy.deepcopy(own) is own
    assert torch.equal(gradient(pickle.loads(pickle.dumps(own)), x), gradient(own, x))
    torch.testing.assert_close(torch.func.grad(lambda x: own(x).sum())(x), gradient(snake, x))  # the function itself


def test_files_that_are_not_of_the_function_are_refused_in_one_line(table: Any, path: Path, tmp_path: Path) -> None:
    x = torch.randn(3)
    other = (
        rf"swish: coefficients must be of this function, got snake = x \+ sin\(a\*x\)\*\*2/a in {path}: \S+ at x = -3"
    )
    with pytest.raises(KernelError, match=other):
        elementwise(swish, path)(x)
    with pytest.raises(KernelError, match="snake: coefficients must be of this function"):
        elementwise(snake, path)(x, a=1.6)
    with pytest.raises(KernelError, match="pair: with coefficients it must have one result, got a tuple of 2"):
        elementwise(pair, path)(x)
    with pytest.raises(
        KernelError, match=r"its tensor must be of float16, which .* got float32; fit another: .* float32"
    ):
        elementwise(swish, load("silu", "invact-float16"))(x)
    changed = {**table, "error": {**table["error"], "linf": 0.5}}
    for bad, message in (
        (tmp_path / "none.json", "coefficients must be a file that can be read, got '.*none.json': no such file"),
        (changed, "coefficients must be valid: sha256 must be the hash of the rest"),
        (3, "coefficients must be the path of a file, or its document, got 3"),
        (load("gelu", "joint-3bit"), "coefficients must be of fewbit or invact, got joint"),
    ):
        with pytest.raises(KernelError, match=message):
            elementwise(snake, bad)


def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return snake(x), x * x


def test_modules_and_functionals_say_who_takes_other_files(path: Path) -> None:
    with pytest.raises(KernelError, match=r"got 'snake'; for one of your own: actfit.elementwise"):
        functional.activation("snake", torch.randn(3))
    with pytest.raises(KernelError, match=r"of gelu, got fewbit of snake \(.*\); actfit.elementwise\(f, coeff"):
        functional.gelu(torch.randn(3), method="fewbit", coefficients=path)
    with pytest.raises(
        KernelError, match=r"got method='invact'; actfit.elementwise\(f, coefficients=file\) takes form"
    ):
        functional.gelu(torch.randn(3), method="invact", coefficients=path)
