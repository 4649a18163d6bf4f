"""A converted model under all that torch does with models: compiled, wrapped, exported, moved, run in threads."""

import contextlib
import copy
import importlib
import itertools
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kernels
from kernels import convert, saved_bytes
from tests.kernels.processes import of_two
from tests.kernels.saved import METHODS, bytes_in_graph

# What torch 2.13 warns of on its own account, whatever is compiled.
pytestmark = [
    pytest.mark.usefixtures("afresh"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
]
each_method = pytest.mark.parametrize("how", METHODS.values(), ids=METHODS)
each_backend = pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
EPS = torch.finfo(torch.float32).eps


class Calls(nn.Module):
    """Activations that are called: of `torch.nn.functional`, of a tensor, written out, and one in a plain attribute."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 4)
        self.last = F.mish

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.first(x))
        x = self.second(x)
        x = x * torch.sigmoid(x)
        x = F.softplus(x).tanh()
        return self.last(self.third(x))


class Plain(nn.Module):
    """A single call, which needs no more than that."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


def modules() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 4))


MODELS: dict[str, Callable[[], nn.Module]] = {"modules": modules, "a call": Plain, "calls": Calls}
each_model = pytest.mark.parametrize("kind", MODELS)


def build(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[kind]()


def batch() -> Tensor:
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(1))


def gradients(run: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor | None = None) -> list[Tensor]:
    """Of a sum of squares; with its value."""
    x = (batch() if x is None else x).clone().requires_grad_()
    y = run(x)
    loss = y.to(torch.promote_types(y.dtype, torch.float32)).square().sum()
    return [loss.detach(), *torch.autograd.grad(loss, [x, *model.parameters()])]


def near(got: list[Tensor], expected: list[Tensor], bound: float) -> bool:
    pairs = zip(got, expected, strict=True)
    return all(bool(((one - other).abs() <= bound * other.abs().max().clamp(min=1)).all()) for one, other in pairs)


def equal(got: list[Tensor], expected: list[Tensor]) -> bool:
    return len(got) == len(expected) and all(map(torch.equal, got, expected))


# Inductor adds biases and sums squares in an order of its own: some tens of roundings.
ROUNDING = 64 * EPS


@pytest.mark.slow
@each_backend
@pytest.mark.parametrize("order", ["before", "after"])
@each_model
@each_method
def test_compile(how: dict[str, Any], kind: str, order: str, backend: str) -> None:
    """In one graph, with the gradients of eager, keeping what eager keeps."""
    model, eager = build(kind), build(kind)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    stock = gradients(compiled, model) if order == "after" else None  # so there is code, which must not be run again
    report = convert(compiled if order == "after" else model, **how)
    convert(eager, **how)
    got, expected = gradients(compiled, model), gradients(eager, eager)
    assert equal(got, expected) if backend == "aot_eager" else near(got, expected, ROUNDING)
    if how["method"] == "fewbit":
        assert saved_bytes(compiled, batch()).total == saved_bytes(eager, batch(), fake=False).total
    report.revert()
    again = gradients(compiled, model)
    plain = build(kind)
    assert near(again, gradients(plain, plain), ROUNDING) if stock is None else equal(again, stock)


@each_model
def test_auto_after_compile(kind: str) -> None:
    """It is the model within that is measured, in eager."""
    compiled, eager = torch.compile(build(kind), backend="aot_eager"), build(kind)
    compiled(batch())
    report, expected = convert(compiled, inputs=batch()), convert(eager, inputs=batch())
    assert report.sites == expected.sites
    assert report.converted


def test_module_compile() -> None:
    """`Module.compile`, which wraps nothing."""
    model, eager = build("a call"), build("a call")
    model.compile(backend="aot_eager", fullgraph=True)
    stock = gradients(model, model)
    for one in (model, eager):
        convert(one, "fewbit")
    assert not near(stock, got := gradients(model, model), 1e-3)
    assert equal(got, gradients(eager, eager))


@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False])
@each_model
@each_method
def test_export(how: dict[str, Any], kind: str, strict: bool) -> None:
    """What is exported is the stock model."""
    model = build(kind)
    convert(model, **how)
    exported = torch.export.export(model, (batch(),), strict=strict)
    called = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    assert "aten.gelu.default" in called
    assert not [name for name in called if "actfit" in name or "kernels" in name]
    with torch.no_grad():
        # x * sigmoid(x) is exported as silu(x): the same but for a rounding.
        assert near([exported.module()(batch())], [build(kind)(batch())], 0 if kind != "calls" else ROUNDING)


