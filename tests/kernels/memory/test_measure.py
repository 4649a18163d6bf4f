"""Bytes kept for backward: exact counts, the two witnesses, and that counting leaves no trace."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import actfit
from actfit import KernelError
from actfit.kernels.memory import Allocated, Recorder, saved_bytes
from tests.kernels.memory.models import TENSOR, X, mlp
from tests.kernels.saved import METHODS, bytes_allocated, bytes_in_graph


@pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("fake", [True, False], ids=["fake", "real"])
def test_an_mlp_keeps_what_the_graph_and_the_allocator_say(options: dict, fake: bool) -> None:
    net = mlp(actfit.nn.GELU(**options))
    saved = saved_bytes(net, X, fake=fake)
    net(X)  # makes what is made once
    output, allocated = bytes_allocated(net, X)
    assert saved.total == bytes_in_graph(output, [X, *net.parameters()]) == allocated - output.nbytes
    assert (saved.inputs, saved.unseen, saved.copies) == (X.nbytes, 0, 0)
    assert saved.parameters == net[2].weight.nbytes  # the first layer's input wants no gradient


def test_a_model_on_the_cpu_lets_two_gpus_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch would start CUDA, and warn that there are several."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert saved_bytes(mlp(nn.GELU()), X, fake=False).total > 0


def test_what_is_no_activation_is_told_apart() -> None:
    weight = nn.Parameter(torch.randn(6, 6))
    constant = torch.randn(4, 6)

    def run(x: Tensor) -> Tensor:
        return (x * constant) @ weight.T

    x = torch.randn(4, 6, requires_grad=True)
    saved = saved_bytes(run, x)
    assert (saved.total, saved.inputs, saved.parameters) == (x.nbytes, constant.nbytes, weight.nbytes)


def test_freed_tensors_do_not_count() -> None:
    def run(x: Tensor) -> Tensor:
        x.exp().sin()  # a graph that nobody holds
        return x.cos()

    x = torch.randn(50, requires_grad=True)
    saved = saved_bytes(run, x)
    assert (saved.total, saved.inputs) == (0, x.nbytes)


class Stash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.hidden = x.sign()
        ctx.save_for_backward(x.exp())
        return x.exp()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0] * ctx.hidden


@pytest.mark.parametrize("fake", [True, False], ids=["fake", "real"])
def test_tensors_on_a_ctx_are_found(fake: bool) -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Stash.apply(x * 2)

    saved = saved_bytes(Net(), torch.randn(10, requires_grad=True), fake=fake)
    assert (saved.total, saved.unseen) == (80, 40)
    assert {(tensor.by[0].operation, tensor.seen) for tensor in saved.tensors} == {("Stash", True), ("sign", False)}


def test_copies_that_autocast_makes_of_weights_do_not_count() -> None:
    net = mlp(nn.GELU())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fake, real = saved_bytes(net, X), saved_bytes(net, X, fake=False)
    assert fake == real
    # x, and input and output of the activation, in two bytes; what is copied is both layers' weight and bias.
    assert fake.total == X.nbytes // 2 + 2 * TENSOR // 2
    assert fake.copies == sum(parameter.nbytes for parameter in net.parameters()) // 2


def test_checkpoints_keep_their_input_only() -> None:
    inner = nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU())

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x.exp(), use_reentrant=False)

    assert saved_bytes(Net(), X.clone().requires_grad_()).total == X.nbytes
    assert saved_bytes(nn.Sequential(inner), X).total == 3 * X.nbytes


class Changing(nn.Module):
    """Its forward leaves traces of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(24), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.cache: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.cache = self.drop(self.norm(x))
        self.last = torch.rand(3)
        self.norm.weight = nn.Parameter(self.norm.weight + 1)
        return self.cache


@pytest.mark.parametrize("fake", [True, False, None])
def test_the_model_is_left_as_it_was(fake: bool | None) -> None:
    net = Changing()
    weight, state = net.norm.weight, {name: tensor.clone() for name, tensor in net.state_dict().items()}
    attributes, numbers = set(vars(net)), torch.get_rng_state()
    saved_bytes(net, X, fake=fake)
    assert net.norm.weight is weight
    assert set(vars(net)) == attributes
    assert net.cache is None
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), numbers)
    assert not net._forward_hooks
    assert not net._forward_pre_hooks


