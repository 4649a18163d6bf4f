"""Methods compiled to plain operations: which ones, the tensors saved for backward, and the ops' results."""

from collections.abc import Callable

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import checkpoint

import actfit
from actfit import functional, saved_bytes
from actfit.kernels.activation import activation
from actfit.kernels.generated.functions import FUNCTIONS

pytestmark = pytest.mark.usefixtures("afresh")

TRACED = {
    "invact": {"method": "invact"},
    "fewbit-1": {"method": "fewbit", "bits": 1},
    "fewbit-3": {"method": "fewbit", "bits": 3},
    "fewbit-4": {"method": "fewbit", "bits": 4},
    "fewbit-5": {"method": "fewbit", "bits": 5},
    "fewbit-8": {"method": "fewbit", "bits": 8},
    "forward-ad": {"method": "forward-ad"},
    "invact-precision-bit": {"method": "invact-precision-bit"},
}
TWO_BITS = {"method": "invact", "bits": 2}  # for 16 bits; plain in bfloat16
OF_EACH_KIND = ("invact", "fewbit-3", "fewbit-5", "forward-ad", "invact-precision-bit")
SPECIAL = [0.0, -0.0, torch.nan, torch.inf, -torch.inf, 1e-40, -1e-40, 3e38, -3e38, 1e-45]
SPECIAL += [65504.0, -65504.0, 88.0, -88.0]


