"""Functions that a graph describes completely, or not: the same numbers and random numbers, and no harmful moves.

Losses must be equal bit for bit. Gradients are products of the same factors in another order: in float64 that is some
1e-16 for each factor, more where terms cancel, and 1e-10 of the largest gradient is far from both that and an error.
"""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.errors import KernelError
from kernels.forward_ad import backend, exported, traced
from kernels.forward_ad.rewrite import RegionModule
from tests.kernels.forward_ad.chains import mish, newgelu
from tests.kernels.forward_ad.graph_programs import drawn
from tests.kernels.forward_ad.graphs import DOUBLE, MARKS, Model, Rewritten, wave
from tests.kernels.forward_ad.programs import inputs
from tests.kernels.saved import bytes_in_graph

pytestmark = MARKS


def source_changed_before(m: Model, h: Tensor) -> Tensor:
    h.mul_(2)
    return mish(h)


def source_changed_by_index(m: Model, h: Tensor) -> Tensor:
    g = h * 1.5
    y = F.leaky_relu(g + 1, 0.1)
    y = torch.exp(torch.sin(y))
    g[0] = 1.0
    return y + g


def source_changed_through_a_view(m: Model, h: Tensor) -> Tensor:
    y = torch.exp(torch.sin(h + 1))
    h.view(-1).mul_(2)
    return y + h


def middle_changed(m: Model, h: Tensor) -> Tensor:
    y = h * 1.5
    z = torch.exp(torch.sin(y + 1))
    y.t()[0].mul_(2)
    return z + y


def constant_changed(m: Model, h: Tensor) -> Tensor:
    c = m.row * 2
    y = torch.exp(torch.sin(h)) + c
    c += 3
    return torch.cos(torch.sin(y + c))


def constant_changed_through_a_view(m: Model, h: Tensor) -> Tensor:
    c = m.row * 2
    y = torch.exp(torch.sin(h)) + c
    c.view(2, 4)[0].zero_()
    return torch.cos(torch.sin(y + c))


def constant_changed_by_out(m: Model, h: Tensor) -> Tensor:
    c = m.full * 2
    y = torch.exp(torch.sin(h)) + c
    torch.sin(m.full, out=c)
    return torch.cos(torch.sin(y + c))


def constant_is_a_statistic(m: Model, h: Tensor) -> Tensor:
    y = torch.exp(torch.sin(h)) + m.norm.running_mean
    z = m.norm(h)
    return torch.cos(torch.sin(y + m.norm.running_mean)) + z


def end_changed(m: Model, h: Tensor) -> Tensor:
    y = mish(h)
    y += 1
    return y


def end_changed_by_index(m: Model, h: Tensor) -> Tensor:
    y = mish(h)
    y[0] = 1.0
    return y


def buffers(m: Model, h: Tensor) -> Tensor:
    return mish(h * m.row) + m.full * torch.exp(torch.sin(h))


def compared(m: Model, h: Tensor) -> Tensor:
    t = torch.tanh(torch.sin(h))
    return torch.where(t > 0, t * t, torch.exp(t)) * (t < 0.5).to(h.dtype)


def constant_made_late(m: Model, h: Tensor) -> Tensor:
    t = wave(h)
    return torch.exp(torch.sin(t * t.sum().detach()))


def two_ends(m: Model, h: Tensor) -> Tensor:
    t = torch.exp(torch.sin(torch.cos(torch.sin(h))))
    return t @ m.last(torch.cos(torch.exp(torch.sin(t)))).T @ t


def pieces(m: Model, h: Tensor) -> Tensor:
    value, gate = h.chunk(2, -1)
    return torch.cat([value * newgelu(gate)] * 2, -1)


def no_gradient(m: Model, h: Tensor) -> Tensor:
    t = torch.sin(h)
    with torch.no_grad():
        factor = torch.cos(t) * 2
    return torch.exp(torch.tanh(t)) * factor


def call_would_come_where_gradients_are_off(m: Model, h: Tensor) -> Tensor:
    t = wave(h)
    factor = m.row * 2
    with torch.no_grad():
        other = t * 2
    return torch.exp(torch.sin(t * factor)) + other