WRAPPERS = ("ddp", "fsdp2")
ORDERS = ("before", "after")
DISTRIBUTED = {"fewbit": {"method": "fewbit"}, "invact": {"method": "invact"}, "auto": {"method": "auto"}}


# What is sharded runs only where all processes do, with its own state: it is to be measured before.
UNMEASURED = ("fsdp2", "after", "auto")


def converted(model: nn.Module, how: dict[str, Any]) -> kernels.conversion.Report:
    return convert(model, **how, **({"inputs": batch()} if how["method"] == "auto" else {}))


def worker(rank: int, folder: Path) -> None:
    """What each of two processes does; the first leaves its results in `folder`."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    found = {}
    for wrapper in WRAPPERS:
        for order in ORDERS:
            for name, how in DISTRIBUTED.items():
                if (wrapper, order, name) == UNMEASURED:
                    continue
                for kind in MODELS:
                    model = build(kind).double() if name != "auto" else build(kind)
                    if order == "before":
                        report = converted(model, how)
                    if wrapper == "ddp":
                        model = DistributedDataParallel(model)
                    else:
                        for layer in [one for one in model.modules() if isinstance(one, nn.Linear)]:
                            fully_shard(layer, mesh=mesh)
                        fully_shard(model, mesh=mesh)
                    if order == "after":
                        report = converted(model, how)
                    x = batch().to(next(model.parameters()).dtype)
                    model(x).square().sum().backward()  # both the same, so that their mean is
                    wholes = [one.grad.full_tensor() if wrapper == "fsdp2" else one.grad for one in model.parameters()]
                    found[wrapper, order, name, kind] = [site.now for site in report.sites], wholes
    if rank == 0:
        torch.save(found, folder / "results.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], tuple[list[str], list[Tensor]]]:
    return of_two(__file__, tmp_path_factory.mktemp("processes"), 240)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@each_model
@pytest.mark.parametrize(
    ("wrapper", "order", "name"),
    [one for one in itertools.product(WRAPPERS, ORDERS, DISTRIBUTED) if one != UNMEASURED],
)
def test_wrapped_models_are_converted_before_and_after(results, wrapper: str, order: str, name: str, kind: str) -> None:
    model = build(kind).double() if name != "auto" else build(kind)
    report = converted(model, DISTRIBUTED[name])
    x = batch().to(next(model.parameters()).dtype)
    expected = gradients(model, model, x)[2:]
    now, got = results[wrapper, order, name, kind]
    assert now == [site.now for site in report.sites]
    assert report.converted
    # The same operations on the same numbers; the mean of two equal ones is exact. Products of matrices that are
    # gathered may lie elsewhere in memory, and be summed in another order.
    assert near([one.double() for one in got], [one.double() for one in expected], 16 * torch.finfo(x.dtype).eps)


ACTIVATIONS: dict[str, Callable[[], Any]] = {
    "F.gelu": lambda: F.gelu,
    "'gelu'": lambda: "gelu",
    "nn.GELU": nn.GELU,
    "F.relu": lambda: F.relu,
    "nn.SiLU": nn.SiLU,
}


def layer(act: str) -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation=ACTIVATIONS[act](), batch_first=True)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_a_transformer_layer(act: str) -> None:
    """In training as stock but for slopes; in evaluation, on torch's fast path, bit for bit."""
    stock, model = layer(act), layer(act)
    x = torch.randn(2, 5, 16)
    before, mark = dict(vars(model)), model.activation_relu_or_gelu
    report = convert(model, "forward-ad")
    (site,) = report.converted
    assert site.name == "activation"
    assert model.activation_relu_or_gelu == stock.activation_relu_or_gelu == mark
    assert near(gradients(model, model, x), gradients(stock, stock, x), ROUNDING)
    kept = saved_bytes(model, x, fake=False).total
    assert kept == saved_bytes(model, x).total
    with torch.no_grad():
        assert torch.equal(model.eval()(x), stock.eval()(x))
    report.revert()
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items() if name != "training")
    assert equal(gradients(model.train(), model, x), gradients(stock.train(), stock, x))