class Graphs:
    """A backend that runs graphs unchanged, and records them."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.backend = aot_autograd(
            fw_compiler=self._seen, bw_compiler=self._seen, partition_fn=min_cut_rematerialization_partition
        )

    def _seen(self, graph: torch.fx.GraphModule, _: object) -> Callable:
        self.graphs.append(graph)
        return make_boxed_func(graph.forward)

    def ours(self) -> set[str]:
        """The ops of this project in the graphs."""
        calls = (node for graph in self.graphs for node in graph.graph.nodes if node.op == "call_function")
        return {str(node.target) for node in calls if "actfit" in str(node.target)}


def both_passes(run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    y = run(x)
    cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, x, cotangent)]


def same(got: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.allclose(*pair, rtol=0, atol=0, equal_nan=True) for pair in zip(got, expected, strict=True))


def as_by_ops(
    run: Callable[[Tensor], Tensor], x: Tensor, options: dict, rounded: float = 0.0, **compile_options: object
) -> bool:
    """Whether results are the ops' bit for bit; gradients by formulas in y, which the ops compute differently, closely.

    A formula of some twenty operations moves f' by 2**-19 at most in float32, on each side. Gradients are sums of f'
    times numbers whose sum is below 8 here; `rounded` is eps of a narrower intermediate dtype, if there is one.
    """
    compiled, plain = both_passes(torch.compile(run, backend="aot_eager", **compile_options), x), both_passes(run, x)
    if [tensor.stride() for tensor in compiled] != [tensor.stride() for tensor in plain]:
        return False
    if not options.get("method", "invact").startswith("invact"):
        return same(compiled, plain)
    rounded = max(rounded, torch.finfo(x.dtype).eps)
    gradients = torch.allclose(compiled[1], plain[1], rtol=2 * rounded, atol=8 * 2 * 2.0**-19 + rounded, equal_nan=True)
    return same(compiled[:1], plain[:1]) and gradients


@pytest.mark.parametrize(
    ("options", "dtype", "opaque"),
    [
        (TRACED["forward-ad"], torch.float32, False),
        (TWO_BITS, torch.bfloat16, False),
        *((options, torch.float16, True) for options in (TRACED["invact-precision-bit"], TWO_BITS)),
    ],
)
def test_which_are_plain_operations(options: dict, dtype: torch.dtype, opaque: bool) -> None:
    seen, x = Graphs(), torch.randn(16, 8, dtype=dtype, requires_grad=True)
    both_passes(torch.compile(actfit.nn.GELU(**options), backend=seen.backend), x)
    assert len(seen.graphs) == 2
    assert bool(seen.ours()) == opaque


def numbers(dtype: torch.dtype) -> Tensor:
    return torch.cat([torch.tensor(SPECIAL, dtype=dtype), 3 * torch.randn(1009).to(dtype)]).requires_grad_()


@pytest.mark.slow
@pytest.mark.parametrize("options", [TRACED["invact"], TRACED["fewbit-3"], TRACED["forward-ad"]])
def test_every_function_gives_what_the_ops_give(options: dict) -> None:
    """Special values included. Tables of more than 4 bits are those of `test_cells`."""
    functions = [name for name, info in FUNCTIONS.items() if options["method"] != "fewbit" or info.bounded_derivative]

    def run(x: Tensor) -> Tensor:
        rows = zip(functions, x.unbind(), strict=True)
        return torch.stack([activation(function, row, **options) for function, row in rows])

    assert as_by_ops(run, numbers(torch.float32).detach().repeat(len(functions), 1).requires_grad_(), options)


# Each kind in a narrow and a wide dtype, each dtype by two kinds or more.
WIDE, NARROW = (torch.float64, torch.float32), (torch.bfloat16, torch.float16)


@pytest.mark.slow
@pytest.mark.parametrize("width", ["narrow", "wide"])
@pytest.mark.parametrize("kind", OF_EACH_KIND)
def test_special_values(kind: str, width: str) -> None:
    options, place = TRACED[kind], OF_EACH_KIND.index(kind) % 2
    assert as_by_ops(actfit.nn.GELU(**options), numbers((NARROW if width == "narrow" else WIDE)[place]), options)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["gelu", "silu", "hardswish"])
def test_two_bits(function: str) -> None:
    assert as_by_ops(lambda x: activation(function, x, **TWO_BITS), numbers(torch.bfloat16), TWO_BITS)


@pytest.mark.slow
def test_inductor_stores_which_way_was_rounded() -> None:
    """It leaves out rounding between operations; by that nothing would be rounded, and f' be as wrong as by one bit,
    whose root mean square error is a quarter more, or more than that."""
    x = torch.randn(64, 1024, dtype=torch.bfloat16, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    nn.functional.gelu(exact).sum().backward()

    def error(run: Callable[[Tensor], Tensor]) -> float:
        y = run(x)
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
        return float((gradient.double() - exact.grad).square().mean().sqrt())

    assert error(torch.compile(actfit.nn.GELU(**TWO_BITS))) < 1.02 * error(actfit.nn.GELU(**TWO_BITS))
    assert 1.2 * error(actfit.nn.GELU(**TWO_BITS)) < error(actfit.nn.GELU())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_inductor_marks_outputs(dtype: torch.dtype) -> None:
    """Zeros of both signs and infinities have the mark that the op gives them, bit for bit."""
    x = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 3.0, -3.0, 1e-7, -1e-7] * 5, dtype=dtype, requires_grad=True)
    net = actfit.nn.Hardswish(method="invact-precision-bit")  # no function in it is approximated
    compiled, plain = both_passes(torch.compile(net), x), both_passes(net, x)
    assert torch.equal(compiled[0].view(torch.uint8), plain[0].view(torch.uint8))
    assert torch.allclose(compiled[1], plain[1], rtol=torch.finfo(dtype).eps, atol=2.0**-19)


@pytest.mark.slow
@pytest.mark.parametrize("options", [TRACED["invact"], TRACED["fewbit-5"]])
def test_any_shape_and_strides(options: dict) -> None:
    net = actfit.nn.GELU(**options)
    images = torch.randn(2, 8, 5, 6).to(memory_format=torch.channels_last)
    sizes = ((), (0, 8), (3, 0), (7,), (8,), (3, 5, 24))
    for x in (*map(torch.randn, sizes), images, torch.randn(6, 40)[:, ::2], torch.randn(16).expand(4, 16)):
        torch._dynamo.reset()
        assert as_by_ops(net, x.requires_grad_(), options, dynamic=False), x.shape


@pytest.mark.slow
# Of width 5, bits are padded for some numbers of rows; of width 24, for none.
@pytest.mark.parametrize(("kind", "width"), [*((kind, 5) for kind in OF_EACH_KIND), ("invact", 24)])
def test_a_number_of_rows_that_varies(kind: str, width: int) -> None:
    """Compiled once, whether 8 divides the number of elements or not."""
    options = TRACED[kind]
    net = actfit.nn.GELU(**options)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    for rows in (6, 9, 16, 33):
        x = torch.randn(rows, width, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 0)
        with torch.compiler.set_stance("default" if rows == 6 else "fail_on_recompile"):
            for got, expected in zip(both_passes(compiled, x), both_passes(net, x), strict=True):
                # torch's vector and scalar code differ in the last bits, and which runs depends on the padding
                assert torch.allclose(got, expected, rtol=0, atol=0 if options["method"] == "fewbit" else 1e-6)


@pytest.mark.parametrize(
    ("options", "bits", "dtype"),
    [
        (TRACED["invact"], 1, torch.float32),
        (TRACED["invact-precision-bit"], 0, torch.bfloat16),
        *((TRACED[f"fewbit-{bits}"], bits, torch.float32) for bits in (1, 3, 5)),
        (TRACED["fewbit-8"], 8, torch.bfloat16),
    ],
)
def test_the_codes_cross_and_nothing_else(options: dict, bits: int, dtype: torch.dtype) -> None:
    """With torch's partitioner: the hidden tensor is saved for the next layer, the input of GELU is not saved."""
    net = nn.Sequential(nn.Linear(16, 64), actfit.nn.GELU(**options), nn.Linear(64, 16)).to(dtype)
    x, seen = torch.randn(40, 16, dtype=dtype), Graphs()
    compiled = torch.compile(net, backend=seen.backend)
    assert saved_bytes(compiled, x).total == 40 * 64 * dtype.itemsize + bits * 40 * 64 // 8
    assert not seen.ours()


