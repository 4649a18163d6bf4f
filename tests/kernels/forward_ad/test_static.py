"""Nested forward AD on graphs: the same numbers, the same random numbers, fewer bytes, and nothing moved that matters.

Losses must be equal bit for bit. Gradients are products of the same factors in another order: in float64 that is some
1e-16 for each factor, more where terms cancel, and 1e-10 of the largest gradient is far from both that and an error.
"""

import copy
import json
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kernels import saved_bytes
from kernels.errors import KernelError
from kernels.forward_ad import backend, exported, report, traced, wrap
from kernels.forward_ad.rewrite import Chain
from kernels.memory.zoo import build
from tests.kernels.forward_ad.chains import WRITTEN, mish, newgelu
from tests.kernels.forward_ad.graph_programs import drawn
from tests.kernels.forward_ad.programs import inputs
from tests.kernels.saved import bytes_in_graph

# What torch 2.13 and transformers warn of on their own account, whatever is traced and copied.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("afresh"),
    pytest.mark.filterwarnings("ignore:.*not a leaf Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
]
DOUBLE = torch.float64


class Rewritten:
    """A model by one of the front ends, and how many regions were replaced in it, once it has run."""

    def __init__(self, how: str, model: nn.Module, *sample: Tensor) -> None:
        self.backend = backend()
        if how == "compiled":
            self.module = torch.compile(model, backend=self.backend)
        else:
            self.module = exported(model, sample) if how == "exported" else traced(model, *sample)
        self.how = how

    @property
    def regions(self) -> int:
        if self.how == "compiled":
            assert not self.backend.left
            return self.backend.regions
        return len([one for one in self.module.modules() if isinstance(one, Chain)])


each_front_end = pytest.mark.parametrize("how", ["exported", "traced", "compiled"])


class Act(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


each_chain = pytest.mark.parametrize(("function", "plain", "nested"), WRITTEN.values(), ids=WRITTEN)


def in_units(model: nn.Module, x: Tensor, unit: int) -> float:
    """Bytes kept, less numbers of Python's, which are kept as tensors of one element."""
    return round(saved_bytes(model, x).total / unit, 2)


@each_chain
@each_front_end
def test_bytes_between_linear_layers(how: str, function: Callable[[Tensor], Tensor], plain: int, nested: int) -> None:
    model, x = nn.Sequential(nn.Linear(16, 32), Act(function), nn.Linear(32, 16)), torch.randn(64, 16)
    unit = 64 * 32 * 4
    assert in_units(model, x, unit) == plain
    rewritten = Rewritten(how, model, x)
    assert in_units(rewritten.module, x, unit) == nested
    assert rewritten.regions == (nested < plain)


@each_chain
def test_bytes_after_batch_norm_are_one_unit_more(
    function: Callable[[Tensor], Tensor], plain: int, nested: int
) -> None:
    """Its input."""
    layers = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), Act(function), nn.Conv2d(8, 3, 3, padding=1)
    model, x = nn.Sequential(*layers), torch.randn(2, 3, 32, 32)
    unit = 2 * 8 * 32 * 32 * 4
    assert in_units(model, x, unit) == plain + 1
    assert in_units(traced(model, x), x, unit) == nested + 1


class Model(nn.Module):
    """A function between two layers, with what it may ask for."""

    def __init__(self, function: Callable[["Model", Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8, dtype=DOUBLE), nn.Linear(8, 8, dtype=DOUBLE)
        self.weight = nn.Parameter(torch.rand(8, dtype=DOUBLE))
        self.register_buffer("row", torch.rand(8, dtype=DOUBLE))
        self.register_buffer("full", torch.rand(6, 8, dtype=DOUBLE))
        self.norm = nn.BatchNorm1d(8, dtype=DOUBLE)
        self.drop, self.in_place = nn.Dropout(0.3), nn.ReLU(inplace=True)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, self.first(x)))


def wave(x: Tensor) -> Tensor:
    """A chain that keeps two tensors besides what others keep."""
    return torch.exp(torch.sin(torch.cos(x)))


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


def end_changed_by_module(m: Model, h: Tensor) -> Tensor:
    y = torch.sin(mish(h)) + 1
    return y + m.in_place(y)


def end_changed_by_argument(m: Model, h: Tensor) -> Tensor:
    y = torch.sin(mish(h)) + 1
    return y + F.relu(y, True)