def test_a_model_that_cannot_run_on_fakes_runs_for_real() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.exp() if x.sum() > 0 else x.sin()

    x = torch.ones(10, requires_grad=True)
    assert saved_bytes(Branching(), x).total == x.nbytes
    with pytest.raises(KernelError, match=r"model must run on fake tensors for fake=True .*, got DataDependent"):
        saved_bytes(Branching(), x, fake=True)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_goes_wrong_while_a_tensor_is_saved_comes_afterwards(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch ends the process for an exception in a hook, Ctrl-C too."""

    def fail(*_: Any) -> None:
        raise error("in the hook")

    monkeypatch.setattr(Recorder, "_saved_by", fail)
    with pytest.raises(error, match="in the hook"):
        saved_bytes(mlp(actfit.nn.GELU()), X, fake=False)
    assert gc.isenabled()


def test_tied_weights_and_shared_modules() -> None:
    first, act = nn.Linear(24, 24), nn.GELU()
    second = nn.Linear(24, 24)
    second.weight = first.weight
    saved = saved_bytes(nn.Sequential(first, act, second, act), X)
    assert saved.parameters == first.weight.nbytes
    assert {group.module: group.bytes for group in saved.groups()} == {"1": 2 * X.nbytes, "2": X.nbytes}


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_models(backend: str) -> None:
    """By graph and allocator; ours keeps the same as in eager."""
    torch._dynamo.reset()
    net = mlp(actfit.nn.GELU())
    saved = saved_bytes(torch.compile(net, backend=backend), X)
    assert (saved.total, saved.inputs, saved.unseen) == (saved_bytes(net, X).total, X.nbytes, 0)
    assert saved.parameters == net[2].weight.nbytes
    torch._dynamo.reset()
    assert saved_bytes(torch.compile(lambda x: net(x), backend=backend), X).total == saved.total


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_allocator_agrees_to_its_rounding() -> None:
    net, x = mlp(actfit.nn.GELU(), nn.Dropout(0.1)).cuda(), X.cuda()
    saved = saved_bytes(net, x)
    net(x).sum().backward()  # what is loaded once
    with Allocated() as books:
        output = net(x)
    rounding = 512 * (len(saved.tensors) + 1)
    assert saved.total + output.nbytes <= books.delta["current"] <= saved.total + output.nbytes + rounding
    assert books.delta["peak"] >= books.delta["current"] == books.delta["allocated"] - books.delta["freed"]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((3,), {}, "model must be a module or a function, got int"),
        ((torch.exp, X), {"fake": "yes"}, "fake must be True, False or None, got 'yes'"),
        ((nn.ReLU(), X), {"accounting": "gpu"}, "accounting must be one of as-run, cuda, got 'gpu'"),
        ((torch.exp, X), {"fake": True}, "fake=True must go with a module"),
        ((torch.exp, X), {"accounting": "cuda"}, "accounting='cuda' must go with a module on fake .* got a function"),
        ((nn.ReLU(), X), {"accounting": "cuda", "fake": False}, "accounting='cuda' must go .* got fake=False"),
    ],
)
def test_bad_arguments(args: tuple, kwargs: dict, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        saved_bytes(*args, **kwargs)


@pytest.mark.parametrize("kwargs", [{"fake": True}, {"accounting": "cuda"}])
def test_what_is_compiled_runs_as_it_is(kwargs: dict) -> None:
    with pytest.raises(KernelError, match=r"what torch\.compile compiled must be run as it is"):
        saved_bytes(torch.compile(nn.ReLU(), backend="aot_eager"), X, **kwargs)


def test_each_storage_counts_once() -> None:
    def views(x: Tensor) -> Tensor:
        y = x.exp()  # keeps y
        return (y.view(-1) * y.view(-1)).sum() + y.T.square().sum()

    x = torch.randn(5, 7, requires_grad=True)
    assert saved_bytes(views, x).total == x.nbytes


def test_the_output_is_kept_only_if_backward_needs_it() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    assert saved_bytes(torch.exp, x).total == x.nbytes
    assert saved_bytes(lambda x: x + 1, x).total == 0
    assert saved_bytes(lambda x: {"deep": [x + 1, (x + 2,)]}, x).total == 0