@pytest.mark.slow
@pytest.mark.parametrize(("options", "bits"), [(TRACED["invact-precision-bit"], 0), (TWO_BITS, 2)])
def test_inductor_saves_no_bits_of_numbers(options: dict, bits: int) -> None:
    """Its own partitioner, after it has removed views of views, saves y and the planes."""
    net = nn.Sequential(nn.Linear(16, 64), actfit.nn.GELU(**options), nn.Linear(64, 16)).bfloat16()
    assert saved_bytes(torch.compile(net), torch.randn(40, 16).bfloat16()).total == 40 * 64 * 2 + bits * 40 * 64 // 8


# One way up to 4 bits, another above; the shape is padded for all alike.
@pytest.mark.slow
@pytest.mark.parametrize(("bits", "shape"), [(4, (40, 24)), (8, (40, 24)), (3, (7, 5))])
def test_inductor_decodes_what_it_encoded(bits: int, shape: tuple[int, int]) -> None:
    """f' from few bits is not rounded, so gradients are the ops' bit for bit."""
    options = TRACED[f"fewbit-{bits}"]
    net, x = actfit.nn.GELU(**options), torch.randn(shape, requires_grad=True)
    compiled, plain = both_passes(torch.compile(net), x), both_passes(net, x)
    assert torch.equal(compiled[1], plain[1])


@pytest.mark.slow
@pytest.mark.parametrize("options", [TRACED["invact"], TRACED["fewbit-3"]])
def test_checkpointed_in_compiled_code(options: dict) -> None:
    net = nn.Sequential(nn.Linear(8, 24), actfit.nn.GELU(**options), nn.Linear(24, 8))
    assert as_by_ops(lambda x: checkpoint(net, x, use_reentrant=False), torch.randn(5, 8, requires_grad=True), options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("options", [TRACED["fewbit-5"], TRACED["forward-ad"]])
def test_autocast_and_graph_breaks(options: dict) -> None:
    net = nn.Sequential(nn.Linear(8, 24), actfit.nn.GELU(**options), nn.Linear(24, 8))

    def run(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = net(x)
        torch._dynamo.graph_break()
        return functional.silu(hidden.float(), **options)

    assert as_by_ops(run, torch.randn(5, 8, requires_grad=True), options, torch.finfo(torch.bfloat16).eps)


class GatedNet(nn.Module):
    """Two linear layers, a gate, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(16, 64), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(actfit.functional.swiglu(self.gate(x), self.up(x)))


def with_act_linear(bits: int | None) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), actfit.nn.ActLinear("gelu", nn.Linear(64, 16), bits=bits))


# With the bits of a hidden element that cross into backward: of a gate a, b and the product, which is needed anyway.
LAYERS = {
    "swiglu": (GatedNet, 3 * 32),
    "act-linear": (lambda: with_act_linear(None), 32),
    "act-linear-3": (lambda: with_act_linear(3), 3),
    "act-linear-6": (lambda: with_act_linear(6), 6),
}
each_layer = pytest.mark.parametrize(("make", "bits"), LAYERS.values(), ids=LAYERS)


def gradients(run: Callable[[Tensor], Tensor], net: nn.Module, x: Tensor) -> list[Tensor]:
    y = run(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *net.parameters()], torch.ones_like(y))]


@each_layer
def test_layers_are_plain_operations_and_save_what_they_save_in_eager(make: Callable[[], nn.Module], bits: int) -> None:
    net, x, seen = make(), torch.randn(40, 16), Graphs()
    assert saved_bytes(torch.compile(net, backend=seen.backend), x).total == bits * 40 * 64 // 8
    assert saved_bytes(net, x).total == bits * 40 * 64 // 8
    assert not seen.ours()


@pytest.mark.slow
@each_layer
def test_layers_with_a_number_of_rows_that_varies(make: Callable[[], nn.Module], bits: int) -> None:
    """Compiled once. Gradients are sums over 66 rows at most of terms below 8: their order moves them by 66 * 66 * 8 *
    2**-24 < 2**-8 at most, and f', by formulas in y off by 2**-18 at most, by less."""
    net = make()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    for rows in (6, 9, 16, 33):
        x = torch.randn(rows, 2, 16, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 0)
        with torch.compiler.set_stance("default" if rows == 6 else "fail_on_recompile"):
            for got, expected in zip(gradients(compiled, net, x), gradients(net, net, x), strict=True):
                assert torch.allclose(got, expected, rtol=0, atol=2.0**-8)