def autocast(m: Model, h: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        products = torch.mm(h, h.T)
    return wave(h) + products.sum().double()


def hook_within(m: Model, h: Tensor) -> Tensor:
    t = torch.exp(torch.sin(h))
    t.register_hook(lambda gradient: gradient * 2)
    return torch.exp(torch.sin(t))


def hook_on_source(m: Model, h: Tensor) -> Tensor:
    h.register_hook(lambda gradient: gradient * 2)
    return mish(h)


def dropout_would_pass_a_draw(m: Model, h: Tensor) -> Tensor:
    t = F.dropout(wave(h), 0.4)
    c = torch.rand(8, dtype=DOUBLE)
    return torch.exp(torch.sin(t * c))


def draw_would_pass_no_dropout(m: Model, h: Tensor) -> Tensor:
    t = wave(h)
    c = torch.rand(8, dtype=DOUBLE)
    return F.dropout(torch.exp(torch.sin(t * c)), 0.5)


def dropouts_in_turn(m: Model, h: Tensor) -> Tensor:
    g = m.last(h)
    a, b = F.dropout(torch.sin(h), 0.5), F.dropout(torch.cos(g), 0.5)
    a, b = torch.exp(torch.sin(a)), torch.exp(torch.sin(b))
    a, b = F.dropout(torch.cos(a), 0.5), F.dropout(torch.cos(b), 0.5)
    return torch.exp(torch.sin(a)) + b


# Functions that a graph describes completely, with the number of regions replaced in them.
REPLACED: dict[str, tuple[Callable[[Model, Tensor], Tensor], int]] = {
    "parameter": (lambda m, h: h * torch.sigmoid(h * m.weight), 0),
    "parameter around": (lambda m, h: m.weight * wave(h) + m.weight, 1),
    "two sources": (lambda m, h: torch.tanh(h) * torch.sin(m.last(h)), 0),
    "detached": (lambda m, h: h * torch.tanh(F.softplus(h)).detach() + wave(h), 1),
    "end changed by module": (lambda m, h: (y := torch.sin(mish(h)) + 1) + m.in_place(y), 1),
    "end changed by argument": (lambda m, h: (y := torch.sin(mish(h)) + 1) + F.relu(y, True), 1),
    "end changed by keyword": (lambda m, h: (y := torch.sin(mish(h)) + 1) + F.elu(y, inplace=True), 1),
    "dropout": (lambda m, h: m.drop(torch.exp(torch.sin(h))) + torch.rand((), dtype=DOUBLE), 1),
    **{
        function.__name__: (function, regions)
        for regions, functions in {
            0: (
                *(source_changed_by_index, source_changed_through_a_view, middle_changed, constant_changed),
                *(constant_changed_through_a_view, constant_changed_by_out, constant_is_a_statistic, end_changed),
                *(end_changed_by_index, hook_within, hook_on_source),
            ),
            1: (
                *(source_changed_before, buffers, compared, two_ends, pieces, no_gradient, autocast),
                *(dropout_would_pass_a_draw, draw_would_pass_no_dropout),
            ),
            2: (constant_made_late, call_would_come_where_gradients_are_off),
            3: (dropouts_in_turn,),
        }.items()
        for function in functions
    },
}
# Writes by index, hooks, gradients and autocast turned on or off, and numbers that would be drawn once for all calls.
NOT_TRACED = {
    *("source_changed_by_index", "end_changed_by_index", "hook_within", "hook_on_source", "no_gradient", "autocast"),
    *("call_would_come_where_gradients_are_off", "dropout", "dropout_would_pass_a_draw", "draw_would_pass_no_dropout"),
}


def outcome(model: nn.Module, module: nn.Module, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Tensors that must be equal bit by bit, with the next random number; and the gradients of all parameters."""
    torch.manual_seed(3)
    y = module(x)
    gradients = torch.autograd.grad(y.square().sum(), list(model.parameters()), allow_unused=True)
    kept = [y.detach(), torch.rand(1), *(buffer.clone() for buffer in model.buffers())]
    filled = [p.new_zeros(p.shape) if g is None else g for p, g in zip(model.parameters(), gradients, strict=True)]
    return kept, filled


def agree(front_end: str, model: nn.Module, x: Tensor) -> int:
    """Compares the rewritten model with the model, from the same state; returns the number of regions."""
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    rewritten = Rewritten(front_end, model, x)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    exact, gradients = outcome(model, model, x)
    model.load_state_dict(before)
    exact_now, gradients_now = outcome(model, rewritten.module, x)
    assert all(map(torch.equal, exact_now, exact))
    near = 1e-10 * max(gradient.abs().max().item() for gradient in gradients)
    assert all(torch.allclose(*pair, rtol=0, atol=near) for pair in zip(gradients_now, gradients, strict=True))
    return rewritten.regions


@pytest.mark.parametrize("name", REPLACED)
@pytest.mark.parametrize("front_end", ["exported", "compiled"])
def test_same_numbers(front_end: str, name: str) -> None:
    function, regions = REPLACED[name]
    model, x = Model(function), torch.randn(6, 8, dtype=DOUBLE)
    if front_end == "exported" and name in ("hook_within", "hook_on_source"):
        with pytest.raises(KernelError, match=r"torch.export takes, got RuntimeError: a hook"):
            exported(model, (x,))
    else:
        # An export holds all code without gradients as one node, and chains continue after it.
        whole = front_end == "exported" and name == "call_would_come_where_gradients_are_off"
        assert agree(front_end, model, x) == (1 if whole else regions)


@pytest.mark.parametrize("name", REPLACED)
def test_same_numbers_or_not_traced(name: str) -> None:
    model, x = Model(REPLACED[name][0]), torch.randn(6, 8, dtype=DOUBLE)
    if name in NOT_TRACED:
        with pytest.raises(KernelError, match=r"^model must be one that torch.fx.symbolic_trace can follow, got "):
            traced(model, x)
    else:
        agree("traced", model, x)


@pytest.mark.parametrize("seed", range(50))
def test_random_programs(seed: int) -> None:
    """In-place operations, views, dropout, comparisons, late constants: numbers stay the same, bytes never grow."""
    program, (x, weight) = drawn(seed), inputs()
    backend_ = backend()

    def outcome(run: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor, int, tuple[Tensor, ...]]:
        torch.manual_seed(9)
        loss = run(x, weight)
        kept = bytes_in_graph(loss, (x, weight))
        gradients = torch.autograd.grad(loss, (x, weight), allow_unused=True, materialize_grads=True)
        return loss.detach(), torch.rand(1), kept, gradients

    compiled = torch.compile(program, backend=backend_)
    try:
        loss, drawn_next, kept, gradients = outcome(program)
    except RuntimeError:  # a tensor that backward needs is changed in place
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            outcome(compiled)
        return
    loss_now, drawn_next_now, kept_now, gradients_now = outcome(compiled)
    assert not backend_.left
    assert torch.equal(loss_now, loss)
    assert torch.equal(drawn_next_now, drawn_next)
    assert kept_now <= kept
    near = 1e-10 * max(gradient.abs().max().item() for gradient in gradients)
    assert all(torch.allclose(*pair, rtol=0, atol=near) for pair in zip(gradients_now, gradients, strict=True))


def test_the_random_programs_have_regions() -> None:
    rewriting = backend()
    for seed in range(12):
        torch._dynamo.reset()
        torch.compile(drawn(seed), backend=rewriting)(*inputs())
    assert rewriting.regions >= 6


def test_constants_that_come_to_need_a_gradient_get_it() -> None:
    model, x = Model(buffers), torch.randn(6, 8, dtype=DOUBLE)
    module = traced(model, x)
    assert len([submodule for submodule in module.modules() if isinstance(submodule, RegionModule)]) == 1
    model.full.requires_grad_()
    expected, *gradients = (torch.autograd.grad(run(x).sum(), model.full)[0] for run in (model, module))
    assert torch.equal(gradients[0], expected)
