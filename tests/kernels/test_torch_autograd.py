"""torch.autograd and torch.func: transforms, double backward, and changes of an output in place."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from actfit import KernelError, functional
from actfit.coefficients import load
from tests.kernels.saved import METHODS, each_method

# torch 2.13 itself uses a deprecated function for its rules of forward mode.
stock = nn.functional.gelu


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


@each_method
def test_torch_func_takes_the_stock_function(options: dict) -> None:
    x, v = torch.randn(5, 7), torch.randn(5, 7)

    def run(z: Tensor) -> Tensor:
        return functional.gelu(z, **options)

    for transform in (
        lambda f: torch.func.grad(lambda z: f(z).sum())(x),
        lambda f: torch.func.vjp(f, x)[1](v)[0],
        lambda f: torch.func.jvp(f, (x,), (v,))[1],
        lambda f: torch.func.vmap(f)(x),
        lambda f: torch.func.vmap(torch.func.grad(lambda z: f(z).sum()))(x),
        lambda f: torch.func.hessian(lambda z: f(z).sum())(x),
        lambda f: torch.func.vmap(f)(leaf(5, 7).detach().copy_(x).requires_grad_()),
    ):
        assert torch.equal(transform(run), transform(stock))


@each_method
def test_forward_mode(options: dict) -> None:
    x, v = leaf(5, 7), torch.randn(5, 7)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, v)
        got, expected = (
            forward_ad.unpack_dual(f(dual)).tangent for f in (lambda z: functional.gelu(z, **options), stock)
        )
    assert torch.equal(got, expected)


@each_method
@pytest.mark.parametrize("penalty_only", [True, False])
def test_the_gradient_of_a_gradient_is_refused(options: dict, penalty_only: bool) -> None:
    x = leaf(5, 7)
    y = functional.gelu(3 * x, **options)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)  # taking only this gradient is allowed
    assert gradient.requires_grad
    loss = gradient.square().sum() if penalty_only else gradient.square().sum() + y.sum()
    with pytest.raises(KernelError, match=r"differentiated once only; .* use method='stock'"):
        torch.autograd.grad(loss, x)


@each_method
def test_backward_twice_with_retain_graph(options: dict) -> None:
    x = leaf(5, 7)
    y = functional.gelu(x, **options)
    first, second = (torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@each_method
def test_batched_gradients(options: dict) -> None:
    x, cotangents = leaf(5, 7), torch.randn(3, 5, 7)
    y = functional.gelu(x, **options)
    (batched,) = torch.autograd.grad(y, x, cotangents, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(y, x, cotangent, retain_graph=True)[0] for cotangent in cotangents]
    assert torch.equal(batched, torch.stack(one_by_one))


@pytest.mark.parametrize("method", ["invact", "invact-precision-bit"])
def test_a_kept_output_changed_in_place_is_refused_with_a_hint(method: str) -> None:
    y = functional.gelu(leaf(5, 7), method=method)
    y += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
        y.sum().backward()
    assert "out = out + other" in str(caught.value)
    assert "method='fewbit'" in str(caught.value)
    assert f"method='{method}'" in str(caught.value)


@pytest.mark.parametrize("method", ["fewbit", "forward-ad"])
def test_another_output_may_be_changed_in_place(method: str) -> None:
    x = leaf(5, 7)
    y, untouched = (functional.gelu(x, **METHODS[method]) for _ in range(2))
    y *= 2
    assert torch.equal(y, 2 * stock(x))
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], 2 * torch.autograd.grad(untouched.sum(), x)[0])


@each_method
def test_an_input_may_be_changed_in_place_afterwards(options: dict) -> None:
    """Our function does not save x, so x may change; the stock function raises here."""
    x = leaf(5, 7)
    for_change = x * 1
    y, untouched = functional.gelu(for_change, **options), functional.gelu(x, **options)
    for_change.zero_()
    assert torch.equal(*(torch.autograd.grad(result.sum(), x)[0] for result in (y, untouched)))


@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
@each_method
def test_anomaly_mode(options: dict) -> None:
    x = leaf(5, 7)
    with torch.autograd.detect_anomaly():
        functional.gelu(x, **options).sum().backward()
    assert torch.equal(x.grad, torch.autograd.grad(functional.gelu(x, **options).sum(), x)[0])


@each_method
def test_torch_func_agrees_with_autograd(options: dict) -> None:
    """Up to the method's error: invact's next to the minimum, where y hardly determines x; fewbit's steps."""
    x = leaf(500)
    (got,) = torch.autograd.grad(functional.gelu(x, **options).sum(), x)
    expected = torch.func.grad(lambda z: functional.gelu(z, **options).sum())(x.detach())
    # y = f(T) + f''(T)/2 (x - T)^2 is rounded to 2^-27 there, so that f' = f''(T) (x - T) is known to
    # sqrt(2 f''(T) 2^-27) = 8e-5. The error of a table is in its file.
    table = load("gelu", "fewbit-3bit")["error"]["linf"] + torch.finfo(x.dtype).eps
    bound = {"invact": 1e-4, "fewbit": table, "forward-ad": 8 * torch.finfo(x.dtype).eps, "invact-precision-bit": 2e-4}
    assert (got - expected).abs().max() <= bound[options["method"]]