@pytest.mark.parametrize("act", ["F.gelu", "nn.GELU"])
def test_a_transformer_encoder(act: str) -> None:
    """Each of its layers has a copy of its own."""
    stock, model = (nn.TransformerEncoder(layer(act), 3, enable_nested_tensor=False) for _ in range(2))
    x = torch.randn(2, 5, 16)
    report = convert(model, inputs=x)
    assert [site.name for site in report.converted] == [f"layers.{index}.activation" for index in range(3)]
    assert {site.now for site in report.converted} == {"invact"}
    # Next to the minimum of gelu slopes are off by 2e-4 at most; weighed with numbers of the size of 1.
    assert near(gradients(model, model, x), gradients(stock, stock, x), 1e-3)
    with torch.no_grad():
        assert torch.equal(model.eval()(x), stock.eval()(x))


def test_nested_tensors_of_a_transformer_encoder_in_evaluation() -> None:
    """Torch's own way with padding, which it takes on the fast path only."""
    stock, model = (nn.TransformerEncoder(layer("'gelu'"), 2).eval() for _ in range(2))
    convert(model, "invact")
    x, padding = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad(), pytest.warns(UserWarning, match="nested tensors"):
        assert torch.equal(model(x, src_key_padding_mask=padding), stock(x, src_key_padding_mask=padding))


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_are_left_alone(kind: type[nn.Module]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = kind(8, 16, batch_first=True)
            self.up, self.act, self.out = nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.act(self.up(self.rnn(x)[0])))

    model = Net()
    report = convert(model, inputs=torch.randn(2, 5, 8))
    assert [(site.name, site.reason) for site in report.left] == [
        ("rnn", "its activations are computed inside torch's own recurrent kernel")
    ]
    assert [site.name for site in report.converted] == ["act"]
    assert type(model.rnn) is kind


class Shared(nn.Module):
    """One activation in several places and used twice; and in every sort of container."""

    def __init__(self) -> None:
        super().__init__()
        act, other = nn.GELU(), nn.SiLU()
        self.sequence = nn.Sequential(nn.Linear(8, 8), act, nn.Linear(8, 8), act)
        self.list = nn.ModuleList([nn.Linear(8, 8), other, act])
        self.dict = nn.ModuleDict({"up": nn.Linear(8, 8), "act": other})
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.act(self.sequence(x)))
        for one in self.list:
            x = one(x)
        return self.dict["act"](self.dict["up"](x))


def test_shared_activations_stay_shared() -> None:
    model = Shared()
    stock = copy.deepcopy(model)
    modules, names = list(model.modules()), [name for name, _ in model.named_modules(remove_duplicate=False)]
    report = convert(model, "forward-ad", inputs=batch())
    assert [site.name for site in report.converted] == ["sequence.1", "list.1"]
    assert model.sequence[1] is model.sequence[3] is model.list[2] is model.act
    assert model.list[1] is model.dict["act"]
    assert isinstance(model.act, kernels.GELU)
    assert [name for name, _ in model.named_modules(remove_duplicate=False)] == names
    assert near(gradients(model, model), gradients(stock, stock), ROUNDING)
    report.revert()
    assert all(one is other for one, other in zip(model.modules(), modules, strict=True))
    assert equal(gradients(model, model), gradients(stock, stock))


def test_parametrized_layers() -> None:
    """A spectral norm is a module with buffers that change in training; a scale, one without anything."""

    class Scale(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    def build() -> nn.Module:
        torch.manual_seed(0)
        first = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16))
        last = nn.Linear(16, 4)
        nn.utils.parametrize.register_parametrization(last, "weight", Scale())
        return nn.Sequential(first, nn.GELU(), last)

    model, stock = build(), build()
    state = copy.deepcopy(model.state_dict())
    report = convert(model, inputs=batch())
    assert [site.name for site in report.converted] == ["1"]
    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())
    assert near(gradients(model, model), gradients(stock, stock), 1e-3)  # see test_a_transformer_encoder


