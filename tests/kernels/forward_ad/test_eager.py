"""Nested forward AD in eager code: what is kept, exactly, and everything that torch does with tensors and modules."""

import copy
import io
import pickle
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernels import KernelError, convert, saved_bytes
from kernels.forward_ad import nested_forward_ad, unwrap, wrap
from kernels.forward_ad.chains import record
from tests.kernels.forward_ad.chains import CASES, WRITTEN, Activation, mish, newgelu
from tests.kernels.forward_ad.programs import Doubled

ROWS, WIDTH, CHANNELS, SIDE = 64, 64, 8, 32


class Block(nn.Module):
    """linear - function - linear, or conv - norm - function - conv."""

    def __init__(self, function: Activation, convolutional: bool = False) -> None:
        super().__init__()
        self.function = function
        if convolutional:
            conv = partial(nn.Conv2d, CHANNELS, CHANNELS, 3, padding=1, bias=False)
            self.first: nn.Module = nn.Sequential(conv(), nn.BatchNorm2d(CHANNELS))
            self.last: nn.Module = conv()
        else:
            self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.function(self.first(x)))
        return y


def batch(convolutional: bool = False) -> Tensor:
    shape = (4, CHANNELS, SIDE, SIDE) if convolutional else (ROWS, WIDTH)
    return torch.randn(shape, requires_grad=True)


@pytest.mark.parametrize("convolutional", [False, True], ids=["linear", "convolutional"])
@pytest.mark.parametrize("name", WRITTEN)
def test_bytes_kept(name: str, convolutional: bool) -> None:
    """Of a norm its input is kept besides, and two numbers a channel."""
    function, plain, nested = WRITTEN[name]
    block, x = Block(function, convolutional), batch(convolutional)
    unit = x.numel() * x.element_size()
    besides = (unit + 2 * CHANNELS * x.element_size()) * convolutional
    assert saved_bytes(block, x).total == plain * unit + besides
    assert saved_bytes(wrap(block, min_numel=1), x).total == nested * unit + besides
    assert saved_bytes(block, x, fake=False).total == nested * unit + besides


def test_a_chain_with_several_ends_keeps_a_derivative_each() -> None:
    """R^1 to R^M: both results of the chain are products' operands, and so kept themselves."""

    def forward(x: Tensor, weight: Tensor) -> Tensor:
        h = x @ weight
        inner = mish(newgelu(h))
        outer = torch.sin(inner) * torch.exp(-inner * inner)
        return (outer @ weight + inner @ weight).sum()

    x, weight = torch.randn(ROWS, WIDTH, requires_grad=True), torch.randn(WIDTH, WIDTH, requires_grad=True)
    with nested_forward_ad(min_numel=1):
        kept = saved_bytes(forward, x, weight)
    assert kept.total == 4 * x.numel() * x.element_size()


