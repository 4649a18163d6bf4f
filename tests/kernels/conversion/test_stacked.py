"""Changes to one module stack, and are undone in reverse order; what compilers, tracers and reports say of them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import convert, saved_bytes
from kernels.approx_backprop.forwards import Approximate
from kernels.conversion.calls import ReroutedForward
from kernels.errors import KernelError
from kernels.forward_ad import unwrap, wrap
from kernels.forwarding import installed_forwards
from kernels.methods.compressed import Compressed
from tests.kernels.conversion.models import reasons
from tests.tiers import in_ci

WIDTH = 32


class GatedRMSNorm(nn.Module):
    """As Mamba 2, Bamba and GraniteMoeHybrid write it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(WIDTH)), 1e-6

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        dtype, x = x.dtype, x.float()
        if gate is not None:
            x = x * F.silu(gate.float())
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)).to(dtype)


class Mixer(nn.Module):
    def __init__(self, gated: bool) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(WIDTH, WIDTH), GatedRMSNorm(), nn.Linear(WIDTH, WIDTH)
        self.gated = gated

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        return self.down(self.norm(h, x) if self.gated else self.norm(h))


def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(16, WIDTH, requires_grad=True)


def forwards(net: nn.Module) -> list[Any]:
    return [vars(module).get("forward") for module in net.modules()]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("looks", [False, True])
def test_a_norm_that_calls_its_gates_activation(gated: bool, bits: int, looks: bool) -> None:
    net, inputs = Mixer(gated), x()
    text, y = repr(net), net(inputs)
    report = convert(net, "approx-backprop", bits=bits, inputs=inputs if looks else None)
    ours = net(inputs)
    # The gate's silu by our kernel is the stock function's bit for bit in small tensors (docs/support.md).
    assert torch.equal(ours, y)
    ours.sum().backward()
    stacked, _ = installed_forwards(net.norm)
    if not looks:
        assert [type(forward) for forward in stacked] == [Approximate, ReroutedForward]
    elif gated:
        assert [type(forward) for forward in stacked] == [ReroutedForward]
        assert "not called by one tensor alone" in reasons(report)["norm"]
    else:
        assert [type(forward) for forward in stacked] == [Approximate]
    report.revert()
    assert forwards(net) == [None] * 4
    assert repr(net) == text
    assert torch.equal(net(inputs), y)


def test_conversions_of_one_module_one_after_another() -> None:
    net, inputs = Mixer(gated=False), x()
    first = convert(net, "approx-backprop", include="norm", exclude="norm.silu()")
    middle = forwards(net)
    second = convert(net, "fewbit")
    assert [type(forward) for forward in installed_forwards(net.norm)[0]] == [ReroutedForward, Approximate]
    again = convert(net, "approx-backprop", include="norm")
    assert set(reasons(again)) >= {"norm", "norm.silu()"}
    assert not again.converted
    net(inputs).sum().backward()
    second.revert()
    assert forwards(net) == middle
    first.revert()
    assert forwards(net) == [None] * 4


def test_undone_in_another_order_is_refused_with_the_name() -> None:
    net = Mixer(gated=False)
    first = convert(net, "approx-backprop", include="norm", exclude="norm.silu()")
    convert(net, "fewbit")
    with pytest.raises(KernelError, match="norm must be as convert left it, but its forward was replaced since"):
        first.revert()


def test_a_wrapped_module_keeps_what_stood_there() -> None:
    net = Mixer(gated=False)
    report = convert(net.norm, "fewbit")
    before = forwards(net)
    unwrap(wrap(net.norm))
    assert forwards(net) == before
    report.revert()


# torch.compile, torch.fx, torch.jit


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Mlp(), Mlp()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


KINDS = {"Mlp": Mlp, "LayerNorm": lambda: nn.LayerNorm(WIDTH), "Linear": lambda: nn.Linear(WIDTH, WIDTH)}
OF_KINDS = [(kind, dynamic, bits) for kind in KINDS for dynamic, bits in ((True, (8,)), (None, (8, 4)))]