def end_changed_by_keyword(m: Model, h: Tensor) -> Tensor:
    y = torch.sin(mish(h)) + 1
    return y + F.elu(y, inplace=True)


def parameter(m: Model, h: Tensor) -> Tensor:
    return h * torch.sigmoid(h * m.weight)


def parameter_around(m: Model, h: Tensor) -> Tensor:
    return m.weight * wave(h) + m.weight


def buffers(m: Model, h: Tensor) -> Tensor:
    return mish(h * m.row) + m.full * torch.exp(torch.sin(h))


def two_sources(m: Model, h: Tensor) -> Tensor:
    return torch.tanh(h) * torch.sin(m.last(h))


def detached(m: Model, h: Tensor) -> Tensor:
    return h * torch.tanh(F.softplus(h)).detach() + wave(h)


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


def dropout(m: Model, h: Tensor) -> Tensor:
    return m.drop(torch.exp(torch.sin(h))) + torch.rand((), dtype=DOUBLE)


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


# How many regions are replaced where a graph says all that the function does.
REPLACED: dict[Callable[[Model, Tensor], Tensor], int] = {
    source_changed_before: 1,
    source_changed_by_index: 0,
    source_changed_through_a_view: 0,
    middle_changed: 0,
    constant_changed: 0,
    constant_changed_through_a_view: 0,
    constant_changed_by_out: 0,
    constant_is_a_statistic: 0,
    end_changed: 0,
    end_changed_by_index: 0,
    end_changed_by_module: 1,
    end_changed_by_argument: 1,
    end_changed_by_keyword: 1,
    parameter: 0,
    parameter_around: 1,
    buffers: 1,
    two_sources: 0,
    detached: 1,
    compared: 1,
    constant_made_late: 2,
    two_ends: 1,
    pieces: 1,
    no_gradient: 1,
    call_would_come_where_gradients_are_off: 2,
    autocast: 1,
    hook_within: 0,
    hook_on_source: 0,
    dropout: 1,
    dropout_would_pass_a_draw: 1,
    draw_would_pass_no_dropout: 1,
    dropouts_in_turn: 3,
}


# Writes by index, hooks, gradients and autocast turned on or off, and numbers that would be drawn once for all calls.
NOT_TRACED = {
    *(source_changed_by_index, end_changed_by_index, hook_within),
    *(
        hook_on_source,
        no_gradient,
        call_would_come_where_gradients_are_off,
        autocast,
        dropout,
        dropout_would_pass_a_draw,
        draw_would_pass_no_dropout,
    ),
}