def test_activations_with_hooks_are_left_alone() -> None:
    model, seen = modules(), []
    handle = model[1].register_forward_hook(lambda *_: seen.append("forward"))
    model[3].register_full_backward_hook(lambda *_: seen.append("backward"))
    report = convert(model, "fewbit")
    assert [site.reason for site in report.sites] == ["it has hooks, which would not be called any more"] * 2
    gradients(model, model)
    assert seen == ["forward", "backward"]
    handle.remove()
    assert [site.name for site in convert(model, "fewbit").converted] == ["1"]


def test_hooks_of_other_modules_go_on() -> None:
    model, seen = build("a call"), []
    for one in (model, model.up):
        one.register_forward_hook(lambda *_: seen.append("forward"))
    convert(model, "fewbit", inputs=batch())
    seen.clear()
    model(batch())
    assert seen == ["forward", "forward"]


def wrap(module: nn.Module) -> list[str]:
    """As accelerate does: a forward of the instance's own around the class's."""
    seen: list[str] = []
    old = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        seen.append(type(module).__name__)
        return old(*args, **kwargs)

    module.forward = forward
    return seen


def test_forwards_that_were_replaced_are_left_alone() -> None:
    model = nn.Sequential(modules(), Plain())
    seen = wrap(model[0][1]), wrap(model[1])
    present = model[1].forward
    report = convert(model, "fewbit")
    assert {site.name: site.reason for site in report.left} == {
        "0.1": "its forward was replaced",
        "1.gelu()": "the forward that calls it was replaced by another",
    } or {site.name for site in report.left} == {"0.1", "1.gelu()"}
    assert [site.name for site in report.converted] == ["0.3"]
    assert model[1].forward is present
    assert seen == ([], [])


def test_a_forward_replaced_after_conversion_still_remembers_less() -> None:
    model = Plain()
    report = convert(model, "fewbit")
    kept = saved_bytes(model, batch()).total
    seen = wrap(model)
    assert saved_bytes(model, batch()).total == kept < saved_bytes(Plain(), batch()).total
    assert set(seen) == {"Plain"}
    with pytest.raises(kernels.KernelError, match="replaced since"):
        report.revert()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@each_model
def test_to_another_dtype_after_conversion(kind: str, dtype: torch.dtype) -> None:
    one, other = build(kind), build(kind).to(dtype)
    convert(one, "fewbit")
    convert(other, "fewbit")
    got = gradients(one.to(dtype), one, batch().to(dtype))
    assert all(one.dtype == dtype for one in got[1:])
    assert equal(got, gradients(other, other, batch().to(dtype)))


@each_model
def test_a_model_on_meta(kind: str) -> None:
    """It is measured, and weights come afterwards."""
    with torch.device("meta"):
        model = build(kind)
    real = build(kind)
    report, expected = convert(model, inputs=batch().to("meta")), convert(real, inputs=batch())
    assert report.sites == expected.sites
    assert (report.before.total, report.after.total) == (expected.before.total, expected.after.total)
    assert all(one.is_meta for one in model.parameters())
    model.to_empty(device="cpu").load_state_dict(build(kind).state_dict())
    assert equal(gradients(model, model), gradients(real, real))