# An Mlp has the others; each of them by itself is shown for one value of `dynamic`.
SHOWN = (("LayerNorm", None), ("Linear", True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "dynamic", "bits"),
    in_ci(OF_KINDS, lambda case: case[0] == "Mlp" or case[:2] in SHOWN),
)
def test_options_are_constants_to_the_compiler(kind: str, dynamic: bool | None, bits: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    for count in bits:
        torch.manual_seed(0)
        net = KINDS[kind]()
        convert(net, "approx-backprop", bits=count)
        compiled = torch.compile(net, backend="aot_eager", dynamic=dynamic)
        for rows in (16, 11):
            inputs = torch.randn(rows, WIDTH, requires_grad=True)
            exact = torch.autograd.grad(net(inputs).sin().sum(), list(net.parameters()))
            got = torch.autograd.grad(compiled(inputs).sin().sum(), list(net.parameters()))
            for gradient, other in zip(got, exact, strict=True):  # other bits would be off by percents
                torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("method", "bits"), [("invact", None), ("fewbit", None), ("approx-backprop", 4)])
def test_fx_traces_calls_in_submodules_as_calls_of_ours(method: str, bits: int | None) -> None:
    net, inputs = Stack(), x()
    convert(net, method, bits=bits)
    graph = torch.fx.symbolic_trace(net)
    names = [node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"]
    assert names.count("activation") == 2
    assert "gelu" not in names
    assert torch.equal(graph(inputs), net(inputs))
    (got,), (expected,) = (torch.autograd.grad(run(inputs).sin().sum(), inputs) for run in (graph, net))
    assert torch.equal(got, expected)


@pytest.mark.parametrize("conversion", ["invact", "approx-backprop", "wrapped", "module"])
def test_scripting_a_converted_model_says_the_way_out(conversion: str) -> None:
    net: nn.Module = Stack()
    if conversion == "wrapped":
        wrap(net)
    elif conversion == "module":
        net = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        convert(net, "invact")
    else:
        convert(net, conversion)
    with pytest.raises(KernelError, match=r"report\.revert\(\) or unwrap first") as error:
        torch.jit.script(net)
    assert "\n" not in str(error.value)


# What convert and saved_bytes are given


def test_a_module_without_forward_is_refused_where_it_would_run() -> None:
    layers = nn.ModuleList([nn.Linear(4, 4), nn.GELU()])
    for run in (lambda: convert(layers, inputs=x()), lambda: saved_bytes(layers, x())):
        with pytest.raises(KernelError, match=r"model must have a forward.*got ModuleList") as error:
            run()
        assert "\n" not in str(error.value)
    assert len(convert(layers, "invact").converted) == 1


class Named(nn.Module):
    def forward(self, values: Tensor, scale: Tensor | None = None) -> Tensor:
        return F.gelu(values if scale is None else values * scale)


class Batched(nn.Module):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return F.gelu(batch["values"])


def test_bytes_are_counted_of_what_convert_takes_as_inputs() -> None:
    given = {"values": x() + 1}
    assert saved_bytes(Named(), given).total == saved_bytes(Named(), **given).total
    assert convert(Named(), "invact", inputs=given).before is not None
    assert saved_bytes(Batched(), given).by_operation() == {}  # gelu keeps an input, no activation
    assert saved_bytes(Batched(), given).inputs == 4 * 16 * WIDTH
    assert saved_bytes(Named(), given).inputs == 4 * 16 * WIDTH


# Activations that a module holds otherwise than as a module or an attribute


class Holding(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.a, self.b, self.held = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), held
        self.other = F.gelu

    def forward(self, x: Tensor) -> Tensor:
        act = next(iter(self.held.values())) if isinstance(self.held, dict) else self.held
        act = act[0] if isinstance(act, list) else act
        return self.b(act(self.other(self.a(x))))


HELD = {
    "dictionary": {"act": F.gelu},
    "list": [F.gelu],
    "module in a list": [nn.GELU()],
    "lambda": lambda z: F.gelu(z),
    "partial of another function": {"act": lambda z: F.gelu(z)},
}


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("name", HELD)
def test_activations_held_in_lists_dictionaries_and_lambdas_are_found(name: str, looks: bool) -> None:
    net, inputs = Holding(HELD[name]), x()
    report = convert(net, "fewbit", inputs=inputs if looks else None)
    assert {site.name for site in report.converted} == {"other", "gelu()"}
    assert not report.left
    # Two codes of 3 bits; their input and result is kept by linear layers, whose own that is.
    assert saved_bytes(net, inputs).by_operation()["gelu, fewbit"] == 2 * 3 * 16 * WIDTH // 8
    report.revert()
    assert "gelu, fewbit" not in saved_bytes(net, inputs).by_operation()


def help_out(z: Tensor) -> Tensor:
    return F.gelu(z)


def test_a_helpers_call_is_listed_where_the_function_is_a_site_elsewhere() -> None:
    class Helped(Holding):
        def forward(self, x: Tensor) -> Tensor:
            return self.b(help_out(self.other(self.a(x))))

    report = convert(Helped(None), "fewbit", inputs=x())
    assert [site.name for site in report.converted] == ["other"]
    assert "called where convert does not look" in reasons(report)["gelu()"]


# Why nothing is saved, and orders of conversion


class Gated(nn.Module):
    """As Phi 3 and Mixtral's experts have it: both halves are views of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        gate, values = self.up(x).chunk(2, -1)
        return self.down(values * self.act(gate))


@pytest.mark.parametrize(
    ("net", "who"),
    [
        (nn.Sequential(Gated()), "0 (mul)"),
        (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)), "2 (linear)"),
    ],
)
def test_auto_says_who_else_keeps_it(net: nn.Module, who: str) -> None:
    report = convert(net, inputs=x())
    (reason,) = reasons(report).values()
    assert reason.endswith(f"what it saves is saved by {who.replace('2 (', '* (').replace('0 (', '* (')}, too")


class Tanh(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


def test_auto_gains_in_a_wrapped_model_as_before_it_is_wrapped() -> None:
    totals = []
    for order in ((wrap, convert), (convert, wrap)):
        net = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), Tanh(), nn.Linear(4 * WIDTH, WIDTH))
        for step in order:
            _ = wrap(net, min_numel=0) if step is wrap else convert(net, inputs=x())
        totals.append(saved_bytes(net, x()).total)
    assert totals[0] == totals[1]
    stock = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), Tanh(), nn.Linear(4 * WIDTH, WIDTH))
    assert totals[0] < saved_bytes(wrap(stock, min_numel=0), x()).total


def test_layers_added_to_a_converted_model_are_converted_by_converting_again() -> None:
    class Adapted(nn.Module):
        """As PEFT's LoRA has it."""

        def __init__(self, base: nn.Module) -> None:
            super().__init__()
            self.base, self.a, self.b = base.requires_grad_(False), nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.b(self.a(x))

    def adapted(net: nn.Module) -> nn.Module:
        net[1] = Adapted(net[1])
        return net

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))

    before = adapted(model())
    convert(before, "approx-backprop")
    after = model()
    convert(after, "approx-backprop")
    adapted(after)
    alone = saved_bytes(after, x()).total
    assert [site.name for site in convert(after, "approx-backprop").converted] == ["1.a", "1.b"]
    assert saved_bytes(after, x()).total == saved_bytes(before, x()).total < alone


def test_a_copy_of_options_goes_with_a_copy_of_the_module() -> None:
    norm = nn.LayerNorm(4)
    forward = Approximate(norm, Compressed(bits=5))
    assert forward.options.method.bits == 5
    assert list(norm.named_modules()) == [("", norm)]