def outcome(model: nn.Module, module: nn.Module, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What must be equal bit by bit, among it the next random number; and gradients, side by side."""
    torch.manual_seed(3)
    y = module(x)
    gradients = torch.autograd.grad(y.square().sum(), list(model.parameters()), allow_unused=True)
    kept = [y.detach(), torch.rand(1), *(one.clone() for one in model.buffers())]
    found = [p.new_zeros(p.shape) if g is None else g for p, g in zip(model.parameters(), gradients, strict=True)]
    return kept, found


def agree(how: str, model: nn.Module, x: Tensor) -> int:
    """Holds the rewritten model against the model, from the same state on; the number of regions."""
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    rewritten = Rewritten(how, model, x)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    exact, gradients = outcome(model, model, x)
    model.load_state_dict(before)
    exact_now, gradients_now = outcome(model, rewritten.module, x)
    assert all(map(torch.equal, exact_now, exact))
    near = 1e-10 * max(one.abs().max().item() for one in gradients)
    assert all(torch.allclose(*pair, rtol=0, atol=near) for pair in zip(gradients_now, gradients, strict=True))
    return rewritten.regions


@pytest.mark.parametrize(("function", "regions"), REPLACED.items(), ids=[one.__name__ for one in REPLACED])
@pytest.mark.parametrize("how", ["exported", "compiled"])
def test_same_numbers(how: str, function: Callable[[Model, Tensor], Tensor], regions: int) -> None:
    model, x = Model(function), torch.randn(6, 8, dtype=DOUBLE)
    if how == "exported" and function in (hook_within, hook_on_source):
        with pytest.raises(KernelError, match=r"torch.export takes, got RuntimeError: a hook"):
            exported(model, (x,))
    else:
        # An export has all that runs without gradients as one node, and chains go on behind it.
        whole = how == "exported" and function is call_would_come_where_gradients_are_off
        assert agree(how, model, x) == (1 if whole else regions)


@pytest.mark.parametrize("function", REPLACED, ids=[one.__name__ for one in REPLACED])
def test_same_numbers_or_not_traced(function: Callable[[Model, Tensor], Tensor]) -> None:
    model, x = Model(function), torch.randn(6, 8, dtype=DOUBLE)
    if function in NOT_TRACED:
        with pytest.raises(KernelError, match=r"^model must be one that torch.fx.symbolic_trace can follow, got "):
            traced(model, x)
    else:
        agree("traced", model, x)


@pytest.mark.parametrize("seed", range(100))
def test_random_programs(seed: int) -> None:
    """In-place operations, views, dropout, comparisons, constants made late: never another number, never more bytes."""
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
    near = 1e-10 * max(one.abs().max().item() for one in gradients)
    assert all(torch.allclose(*pair, rtol=0, atol=near) for pair in zip(gradients_now, gradients, strict=True))


def test_the_random_programs_have_regions() -> None:
    found = backend()
    for seed in range(12):
        torch._dynamo.reset()
        torch.compile(drawn(seed), backend=found)(*inputs())
    assert found.regions >= 6


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3, padding=1, dtype=DOUBLE), nn.BatchNorm2d(8, dtype=DOUBLE)
        self.act, self.drop, self.head = Act(mish), nn.Dropout(0.2), nn.Linear(8, 4, dtype=DOUBLE)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.act(self.norm(self.convolution(x)))).mean((2, 3)))


@each_front_end
def test_training_what_is_rewritten_trains_the_model(how: str) -> None:
    model, x = Network(), torch.randn(4, 3, 8, 8, dtype=DOUBLE)
    other = copy.deepcopy(model)
    rewritten = Rewritten(how, model, x)
    if how != "compiled":
        assert dict(rewritten.module.named_parameters()).keys() == dict(model.named_parameters()).keys()
    for module, owner in ((other, other), (rewritten.module, model)):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()
        assert owner.norm.num_batches_tracked == 3
    for name, one in other.state_dict().items():
        assert torch.allclose(one, model.state_dict()[name], rtol=0, atol=1e-12), name
    assert rewritten.regions == 1


def test_measuring_what_is_compiled_puts_statistics_back() -> None:
    model, x = Network(), torch.randn(4, 3, 8, 8, dtype=DOUBLE)
    before = copy.deepcopy(model.state_dict())
    assert saved_bytes(torch.compile(model, backend=backend()), x).total < saved_bytes(model, x).total
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_traced_models_change_their_mode_and_shapes() -> None:
    model, x = Network(), torch.randn(4, 3, 8, 8, dtype=DOUBLE)
    module = traced(model, x)
    module.eval()
    y = torch.randn(2, 3, 6, 6, dtype=DOUBLE)
    assert torch.equal(module(y), model(y))
    assert not model.norm.training


def test_exports_with_dynamic_shapes() -> None:
    model, x = Network(), torch.randn(4, 3, 8, 8, dtype=DOUBLE)
    model.eval()
    module = exported(model, (x,), dynamic_shapes=({0: torch.export.Dim("n", max=9)},))
    y = torch.randn(2, 3, 8, 8, dtype=DOUBLE)
    assert torch.equal(module(y), model(y))


@pytest.mark.slow
def test_compiled_with_dynamic_shapes() -> None:
    model, found = Network(), backend()
    module = torch.compile(model, backend=found, dynamic=True)
    for n in (4, 5):
        x = torch.randn(n, 3, 8, 8, dtype=DOUBLE)
        torch.manual_seed(n)
        y = module(x)
        torch.manual_seed(n)
        assert torch.equal(y, model(x))
    assert (found.graphs, found.regions, found.left) == (1, 1, [])


def test_graphs_may_break() -> None:
    def run(x: Tensor) -> Tensor:
        y = mish(x * 1)
        torch._dynamo.graph_break()
        return mish(y) @ y

    found, x = backend(), torch.randn(4, 4, dtype=DOUBLE, requires_grad=True)
    assert torch.equal(torch.compile(run, backend=found)(x), run(x))
    assert found.graphs == 2
    assert 1 <= found.regions <= 2


def test_a_graph_that_cannot_be_observed_is_left() -> None:
    def run(x: Tensor) -> Tensor:
        return mish(x) * x.sum().item()

    found, x = backend(), torch.randn(4, 4, dtype=DOUBLE, requires_grad=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        assert torch.equal(torch.compile(run, backend=found)(x), run(x))


def test_constants_that_come_to_need_a_gradient_get_it() -> None:
    model, x = Model(buffers), torch.randn(6, 8, dtype=DOUBLE)
    module = traced(model, x)
    assert len([one for one in module.modules() if isinstance(one, Chain)]) == 1
    model.full.requires_grad_()
    expected, *found = (torch.autograd.grad(run(x).sum(), model.full)[0] for run in (model, module))
    assert torch.equal(found[0], expected)


def test_constants_that_come_to_be_larger_than_the_source() -> None:
    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4, dtype=DOUBLE)

        def forward(self, x: Tensor, factor: Tensor) -> Tensor:
            return torch.exp(torch.sin(torch.cos(self.first(x)) * factor))

    model = Spread()
    module = traced(model, torch.randn(3, 4, dtype=DOUBLE), torch.randn(3, 4, dtype=DOUBLE))
    x, factor = torch.randn(1, 4, dtype=DOUBLE), torch.randn(3, 4, dtype=DOUBLE)
    expected, found = (
        torch.autograd.grad(run(x, factor).square().sum(), list(model.parameters())) for run in (model, module)
    )
    assert len([one for one in module.modules() if isinstance(one, Chain)]) == 1
    assert all(torch.allclose(*pair, rtol=1e-12) for pair in zip(found, expected, strict=True))


class Returning(nn.Module):
    """Gives what stands in the midst of a chain, too."""

    def __init__(self, retaining: bool) -> None:
        super().__init__()
        self.first, self.retaining = nn.Linear(4, 4, dtype=DOUBLE), retaining

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        middle = wave(self.first(x))
        if self.retaining:
            middle.retain_grad()
        return wave(middle), middle * 1 if self.retaining else middle


@each_front_end
def test_the_gradient_of_a_result_in_the_midst(how: str) -> None:
    model, x = Returning(retaining=False), torch.randn(3, 4, dtype=DOUBLE)
    found = []
    for module in (model, Rewritten(how, model, x).module):
        y, middle = module(x)
        found.append(torch.autograd.grad(y.square().sum() + middle.sum(), middle)[0])
    assert torch.allclose(*found, rtol=1e-12)


def test_a_gradient_retained_in_the_midst() -> None:
    model, x = Returning(retaining=True), torch.randn(3, 4, dtype=DOUBLE)
    module = traced(model, x)
    (retaining,) = (node for node in module.graph.nodes if node.target == "retain_grad")
    assert retaining.args[0].name == "exp"  # as it was, and no region's result


def test_what_is_spread_out_is_a_source_of_its_own() -> None:
    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(16, 1), nn.Linear(32, 8)
            self.register_buffer("row", torch.rand(32))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(wave(self.first(x) * self.row))

    model, x = Spread(), torch.randn(64, 16)
    unit = 64 * 32 * 4
    assert in_units(model, x, unit) == 3
    assert in_units(traced(model, x), x, unit) == 2


def test_without_gradients_a_region_runs_as_it_is() -> None:
    model, x = Network(), torch.randn(4, 3, 8, 8, dtype=DOUBLE)
    module = traced(model, x)
    with torch.no_grad():
        torch.manual_seed(2)
        y = module(x)
        torch.manual_seed(2)
        assert torch.equal(y, model(x))
    assert not y.requires_grad


def test_a_second_derivative_is_refused() -> None:
    model, x = Model(lambda _, h: wave(h)), torch.randn(6, 8, dtype=DOUBLE)
    (gradient,) = torch.autograd.grad(traced(model, x)(x).sum(), model.first.weight, create_graph=True)
    with pytest.raises(KernelError, match="differentiated once"):
        torch.autograd.grad(gradient.sum(), model.first.weight)


def test_copies_and_pickles() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), Swish(), nn.Linear(8, 8)), torch.randn(6, 8)
    module = traced(model, x)
    for other in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        copy.deepcopy(exported(model, (x,))),  # torch cannot pickle an export's module
    ):
        assert len([one for one in other.modules() if isinstance(one, Chain)]) == 1
        assert torch.equal(other(x), model(x))


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (lambda: traced(torch.tanh), r"model must be a torch.nn.Module, got builtin_function_or_method"),
        (lambda: exported(torch.tanh, ()), r"model must be a torch.nn.Module, got builtin_function_or_method"),
        (lambda: exported(Network(), torch.randn(1)), r"args must be a tuple .* got Tensor"),
        (lambda: exported(Network(), (torch.randn(1),), [1]), r"kwargs must be a mapping, got list"),
        (lambda: exported(nn.DataParallel(Network()), ()), r"before it is wrapped, got DataParallel"),
        (lambda: traced(torch.compile(Network())), r"before it is wrapped, got OptimizedModule"),
        (
            lambda: traced(Branching(), torch.randn(1)),
            r"symbolic_trace can follow, got TraceError.* use forward_ad",
        ),
        (lambda: exported(Branching(), (torch.randn(1),)), r"torch.export takes, got .*; try torch.compile\("),
        (lambda: traced(Network()), r"sample must be what the model is called with, x, got 0 values"),
        (lambda: traced(Network(), torch.randn(2)), r"model must run on fake tensors, .* got RuntimeError"),
    ],
)
def test_refusals(attempt: Callable[[], object], says: str) -> None:
    with pytest.raises(KernelError, match=says) as caught:
        attempt()
    assert "\n" not in str(caught.value)


@pytest.fixture(params=["gpt2", "bert"])
def transformer(request: pytest.FixtureRequest) -> tuple[nn.Module, dict[str, Tensor]]:
    pytest.importorskip("transformers")
    small = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    if request.param == "gpt2":
        small |= {"n_positions": 32, "bos_token_id": 0, "eos_token_id": 1}
    else:
        small |= {"intermediate_size": 128}
    model, _, given = build(request.param, batch=2, seq=16, act="gelu_new", **small)
    return model.double(), given


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exported", "compiled"])
def test_transformers(transformer: tuple[nn.Module, dict[str, Tensor]], how: str) -> None:
    """New GELU keeps five tensors, and one when rewritten, besides what the layer after it keeps."""
    model, given = transformer
    found = backend()
    module = exported(model, (), given) if how == "exported" else torch.compile(model, backend=found)
    runs = []
    for one in (model, module):
        torch.manual_seed(4)
        loss = one(**given)[0].square().mean()
        runs.append((loss, torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)))
    (loss, gradients), (loss_now, gradients_now) = runs
    assert torch.equal(loss, loss_now)
    near = 1e-10 * max(one.abs().max().item() for one in gradients if one is not None)
    for one, now in zip(gradients, gradients_now, strict=True):
        assert (one is None) == (now is None)
        assert one is None or torch.allclose(one, now, rtol=0, atol=near)
    unit = 2 * 16 * 4 * 32 * 8
    saved = saved_bytes(model, **given).total - saved_bytes(module, **given).total
    assert 2 * 3 * unit <= saved <= 2 * 3 * unit + unit // 4  # in each layer; and dropout in the pooler


def test_transformers_cannot_be_traced(transformer: tuple[nn.Module, dict[str, Tensor]]) -> None:
    model, given = transformer
    with pytest.raises(KernelError, match=r"symbolic_trace can follow, got .*use forward_ad.exported\(model, args\)"):
        traced(model, *given.values())


@pytest.mark.slow
def test_report_side_by_side() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), Act(newgelu), nn.Linear(64, 64)), torch.randn(1024, 64)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = report(model, x)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert "forward" not in vars(model)
    units = {way.name: round((way.kept or 0) / x.nbytes, 1) for way in found.ways}
    assert units == {
        "plain": 5,
        "nested, eager": 2,
        "nested, traced": 2,
        "nested, exported": 2,
        "nested, compiled": 2,
        "the same chains checkpointed": 2,  # and the state of the random numbers
        "torch.compile's partitioner": units["torch.compile's partitioner"],
    }
    assert found["nested, exported"].chains == found["nested, compiled"].chains == 1
    assert "| plain |  | 1.2 MiB | 100.0% |" in str(found)
    assert json.loads(found.to_json())[0] == {"name": "plain", "kept": 5 * x.nbytes, "chains": None, "reason": ""}


def test_report_says_who_cannot_take_a_model() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.branching = nn.Linear(64, 64), Branching()

        def forward(self, x: Tensor, *, factor: float) -> Tensor:
            return mish(self.branching(self.first(x))) * factor

    found = report(Odd(), torch.randn(1024, 64), factor=2.0)
    assert found["nested, traced"].reason.startswith("cannot be traced: inputs must be positional")
    assert found["nested, exported"].reason.startswith("cannot be exported: model must be one that torch.export takes")
    assert found["nested, compiled"].kept == found["nested, eager"].kept < found["plain"].kept
    assert "cannot be exported" in str(found)
    with pytest.raises(KernelError, match=r"model must be a torch.nn.Module"):
        report(torch.tanh, torch.randn(3))


class Rounded(torch.autograd.Function):
    """A backward of its own: as if nothing had been rounded."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


class Written(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return mish(x)


class WithOwnBackward(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        rounded: Tensor = Rounded.apply(mish(self[0](x)))
        return self[1](rounded)


def two_layers(kind: type[nn.Sequential] = nn.Sequential) -> nn.Sequential:
    return kind(nn.Linear(8, 8), nn.Linear(8, 1))


def test_a_backward_of_its_own_is_not_left_out_in_silence() -> None:
    model, x = two_layers(WithOwnBackward), torch.randn(4, 8)
    with pytest.raises(KernelError, match=r"Rounded, whose backward would be left out; try torch.compile"):
        exported(model, (x,))
    with pytest.raises(KernelError, match=r"torch.fx.symbolic_trace can follow"):
        traced(model, x)
    plain = torch.autograd.grad(model(x).sum(), model[0].weight)[0]
    compiled = torch.compile(model, backend=backend())
    assert torch.equal(torch.autograd.grad(compiled(x).sum(), model[0].weight)[0], plain)
    assert plain.abs().sum() > 0


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_are_not_left_out_in_silence(register: str) -> None:
    model, x = two_layers(), torch.randn(4, 8)
    getattr(model[0], register)(lambda *_: None)
    for make in (lambda: exported(model, (x,)), lambda: traced(model, x)):
        with pytest.raises(KernelError, match="a backward hook on 0, which would be left out"):
            make()


def test_hooks_on_the_model_are_not_left_out_in_silence() -> None:
    model, x = two_layers(), torch.randn(4, 8)
    model.register_forward_hook(lambda module, args, output: output * 2)
    with pytest.raises(KernelError, match="a hook on the model, which would be left out"):
        traced(model, x)


def test_code_that_depends_on_the_mode_is_not_frozen_in_silence() -> None:
    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(mish(super().forward(x)), 0.5, self.training)

    model = Own(8, 8)
    with pytest.raises(KernelError, match=r"depends on self\.training, which would stay as it is now"):
        traced(model, torch.randn(4, 8))
    assert model.training


class Linears(TorchFunctionMode):
    """Counts calls of F.linear."""

    count = 0

    def __torch_function__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        self.count += func is F.linear
        return func(*args, **(kwargs or {}))


def test_checkpointed_regions_run_once_in_forward() -> None:
    """And keep nothing of what is within: packing is none of their business."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(8, 8), Written())]
    module = traced(nn.Sequential(*layers), torch.randn(4, 8))
    x = torch.randn(4, 8, requires_grad=True)
    with Linears() as linears:
        y = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
    assert linears.count == 4
    (expected,) = torch.autograd.grad(module(x).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], expected)
    kept = saved_bytes(lambda x: torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False), x)
    assert [one.bytes for one in kept.tensors if one.dtype == "float32"] == []


def test_transforms_of_torch_func() -> None:
    module = traced(nn.Sequential(nn.Linear(8, 8), Written(), nn.Linear(8, 1)), torch.randn(4, 8))
    x = torch.randn(4, 8)
    expected = torch.autograd.grad(module(probe := x.clone().requires_grad_()).sum(), probe)[0]
    torch.testing.assert_close(torch.func.grad(lambda x: module(x).sum())(x), expected)


def test_a_backend_that_is_not_called() -> None:
    with pytest.raises(Exception, match=r"backend must be called without arguments"):
        torch.compile(nn.Linear(2, 2), backend=backend)(torch.randn(1, 2))


def test_a_report_of_what_is_wrapped() -> None:
    with pytest.raises(KernelError, match="got one that is wrapped; unwrap it"):
        report(wrap(nn.Linear(2, 2)), torch.randn(1, 2))