def leaves(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes, scales = ((8, 16), (16, 16), (16, 16)), (1.0, 0.25, 0.25)
    drawn = [
        torch.randn(shape, generator=generator, dtype=dtype) * by for shape, by in zip(shapes, scales, strict=True)
    ]
    x, w, v = (one.requires_grad_() for one in drawn)
    return x, w, v


def gradients(
    program: Callable[..., Tensor], mode: AbstractContextManager[object], dtype: torch.dtype = torch.float64
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss, and the gradients of the three leaves."""
    x, w, v = leaves(dtype)
    torch.manual_seed(1)
    with mode:
        loss = program(x, w, v, mish)
    loss.backward()
    return loss.detach(), [x.grad, w.grad, v.grad]


def mode() -> nested_forward_ad:
    return nested_forward_ad(min_numel=1)


def assert_same(program: Callable[..., Tensor], tolerance: float = 1e-12, dtype: torch.dtype = torch.float64) -> None:
    """Sums of at most 16 products of a dozen factors, in float64: 2^-53 · 200 is 2e-14 of the largest."""
    loss, plain = gradients(program, nullcontext(), dtype)
    nested_loss, nested = gradients(program, mode(), dtype)
    assert torch.equal(loss, nested_loss)
    for one, other in zip(nested, plain, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert (one - other).abs().max() <= tolerance * other.abs().max().clamp_min(1.0)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch.func.jvp, at its first call
@pytest.mark.parametrize("program", CASES, ids=lambda program: program.__name__)
def test_the_same_gradients(program: Callable[..., Tensor]) -> None:
    assert_same(program)


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_module_hooks() -> None:
    seen: list[str] = []

    def program(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
        block = nn.Sequential(nn.Identity(), nn.Identity())
        block[0].register_forward_hook(lambda module, args, output: a(output))
        for one in (block, block[0]):
            one.register_full_backward_hook(lambda module, given, taken: seen.append("after"))
            one.register_full_backward_pre_hook(lambda module, taken: seen.append("before"))
        return (block(a(x @ w)) @ v).sum()

    assert_same(program)
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]
    assert len(seen) == 8


def test_multi_grad_hook() -> None:
    seen: list[Tensor] = []

    def program(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
        y = F.softplus(x @ w)
        z = torch.tanh(y) * y
        torch.autograd.graph.register_multi_grad_hook([y, z], lambda them: seen.extend(one.clone() for one in them))
        return (z @ v).sum()

    assert_same(program)
    assert len(seen) == 4
    assert torch.allclose(seen[0], seen[2])
    assert torch.allclose(seen[1], seen[3])


@pytest.mark.parametrize("late", ["hook", "gradient", "backward", "retain"])
def test_a_tensor_within_a_chain_that_is_watched_too_late(late: str) -> None:
    """Its gradient does not come by any more: that is said, and not left out in silence."""
    x, w, v = leaves()
    with mode():
        h = x @ w
        y = F.softplus(h)
        loss = ((h * torch.tanh(y)) @ v).sum()
        watch: dict[str, Callable[[], Any]] = {
            "hook": lambda: y.register_hook(lambda gradient: gradient),
            "gradient": lambda: torch.autograd.grad(loss, [y]),
            "backward": lambda: loss.backward(inputs=[y]),
            "retain": y.retain_grad,
        }
        with pytest.raises(KernelError, match=r"must be asked for before the chain is used"):
            watch[late]()
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.autograd.grad(loss, [y])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits(dtype: torch.dtype) -> None:
    """No further from float64 than 1.15 times what plain autograd is, in the root mean square; usually nearer."""
    off: dict[bool, list[float]] = {False: [], True: []}
    for name, (function, _, _) in WRITTEN.items():
        if "dropout" in name:
            continue
        x = torch.randn(256, 64, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
        weight = torch.randn(256, 64, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(dtype)
        exact = slope(function, x.double(), weight.double(), nullcontext())
        for nested in off:
            found = slope(function, x, weight, mode() if nested else nullcontext())
            off[nested].append(float((found.double() - exact).square().mean().sqrt()))
    for name, plain, nested in zip((n for n in WRITTEN if "dropout" not in n), off[False], off[True], strict=True):
        assert nested <= 1.15 * plain, (name, nested / plain)


def slope(function: Activation, x: Tensor, weight: Tensor, mode: AbstractContextManager[object]) -> Tensor:
    x = x.clone().requires_grad_()
    with mode:
        y = function(x * 1.0).flatten()
    (gradient,) = torch.autograd.grad(y, x, weight.flatten())
    return gradient


@pytest.mark.parametrize("within", [torch.bfloat16, torch.float32])
def test_casts_within_a_chain(within: torch.dtype) -> None:
    """The derivative is rounded to the source's dtype once; the gradient, of either, once more: 2^-8 of each."""
    outer = torch.bfloat16 if within is torch.float32 else torch.float32

    def program(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
        return (a((x @ w).to(outer).to(within)).to(outer) @ v.to(outer)).float().sum()

    assert_same(program, 2.0**-6, torch.float32)


def test_autocast() -> None:
    """Some operations run in float32, some in bfloat16, as they do without the mode."""

    def program(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (newgelu(x @ w) @ v).float().sum() + (a(x @ w) @ v).float().sum()

    assert_same(program, 2.0**-5, torch.float32)


def test_gradients_of_gradients_are_refused() -> None:
    x, w, v = leaves()
    with mode():
        loss = (mish(x @ w) @ v).sum() + mish(x).sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(KernelError, match="must be differentiated once only"):
        (gradient.square().sum() + x.sum()).backward()


def test_overwritten_before_the_chain_ends() -> None:
    """What plain autograd says in backward is said there, and the tensor is of use until then."""
    for nested in (False, True):
        x, w, v = leaves()
        with mode() if nested else nullcontext():
            y = torch.tanh(x @ w)
            z = torch.sin(y * y) * y
            y.mul_(2)
            loss = (z @ v).sum()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch.compile, of any such
def test_compiled_code_within() -> None:
    torch._dynamo.reset()

    def program(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
        compiled = torch.compile(lambda z: a(z @ w) @ v, backend="aot_eager", fullgraph=True)
        return compiled(a(x)).sum() + a(compiled(x)).sum()

    assert_same(program)


def test_compiled_around() -> None:
    """Compiled, the mode steps aside: the compiler sees chains itself."""
    torch._dynamo.reset()
    block = wrap(Block(mish).double(), min_numel=1)
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    (plain,) = torch.autograd.grad(block(x).sum(), x)
    (nested,) = torch.autograd.grad(compiled(x).sum(), x)
    assert torch.allclose(plain, nested, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning", "ignore:`torch.jit")
def test_exported_and_traced() -> None:
    """Nothing of ours is in the graph."""
    block, x = wrap(Block(mish), min_numel=1), torch.randn(ROWS, WIDTH)
    expected = block(x)
    for one in (torch.export.export(block, (x,)).module(), torch.jit.trace(block, x)):
        assert torch.allclose(one(x), expected)


def test_an_exception_leaves_nothing_behind() -> None:
    x, w, _ = leaves()
    block = wrap(Block(lambda x: x.no_such_method()), min_numel=1)
    with pytest.raises(AttributeError):
        block(torch.randn(2, WIDTH))
    kept: list[Tensor] = []

    def stopped() -> None:
        with mode():
            kept.append(torch.tanh(x @ w))
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        stopped()
    y = kept[0]
    assert torch.overrides._get_current_function_mode() is None
    (gradient,) = torch.autograd.grad((torch.exp(y) * y).sum(), x)  # a chain that goes on outside
    x, w, _ = leaves()
    y = torch.tanh(x @ w)
    assert torch.allclose(gradient, torch.autograd.grad((torch.exp(y) * y).sum(), x)[0], rtol=1e-12)


def test_threads() -> None:
    """Each thread has its own modes; a module that is wrapped runs in all of them at once."""
    block = wrap(Block(mish).double(), min_numel=1)
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    found: list[Tensor] = []

    def work() -> None:
        for _ in range(20):
            found.append(torch.autograd.grad(block(x).sum(), x)[0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    (plain,) = torch.autograd.grad(unwrap(block)(x).sum(), x)
    assert len(found) == 80
    assert all(torch.allclose(one, plain, rtol=1e-12) for one in found)


def test_a_wrapped_model_is_copied_saved_and_unwrapped() -> None:
    block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Mish(), nn.Linear(WIDTH, WIDTH))
    names = list(block.state_dict())
    wrap(block, min_numel=1)
    x = torch.randn(ROWS, WIDTH)
    y = block(x)
    y.sum().backward()
    stream = io.BytesIO()
    torch.save(block, stream)
    stream.seek(0)
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block)), torch.load(stream, weights_only=False)):
        assert list(other.state_dict()) == names
        assert torch.equal(other(x), y)
        assert vars(other)["forward"].module is other
    assert "forward" not in vars(unwrap(block))
    with pytest.raises(KernelError, match="must be one that is wrapped"):
        unwrap(block)


def test_parameters_stay_clean() -> None:
    """A parameter may be a source; nothing is put on it that could not be saved."""
    weight = nn.Parameter(torch.randn(8, 8))
    with mode():
        loss = (torch.exp(weight * 2) * weight).sum()
    loss.backward()
    assert not vars(weight)
    copy.deepcopy(weight)
    torch.save({"weight": weight}, io.BytesIO())


def test_nested_modes() -> None:
    """The inner one works, and the outer one sees nothing but the operations."""
    x, block = batch(), Block(newgelu)
    with mode():
        assert saved_bytes(wrap(block, min_numel=1), x, fake=False).total == 2 * x.numel() * 4

    def program(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
        with mode():
            return (a(x @ w) @ v).sum() + (a(x) @ w).sum()

    assert_same(program)


def test_graphs_die() -> None:
    """Nothing refers back to what comes later: without the result, all is freed at once."""
    import gc
    import weakref

    gc.collect()
    gc.disable()
    try:
        block = wrap(Block(newgelu), min_numel=1)
        x = batch()
        y = block(x)
        node = y.grad_fn
        assert node is not None
        inner = node.next_functions[1][0]
        assert inner is not None
        assert "Chain" in inner.name()
        reference = weakref.ref(inner)
        del node, inner, y
        assert reference() is None
    finally:
        gc.enable()


def test_small_tensors_are_left_alone() -> None:
    x = batch()
    assert saved_bytes(wrap(Block(newgelu), min_numel=x.numel()), x).total == 2 * x.numel() * 4
    assert saved_bytes(wrap(Block(newgelu), min_numel=x.numel() + 1), x).total == 5 * x.numel() * 4


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "1"])
def test_min_numel(wrong: Any) -> None:
    with pytest.raises(KernelError, match=r"min_numel must be a whole number of 0 or more, got"):
        nested_forward_ad(min_numel=wrong)
    with pytest.raises(KernelError, match=r"min_numel must be"):
        wrap(nn.Linear(2, 2), min_numel=wrong)


def test_what_cannot_be_wrapped() -> None:
    model = wrap(nn.Linear(2, 2))
    with pytest.raises(KernelError, match="must not be wrapped already"):
        wrap(model)
    with pytest.raises(KernelError, match=r"model must be a torch.nn.Module that runs in Python, got function"):
        wrap(mish)  # type: ignore[arg-type]


def test_the_mode_decorates() -> None:
    calls = []

    @nested_forward_ad(min_numel=1)
    def forward(block: nn.Module, x: Tensor, depth: int = 2) -> Tensor:
        calls.append(torch.overrides._get_current_function_mode())
        return forward(block, x, depth - 1) if depth else block(x)

    x = batch()
    assert saved_bytes(forward, Block(newgelu), x).total == 2 * x.numel() * 4
    assert all(isinstance(one, nested_forward_ad) for one in calls)
    assert torch.overrides._get_current_function_mode() is None


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch.compile, at its first call
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.ModuleList([nn.Linear(2, 2)]), "must have a forward, got ModuleList"),
        (nn.DataParallel(nn.Linear(2, 2)), "must be wrapped before others wrap it, got DataParallel"),
    ],
)
def test_what_wrap_would_do_nothing_for(model: nn.Module, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        wrap(model)
    with pytest.raises(KernelError, match="must be wrapped before others wrap it, got OptimizedModule"):
        wrap(torch.compile(nn.Linear(2, 2)))


# Ways to use a tensor that the mode does not see, or that do not go on with its chain.
UNSEEN: dict[str, Activation] = {
    "function": lambda y: Doubled.apply(y),
    "reentrant checkpoint": lambda y: checkpoint(torch.square, y, use_reentrant=True),
    "vmap": lambda y: torch.func.vmap(torch.square)(y),
    "complex": lambda y: (y * 1j).abs(),
    "broadcast": lambda y: y[:, :1].mul(1.0) * torch.ones(1, 16, dtype=y.dtype),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_a_hook_after_a_use_that_was_not_seen(name: str) -> None:
    """All of the gradient comes by the hook, or KernelError says that it would not."""

    def gradient(context: AbstractContextManager[object]) -> Tensor:
        x, w, v = leaves()
        with context:
            y = mish(x @ w)
            used = UNSEEN[name](y).sum() + (y @ v).sum()
            y.register_hook(lambda gradient: gradient * 2)
            used.backward()
        assert x.grad is not None
        return x.grad

    plain = gradient(nullcontext())
    try:
        nested = gradient(mode())
    except KernelError as error:
        if "must be asked for before" not in str(error):
            raise
    else:
        assert torch.allclose(nested, plain, rtol=1e-12)


def test_a_chain_does_not_outlive_the_mode() -> None:
    """What is done to its tensors outside is not seen; so it ends where the mode does."""
    for nested in (False, True):
        x, w, v = leaves()
        context = mode() if nested else nullcontext()
        with context:
            h = x @ w
            y = torch.tanh(F.softplus(h))
            z = h * y
        y.register_hook(lambda gradient: gradient * 2)
        more = z.square().sum()
        with context:
            loss = (z @ v).sum() + more
        of_z = torch.autograd.grad(loss, z, retain_graph=True)[0]
        loss.backward()
        if not nested:
            expected = x.grad, of_z
    assert torch.allclose(x.grad, expected[0], rtol=1e-12)
    assert torch.allclose(of_z, expected[1], rtol=1e-12)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, KeyboardInterrupt, ValueError])
def test_an_interrupted_derivative_is_not_lost_in_silence(error: type[BaseException]) -> None:
    """Who goes on in spite of it is told in backward."""
    x, w, v = leaves()
    raised: list[int] = []

    def unpack(tensor: Tensor) -> Tensor:
        if not raised:
            raised.append(1)
            raise error("once")
        return tensor

    with mode():
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
            y = mish(x @ w)
        with pytest.raises(error, match="once"):
            y @ v
        loss = (y @ v).sum()
    with pytest.raises(RuntimeError, match="once"):
        loss.backward()


def test_the_range_of_float16() -> None:
    """A derivative that float16 cannot hold, with a gradient that makes up for it."""
    for nested in (False, True):
        h = torch.linspace(-2, 2, 64).half().requires_grad_()
        with mode() if nested else nullcontext():
            wide = (h * 1.0).float()
            loss = (torch.tanh(wide) * torch.exp(wide) * 1e-9).flatten() @ torch.full((64,), 2.0**20)
        loss.backward()
        if not nested:
            plain = h.grad
    assert h.grad.abs().sum() > 0
    assert torch.equal(h.grad, plain)


def test_a_long_chain_costs_what_its_operations_do() -> None:
    """No operation takes over what is noted of those before it."""
    with mode():
        h = torch.randn(4, 4, requires_grad=True) * 1.0
        for _ in range(100):
            h = h + 0.01 * torch.tanh(h)
    it = record(h)  # in the mode that would be a look at its place
    assert it is not None
    assert max(len(one.kept) for one in [it, *it.before]) <= 2
    assert len(it.before) == 3 * 100


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_other_kinds_of_tensors() -> None:
    with mode():
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], requires_grad=True)
        (torch.relu(nested * 2.0) * 2.0).to_padded_tensor(0.0).sum().backward()
        rows = torch.randn(3, 4).unbind()
        rows[0].count_nonzero()
    assert nested.grad is not None


def test_two_modes_and_a_converted_model_keep_as_little_as_one() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return newgelu(x) * 1.5

    x = batch()
    block = Block(Own())
    assert convert(block, "forward-ad").converted
    assert saved_bytes(wrap(block, min_numel=1), x).total == 2 * x.numel() * 4