def test_autocast_chooses_by_bfloat16() -> None:
    """There the floor is higher, so that few bits are as good as the output is; before a cast they keep less."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.act(self.up(x))
            return self.down(y.float().sin() if y.dtype == torch.bfloat16 else y)

    model = Net()
    plain = convert(model, inputs=batch())
    plain.revert()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        report = convert(model, inputs=batch())
        assert report.after.total == saved_bytes(model, batch(), fake=False).total < report.before.total
    (one,), (other,) = plain.converted, report.converted
    assert one.now == "invact"
    assert other.now.startswith("fewbit")
    assert one.derivative_error < 2**-18 < other.derivative_error < torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("kind", ["a call", "calls"])
def test_threads(kind: str) -> None:
    """A model converted one way, and one in another, and one that was not, at the same time."""
    hows: list[dict[str, Any] | None] = [{"method": "fewbit", "bits": 1}, {"method": "forward-ad"}, None]
    models = [build(kind) for _ in hows]
    for model, how in zip(models, hows, strict=True):
        if how is not None:
            convert(model, **how)
    expected = [gradients(model, model) for model in models]
    assert not near(expected[0], expected[2], 1e-3)

    def many(index: int) -> bool:
        return all(equal(gradients(models[index], models[index]), expected[index]) for _ in range(50))

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(many, range(3)))


def test_threads_that_run_their_calls_in_turn() -> None:
    """Each meets the other before its call, when both are within their forwards."""
    barrier = threading.Barrier(2, timeout=5)

    class Meeting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(8, 16)

        def forward(self, x: Tensor) -> Tensor:
            x = self.up(x)
            barrier.wait()
            y = F.gelu(x)
            barrier.wait()
            return y.exp()

    models = [Meeting() for _ in range(2)]
    for model in models:
        convert(model, "fewbit", bits=1)
    kept = 5 * 16 * 4 + 5 * 16 // 8  # what exp gives, and the bits

    def bytes_of(model: nn.Module) -> int:
        x = batch()
        return bytes_in_graph(model(x), [x, *model.parameters()])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(bytes_of, models)) == [kept] * 2


def test_one_model_in_two_threads() -> None:
    model = build("calls")
    convert(model, "fewbit", bits=1)
    expected = gradients(model, model)

    def many(_: int) -> bool:
        return all(equal(gradients(model, model), expected) for _ in range(50))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(many, range(2)))


def world() -> dict[str, int]:
    """The identity of everything that a patch would replace."""
    owners: list[Any] = [F, torch, torch.Tensor, nn, nn.Module, *vars(nn).values(), Plain, Calls]
    if "transformers.activations" in sys.modules:
        activations = sys.modules["transformers.activations"]
        owners += [activations, *(one for one in vars(activations).values() if isinstance(one, type))]
    owners = [one for one in owners if isinstance(one, type) or one in (F, torch, nn) or hasattr(one, "ACT2FN")]
    return {f"{one.__name__}.{name}": id(value) for one in owners for name, value in vars(one).items()}


def test_nothing_is_patched() -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module("transformers.activations")
    models = [build(kind) for kind in MODELS]
    untouched = [build(kind) for kind in MODELS]
    expected = [gradients(model, model) for model in untouched]
    convert(build("calls"), "invact", inputs=batch())  # what is made at the first use
    before = world()
    assert "GELU.forward" in before
    assert "torch.nn.functional.gelu" in before
    for model in models:
        convert(model, "fewbit", inputs=batch())
        gradients(model, model)
    assert world() == before
    for model, stock in zip(untouched, expected, strict=True):
        assert equal(gradients(model, model), stock)
        assert "forward" not in vars(model)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@each_model
def test_copies(kind: str, copied: Callable[[nn.Module], nn.Module]) -> None:
    """A copy runs on its own weights."""
    model = build(kind)
    convert(model, "fewbit", bits=2)
    other = copied(model)
    expected = gradients(model, model)
    assert equal(gradients(other, other), expected)
    with torch.no_grad():
        for one in model.parameters():
            one.zero_()
    assert equal(gradients(other, other), expected)


class Sharp(nn.Module):
    """Calls with parameters that no table has, and with ones that come with the input."""

    def forward(self, x: Tensor, beta: float = 2.0) -> Tensor:
        return F.gelu(F.softplus(x, beta=beta)).exp()


@pytest.mark.parametrize("method", ["fewbit", "auto", "forward-ad"])
def test_calls_with_parameters_of_their_own_go_on(method: str) -> None:
    """What has no table for them is called as it was."""
    model, x = nn.Sequential(nn.Linear(8, 8), Sharp()), batch()
    stock = copy.deepcopy(model)
    convert(model, method, inputs=x)
    with torch.no_grad():
        assert near([model(x)], [stock(x)], ROUNDING)
    assert torch.isfinite(gradients(model, model)[1]).all()


def test_attributes_that_are_partial() -> None:
    """`functools.partial` of one of torch's functions, with its parameters."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.act = nn.Linear(8, 16), partial(F.gelu, approximate="tanh")

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.up(x)).exp()

    model = Net()
    act, stock = model.act, copy.deepcopy(model)
    report = convert(model, "forward-ad")
    assert [(site.name, site.function) for site in report.converted] == [("act", "gelu_tanh")]
    assert near(gradients(model, model), gradients(stock, stock), ROUNDING)
    report.revert()
    assert model.act is act


if __name__ == "__main__":
    worker(int(sys.argv[1]), Path(sys.argv[2]))
