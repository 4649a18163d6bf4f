"""The object that `elementwise` makes of a function: its name, copies, constants and methods; and refusals."""

import copy
import pickle
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import KernelError, elementwise
from tests.kernels.copies import saved_and_loaded
from tests.kernels.programs import Doubled
from tests.kernels.written import MADE, WRITTEN, several


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.activation, self.linear = several, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(sum(self.activation(x)))


def plain(x: Tensor) -> Tensor:
    return 2 * x


def test_copies_and_pickles() -> None:
    assert pickle.loads(pickle.dumps(several)) is several
    again = pickle.loads(pickle.dumps(elementwise(plain)))
    assert (again.function, again(torch.ones(1)).item()) == (plain, 2.0)
    with pytest.raises(Exception, match="pickle"):
        pickle.dumps(MADE["mish"])
    net, x = Holder(), torch.randn(4, 3)
    for other in (copy.deepcopy(net), saved_and_loaded(net)):
        assert other.activation is several
        assert torch.equal(other(x), net(x))


def test_a_function_within_another() -> None:
    twice = elementwise(lambda x: MADE["mish"](MADE["mish"](x)) + several(x, beta=2)[1])
    x = torch.randn(9)
    torch.testing.assert_close(twice(x), F.mish(F.mish(x)) + F.relu(x))


def test_the_first_call_from_several_threads() -> None:
    calls, outcomes = [], []

    @elementwise
    def f(x: Tensor) -> Tensor:
        calls.append(1)
        return x * 3

    threads = [threading.Thread(target=lambda: outcomes.append(f(torch.ones(2)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(calls), len(outcomes)) == (1, 8)
    assert all(torch.equal(outcome, torch.full((2,), 3.0)) for outcome in outcomes)


def test_constants_make_functions_of_their_own() -> None:
    @elementwise
    def f(x: Tensor, power: int, scale: float = 1.0, *, negative: bool = False, kind: str = "a") -> Tensor:
        y = scale * x**power
        return -y if negative else y + (1 if kind == "b" else 0)

    x = torch.tensor([3.0])
    outcomes = [f(x, 2), f(x, 2, 2.0), f(x, 3, scale=2), f(x, 2, negative=True), f(x, 2, kind="b"), f(x, True)]
    assert [outcome.item() for outcome in outcomes] == [9.0, 18.0, 54.0, -9.0, 10.0, 3.0]
    assert "x ** 2" not in f.source("torch", power=2)
    with pytest.raises(TypeError, match="power"):
        f(x)
    with pytest.raises(
        KernelError, match="scale must be a number, a string or a bool besides the one tensor, got Tensor"
    ):
        f(x, 2, scale=torch.ones(1))


class Net(nn.Module):
    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = beta
        self.act = elementwise(self.act)  # type: ignore[method-assign]

    def act(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.beta * x)


class Keeping:
    kept = staticmethod(elementwise(WRITTEN["silu"]))
    shared = elementwise(WRITTEN["silu"])


def test_methods() -> None:
    x = torch.randn(9)
    for beta in (1.0, 2.0):
        torch.testing.assert_close(Net(beta).act(x), x * torch.sigmoid(beta * x))
    for run in (Keeping().kept, Keeping().shared, Keeping.shared):
        assert torch.equal(run(x), MADE["silu"](x))
    message = r"got act, whose first parameter is self; write self\.act = elementwise\(self\.act\) in __init__"
    with pytest.raises(KernelError, match=message):

        class Decorated:
            @elementwise
            def act(self, x: Tensor) -> Tensor:
                return 2 * x


def test_what_backward_does_not_go_through_is_refused() -> None:
    @elementwise
    def frozen(x: Tensor) -> Tensor:
        with torch.no_grad():
            s = torch.sigmoid(x)
        return x * s

    x = torch.randn(9, requires_grad=True)
    for run in (frozen, elementwise(torch.no_grad()(torch.sigmoid)), elementwise(lambda x: Doubled.apply(x) + x)):
        with pytest.raises(KernelError, match=r"backward goes through, got \w+ within torch\.no_grad\(\) or a"):
            run(x)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():  # allowed around the call
            assert torch.equal(elementwise(WRITTEN["silu"])(x), MADE["silu"](x))
            assert not torch.is_grad_enabled()


def test_refusals_name_the_function() -> None:
    @elementwise
    def centred(x: Tensor) -> Tensor:
        return x - x.mean()

    with pytest.raises(KernelError, match=r"^centred: an operation must be element-wise, got mean, .*use it outside"):
        centred(torch.ones(3))
    with pytest.raises(KernelError, match="centred: an operation must be element-wise"):
        centred.expressions()
    with pytest.raises(KernelError, match=r"several: target must be one of triton, torch, got 'cuda'"):
        several.source("cuda")
    two = elementwise(lambda x, y: x * y)
    with pytest.raises(
        KernelError, match=r"^<lambda>: an argument must be .* got Tensor; make a function of one tensor of it"
    ):
        two(torch.ones(3), torch.ones(3))
    with pytest.raises(KernelError, match="elementwise must be given a function of a tensor, got int"):
        elementwise(3)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int32, torch.bool, torch.float8_e4m3fn], ids=str)
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(KernelError, match=rf"several: .* of float16, bfloat16, float32 or float64, got {dtype}"):
        several(torch.ones(3).to(dtype))


def test_results_of_another_dtype_are_refused() -> None:
    widening = elementwise(lambda x: x.float().sigmoid())
    assert widening(torch.ones(3)).dtype == torch.float32
    for dtype in (torch.bfloat16, torch.float64):
        with pytest.raises(
            KernelError, match=rf"must have the dtype of its tensor, {dtype}, got torch.float32; end with"
        ):
            widening(torch.ones(3, dtype=dtype))
    assert elementwise(lambda x: x.float().sigmoid().to(x.dtype))(torch.ones(3).half()).dtype == torch.float16
    steps = elementwise(lambda x: x * torch.where(x > 0, 1.0, 0.5))  # where of numbers is float32, as in torch
    assert steps(torch.ones(3, dtype=torch.float64)).dtype == torch.float64
    with pytest.raises(KernelError, match=r"must have the dtype of its tensor, torch\.bfloat16"):
        steps(torch.ones(3).bfloat16())


def test_what_is_no_strided_tensor_is_refused() -> None:
    with pytest.raises(
        KernelError, match=r"several: its first argument must be a strided tensor, got torch\.sparse_coo"
    ):
        several(torch.ones(3, 3).to_sparse())
    with pytest.raises(KernelError, match="several: its first argument must be a tensor, got float"):
        several(3.0)
