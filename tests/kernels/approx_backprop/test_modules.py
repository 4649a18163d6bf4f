"""Layers of approximate backprop: forward as torch's, what is exact exact, the rest as far off as the codes are."""

import contextlib
import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from kernels import KernelError, convert, saved_bytes
from kernels.approx_backprop import Compressed, NormLinear, PreActivation, QLinear, avg_pool2d
from kernels.approx_backprop.encoding import encode, restored
from kernels.approx_backprop.forwards import Approximate
from kernels.approx_backprop.layers import approximately, why_not
from kernels.approx_backprop.memory_layout import MemoryLayout

EPS = torch.finfo(torch.float64).eps
SCHEMES: dict[str, dict[str, Any]] = {
    "robust": {},
    "robust, 4 bits": {"bits": 4},
    "group": {"scheme": "group"},
    "stochastic": {"scheme": "group", "rounding": "stochastic"},
    "fused": {"scheme": "fused"},
    "paper": {"scheme": "paper"},
}
each_scheme = pytest.mark.parametrize("how", SCHEMES.values(), ids=SCHEMES)


def layer(dtype: torch.dtype = torch.float32, *, hostile: bool = False) -> tuple[nn.Module, nn.Module, Tensor]:
    """The issue's: 32 to 48 channels, 16 x 16, a batch of 16."""
    torch.manual_seed(0)
    norm, conv = nn.BatchNorm2d(32), nn.Conv2d(32, 48, 3, padding=1, bias=False)
    x = 2 * torch.randn(16, 32, 16, 16, dtype=dtype) + 1
    with torch.no_grad():
        if hostile:
            norm.bias[:8], norm.bias[8:16] = 4, -4
            norm.weight[20], norm.bias[20] = 0, 0.3
            x[:, 21] = 1
        else:
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_(0, 0.3)
    return norm.to(dtype), conv.to(dtype), x


def plain(norm: nn.Module, *rest: nn.Module) -> nn.Module:
    return nn.Sequential(*(copy.deepcopy(one) for one in (norm, *rest)))


def gradients(net: nn.Module, x: Tensor, seed: int = 1) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs; gradients of x and of the parameters, in their order."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    found = net(x * 1)  # not a leaf: who keeps it keeps bytes
    outputs = list(found) if isinstance(found, tuple) else [found]
    made = torch.Generator().manual_seed(seed)
    cotangents = [torch.randn(one.shape, generator=made, dtype=one.dtype) for one in outputs]
    return [one.detach() for one in outputs], list(torch.autograd.grad(outputs, [x, *net.parameters()], cotangents))


def error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


class Doubled(nn.Module):
    """A layer on what is no leaf."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(x * 2)


# Bytes, and the deviation of codes from numbers of N(0, 1), by a fixed range's steps and by what lies beyond its ends:
# 0.1116 and 0.0113 for ours, which ends at 3 and 5, and 0.0212 for the paper's 8 bits, which end at 3.
NUMBERS = {
    "fused": ({"scheme": "fused"}, 524416, 1e-5),  # float32, and sums of some thousands
    "paper, 8 bits": ({"scheme": "paper"}, 131200, 0.0212),
    "paper, 4 bits": ({"scheme": "paper", "bits": 4}, 65664, 0.1116),
    "robust, 8 bits": ({}, 147584, 0.0113),
    "robust, 4 bits": ({"bits": 4}, 82048, 0.1116),
}


def bounds(deviation: float) -> tuple[float, float]:
    """On the relative errors of dx and of dW, of a layer as `layer` gives them.

    dx has one term that is approximate, a * mean(a * g) over 4096 numbers of a channel: codes that are off by e change
    it by e * mean(a * g) + a * mean(e * g), of deviation sqrt(2 / 4096) times theirs. 32 channels make that certain to
    an eighth; three of these are allowed. dW is a sum of products with a ReLU's output, of sqrt(1/2) of a's size, which
    is off by as much as a is, or less.
    """
    return 1.375 * (2 / 4096) ** 0.5 * deviation, 2**0.5 * deviation


@pytest.mark.parametrize("name", NUMBERS)
def test_bytes_and_errors_of_a_layer(name: str) -> None:
    how, kept, deviation = NUMBERS[name]
    bound_x, bound_weight = bounds(deviation)
    norm, conv, x = layer()
    ours = PreActivation(norm, nn.ReLU(), conv, **how)
    assert saved_bytes(Doubled(plain(norm, nn.ReLU(), conv)), x).total == 1048832
    assert saved_bytes(Doubled(ours), x).total == kept
    (y,), (dx, _, dbias, dweight) = gradients(ours, x)
    (expected,), exact = gradients(plain(norm, nn.ReLU(), conv), x)
    assert torch.equal(y, expected)
    assert torch.equal(dbias, exact[2])
    assert error(dx, exact[0]) <= bound_x
    assert error(dweight, exact[3]) <= bound_weight


@pytest.mark.parametrize(("bits", "deviation"), [(8, 0.0113), (4, 0.1116)])
def test_a_hostile_layer(bits: int, deviation: float) -> None:
    """The issue's, with shifts of 4 scales, a scale of 0 and a constant channel."""
    norm, conv, x = layer(hostile=True)
    (y,), (dx, dgain, dbias, dweight) = gradients(PreActivation(norm, nn.ReLU(), conv, bits=bits), x)
    (expected,), exact = gradients(plain(norm, nn.ReLU(), conv), x)
    assert torch.equal(y, expected)
    assert torch.equal(dbias, exact[2])
    assert error(dx, exact[0]) <= bounds(deviation)[0]
    assert all(one.isfinite().all() for one in (dgain, dweight))
    _, of_paper = gradients(PreActivation(norm, nn.ReLU(), conv, bits=bits, scheme="paper"), x)
    assert of_paper[0].isnan().any()  # what robust is for


@st.composite
def layers(draw: st.DrawFn) -> tuple[nn.Module, nn.Module, list[nn.Module], Tensor]:
    """Norm, activation, consumers of every kind, and an input, in float64."""
    dims = draw(st.integers(0, 3))
    channels = draw(st.sampled_from([2, 4]))
    torch.manual_seed(draw(st.integers(0, 1000)))
    affine, tracks = draw(st.booleans()), draw(st.booleans())
    momentum = draw(st.sampled_from([None, 0.1, 1.0]))
    norm = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims](
        channels, affine=affine, track_running_stats=tracks, momentum=momentum
    )
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        if draw(st.booleans()):
            norm.weight.data[0] = 0
    act = draw(st.sampled_from([nn.ReLU(), nn.ReLU(inplace=True), nn.LeakyReLU(0.2), nn.LeakyReLU(-0.5)]))
    sides = draw(st.lists(st.integers(3, 6), min_size=dims, max_size=dims))
    x = torch.randn(draw(st.integers(3, 5)), channels, *sides, dtype=torch.float64)
    if dims >= 2 and draw(st.booleans()):
        x = x.to(memory_format=(torch.channels_last, torch.channels_last_3d)[dims - 2])
    elif draw(st.booleans()):
        x = torch.cat([x, x], 1)[:, ::2]
    consumers = [draw(consumer(dims, channels)) for _ in range(draw(st.integers(1, 2)))]
    return norm.double(), act, [one.double() for one in consumers], x


@st.composite
def consumer(draw: st.DrawFn, dims: int, channels: int) -> nn.Module:
    bias = draw(st.booleans())
    if not dims:
        return nn.Linear(channels, 3, bias=bias)
    transposed = draw(st.booleans())
    kinds = ((nn.Conv1d, nn.Conv2d, nn.Conv3d), (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d))
    given: dict[str, Any] = {
        "kernel_size": draw(st.integers(1, 3)),
        "stride": draw(st.integers(1, 2)),
        "padding": draw(st.integers(0, 1)),
        "groups": draw(st.sampled_from([1, 2])),
        "bias": bias,
    }
    if transposed and given["stride"] > 1:
        given["output_padding"] = draw(st.integers(0, 1))
    elif not transposed and draw(st.booleans()):
        given |= {"padding": "same", "stride": 1, "kernel_size": 3, "dilation": draw(st.integers(1, 2))}
    return kinds[transposed][dims - 1](channels, 4, **given)


@given(layers())
@settings(max_examples=50)
def test_a_copy_in_full_gives_autograds_gradients(drawn: Any) -> None:
    """So all but the codes is right: for every layer, by fused."""
    norm, act, consumers, x = drawn
    ours = PreActivation(norm, act, *consumers, scheme="fused")

    class Stock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.act, self.consumers = copy.deepcopy((norm, act, nn.ModuleList(consumers)))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            h = self.act(self.norm(x))
            return tuple(one(h) for one in self.consumers)

    stock = Stock()
    outputs, got = gradients(ours, x)
    expected, exact = gradients(stock, x)
    assert all(map(torch.equal, outputs, expected))
    assert [one.stride() for one in outputs] == [one.stride() for one in expected]
    assert all(map(torch.equal, norm.buffers(), stock.norm.buffers()))
    # Sums of at most some hundred products of numbers below ten, divided by a deviation that is seldom below a tenth.
    for one, other in zip(got, exact, strict=True):
        assert (one - other).abs().max() <= 1e5 * EPS * (1 + other.abs().max())


@given(layers(), st.sampled_from([2, 4, 8]), st.sampled_from(["nearest", "stochastic"]))
@settings(max_examples=30)
def test_what_is_exact_by_codes(drawn: Any, bits: int, rounding: str) -> None:
    """Outputs, averages, dbias, and the gradient that flows to the norm; the rest is off by what codes are."""
    norm, act, consumers, x = drawn
    reference = copy.deepcopy(norm)
    ours = PreActivation(norm, act, consumers[0], bits=bits, scheme="group", rounding=rounding)
    stock = nn.Sequential(reference, copy.deepcopy(act), copy.deepcopy(consumers[0]))
    (y,), got = gradients(ours, x)
    (expected,), exact = gradients(stock, x)
    assert torch.equal(y, expected)
    named = dict(zip(["x", *(name for name, _ in ours.named_parameters())], zip(got, exact, strict=True), strict=True))
    for name in ("norm.bias", "consumers.0.bias"):
        if name in named:
            assert torch.equal(*named[name])
    # |a~ - a| is below one step, a step at most the range over 2^bits - 1 and what bfloat16 adds to both ends.
    a = F.batch_norm(x, None, None, training=True, eps=norm.eps)
    widest = 2 * float(a.abs().max())
    step = widest * (1 / (2**bits - 1) + 2**-7) * (1 + 2**-7)
    gain = 1.0 if norm.weight is None else float(norm.weight.detach().abs().max())
    h = x.clone().requires_grad_()
    consumed = F.relu(h) if isinstance(act, nn.ReLU) else F.leaky_relu(h, act.negative_slope)
    made = torch.Generator().manual_seed(1)
    cotangent = torch.randn(y.shape, generator=made, dtype=y.dtype)
    one = copy.deepcopy(consumers[0])
    one(torch.full_like(consumed, step * gain)).backward(cotangent.abs())  # the most that weights' gradients change by
    dweight, exact_weight = named["consumers.0.weight"]
    assert ((dweight - exact_weight).abs() <= one.weight.grad * (1 + 1e-9) + 1e-9).all()


def test_codes_of_groups_are_as_far_off_as_half_a_step() -> None:
    for n in (2, 63, 64, 65, 1000):
        for bits in range(2, 9):
            x = torch.randn(n, dtype=torch.float64) * 100 + 7
            made = encode(x, Compressed(bits=bits), MemoryLayout.of_rows(x[:, None]))
            assert made[1].least is not None
            assert made[1].step is not None
            steps = made[1].step.double().repeat_interleave(made[0].layout.run)[:n]
            # Half a step, and the rounding of a place to float32 when it is computed: none here, in float64.
            assert ((restored(*made).flatten() - x).abs() <= steps / 2 * (1 + 100 * EPS)).all()


@pytest.mark.slow
def test_stochastic_rounding_has_the_right_mean() -> None:
    torch.manual_seed(0)
    x = torch.randn(64)
    how, rounds = Compressed(bits=2, rounding="stochastic", scheme="group"), 4000
    total = torch.zeros(64)
    for _ in range(rounds):
        made = encode(x, how, MemoryLayout.of_rows(x[:, None]))
        total += restored(*made).flatten()
    step = float(made[1].step)  # type: ignore[arg-type]
    # A mean of `rounds` numbers that are off by a deviation of at most half a step; five deviations in 64 places.
    assert ((total / rounds - x).abs() <= 5 * step / 2 / rounds**0.5).all()


@pytest.mark.slow
@pytest.mark.parametrize("slope", [0.0, 0.2, -0.5])
@pytest.mark.parametrize("bits", [2, 4])
def test_stochastic_rounding_has_the_right_mean_behind_a_relu(bits: int, slope: float) -> None:
    """And a norm, whose codes the linear layer takes. A code of what is above 0 may stand for less than 0."""
    torch.manual_seed(0)
    norm, linear = nn.BatchNorm1d(4), nn.Linear(4, 1, bias=False)
    norm.bias.data.uniform_(-1, 1)
    act = nn.LeakyReLU(slope) if slope else nn.ReLU()
    x, rounds = torch.randn(64, 4, requires_grad=True), 400
    h = act(norm(x)).detach()
    how = {"bits": bits, "scheme": "group", "rounding": "stochastic"}
    layer = PreActivation(norm, act, linear, **how)
    a = F.batch_norm(x, None, None, training=True).detach()
    steps = encode(a, Compressed(**how), MemoryLayout.of(a))[1].step
    assert steps is not None
    # With a gradient of 1, dW is the sum of what codes stand for: of 64 numbers, each off by a deviation of at most
    # half a step, times a slope of at most 1; five deviations of the mean, in four places.
    allowed = 5 * 64**0.5 * steps.float() / 2 / rounds**0.5
    total = torch.zeros(1, 4)
    for _ in range(rounds):
        (dweight,) = torch.autograd.grad(layer(x).sum(), linear.weight)
        total += dweight
    assert ((total / rounds - h.sum(0)).abs() <= allowed).all()


@pytest.mark.parametrize(("bits", "deviation"), [(2, 0.53), (4, 0.15), (8, 0.012)])
def test_a_gains_gradient_is_not_shrunk_by_rounding_to_nearest(bits: int, deviation: float) -> None:
    """With a gradient of a itself, dgamma is the sum of a * (what codes stand for): of numbers from N(0, 1), N.

    By 2 bits it was 0.883 of that, by 4 0.995, by what lies beyond the ends.
    """
    generator = torch.Generator().manual_seed(0)
    n = 1 << 18
    norm = nn.BatchNorm1d(1)
    x = torch.randn(n, 1, generator=generator)
    a = F.batch_norm(x, None, None, training=True)
    y = approximately(norm, x.requires_grad_(), Compressed(bits=bits))
    (dgain,) = torch.autograd.grad(y, norm.weight, a)
    # `deviation` is above that of a * (q(a) / shrinkage - a), whose second factor is off by half a step but for the
    # ends: 0.527, 0.145 and 0.0113. Five of the mean's.
    assert abs(float(dgain) / n - 1) <= 5 * deviation / n**0.5


def test_shrinkage_is_that_of_a_normal_distribution() -> None:
    """Against the definition: E[x q(x)], by sums over quantiles of N(0, 1)."""
    count = 1 << 20
    x = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)
    for bits, clip in ((2, None), (4, None), (8, None), (3, 0.1), (5, 20)):
        how = Compressed(bits=bits, clip=clip)
        codes = (x * (2**how.bits / (2 * how.reach))).floor().clamp(-(2 ** (how.bits - 1)), 2 ** (how.bits - 1) - 1)
        values = (codes + 0.5) * (2 * how.reach / 2**how.bits)
        # Quantiles in the middle of equal shares leave out some 4 / count of what lies in the tails.
        assert abs(float((x * values).mean()) - how.shrinkage) <= 20 / count * how.reach


ROWS = {
    "layer": lambda: nn.LayerNorm(24),
    "layer, no bias": lambda: nn.LayerNorm(24, bias=False),
    "layer, plain": lambda: nn.LayerNorm(24, elementwise_affine=False),
    "layer, two dimensions": lambda: nn.LayerNorm((5, 24)),
    "rms": lambda: nn.RMSNorm(24),
    "rms, eps": lambda: nn.RMSNorm(24, eps=0.1),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("scheme", ["fused", "group"])
def test_norms_of_rows(name: str, scheme: str) -> None:
    torch.manual_seed(0)
    norm, linears = ROWS[name]().double(), [nn.Linear(24, 7).double(), nn.Linear(24, 5, bias=False).double()]
    for one in norm.parameters():
        nn.init.normal_(one)
    x = 3 * torch.randn(4, 5, 24, dtype=torch.float64) + 1

    class Stock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linears = copy.deepcopy((norm, nn.ModuleList(linears)))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return tuple(one(self.norm(x)) for one in self.linears)

    ours = NormLinear(norm, *linears, scheme=scheme)
    outputs, got = gradients(ours, x)
    expected, exact = gradients(Stock(), x)
    assert all(map(torch.equal, outputs, expected))
    for one, other in zip(got, exact, strict=True):
        # fused: sums of some hundred products. By 8 bits of 64 numbers in a range of six deviations, a step is 1/40.
        bound = 1e4 * EPS if scheme == "fused" else 0.05
        assert (one - other).abs().max() <= bound * (1 + other.abs().max())


@pytest.mark.parametrize("name", ROWS)
def test_a_norm_of_a_single_row(name: str) -> None:
    norm = ROWS[name]().double()
    for one in norm.parameters():
        nn.init.normal_(one)
    ours, x = nn.Sequential(copy.deepcopy(norm)), torch.randn(norm.normalized_shape, dtype=torch.float64)
    assert len(convert(ours, "approx-backprop", scheme="fused", inputs=x).converted) == 1
    outputs, got = gradients(ours, x)
    expected, exact = gradients(norm, x)
    assert all(map(torch.equal, outputs, expected))
    for one, other in zip(got, exact, strict=True):
        assert (one - other).abs().max() <= 1e4 * EPS * (1 + other.abs().max())  # as above


class Llama(nn.Module):
    """An RMS norm as it is written out in transformers."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.rand(width)), eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(dtype)


class LlamaRMSNorm(Llama):
    pass


class GemmaRMSNorm(Llama):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states) + hidden_states * 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_norm_that_is_written_out(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm, x = LlamaRMSNorm(64).to(dtype), torch.randn(9, 64).to(dtype)
    net = nn.Sequential(norm)
    expected, exact = gradients(net, x)
    before = saved_bytes(Doubled(net), x.requires_grad_()).total
    norm.forward = Approximate(norm, Compressed(scheme="fused"))
    outputs, got = gradients(net, x)
    assert torch.equal(outputs[0], expected[0])
    if dtype != torch.float64:  # of which torch keeps what is computed on the way in float32
        assert saved_bytes(Doubled(net), x).total <= 0.55 * before  # one tensor of two, and 1/std
    # Some dozen operations, of which autograd rounds each to the dtype; of float64, too, it computes in float32.
    bound = 100 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    for one, other in zip(got, exact, strict=True):
        assert (one - other).abs().max() <= bound * (1 + other.abs().max())


def test_norms_that_compute_something_else_are_left_alone() -> None:
    assert why_not(LlamaRMSNorm(8)) == ""
    assert why_not(Llama(8)) == ""  # by another name
    assert "it is no layer or RMS norm of the last dimension" in why_not(GemmaRMSNorm(8))
    assert "it is no batch" in why_not(nn.Embedding(3, 4))


def test_layers_that_take_the_same_result_of_a_norm_keep_it_once() -> None:
    x = torch.randn(128, 64, requires_grad=True)

    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.inner = nn.LayerNorm(64), nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
            for one in (self.norm, *self.inner):
                one.forward = Approximate(one, Compressed(bits=4))

        def forward(self, x: Tensor) -> Tensor:
            h = self.norm(x + 1)
            return sum(one(h) for one in self.inner)

    codes, ends, deviations = 128 * 64 // 2, 2 * 2 * (128 * 64 // 64), 4 * 128
    assert saved_bytes(Three(), x).total == codes + ends + deviations


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_the_eps_of_an_rms_norm_that_tells_none(dtype: torch.dtype, scale: float) -> None:
    norm = nn.RMSNorm(64).to(dtype)
    x = (scale * torch.randn(8, 64)).to(dtype)
    (expected,), exact = gradients(norm, x)
    norm.forward = Approximate(norm, Compressed(scheme="fused"))
    (y,), got = gradients(norm, x)
    assert torch.equal(y, expected)
    for one, other in zip(got, exact, strict=True):
        assert error(one.float(), other.float()) <= 4 * torch.finfo(dtype).eps  # some operations, each rounded by torch


class Part(nn.Module):
    """A norm's result goes into a region that is checkpointed, and past it."""

    def __init__(self, ours: bool, nested: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.norm, self.after = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16)
        self.within, self.act, self.nested = nn.Linear(16, 16), nn.LeakyReLU(0.2), nested
        if ours:
            for one in self.children():
                one.forward = Approximate(one, Compressed())

    def region(self, h: Tensor) -> Tensor:
        return self.within(self.act(h))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.before(x))
        if self.nested:
            inner = checkpoint(
                lambda h: checkpoint(self.region, self.norm(h), use_reentrant=False), h, use_reentrant=False
            )
        else:
            inner = checkpoint(self.region, h, use_reentrant=False)
        return inner + self.after(h)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("on_cpu", [False, True])
def test_checkpoints_of_a_part(nested: bool, on_cpu: bool) -> None:
    x = torch.randn(40, 16)
    with torch.autograd.graph.save_on_cpu() if on_cpu else contextlib.nullcontext():
        (y,), got = gradients(Part(True, nested), x)
    (expected,), exact = gradients(Part(False, nested), x)
    assert torch.equal(y, expected)
    for one, other in zip(got, exact, strict=True):
        assert error(one, other) <= 0.02  # codes of 8 bits in groups are off by some thousandths


@pytest.mark.parametrize("name", ["linear", "written the other way round", "relu", "leaky_relu", "convolution", "norm"])
def test_results_may_be_changed_in_place(name: str) -> None:
    other = pytest.importorskip("transformers").pytorch_utils.Conv1D if name.startswith("written") else None
    first = {
        "linear": lambda: nn.Linear(8, 8),
        "written the other way round": lambda: other(8, 8),
        "relu": nn.ReLU,
        "leaky_relu": lambda: nn.LeakyReLU(0.1),
        "convolution": lambda: nn.Conv1d(5, 5, 1),
        "norm": lambda: nn.LayerNorm(8),
    }[name]()

    class Net(nn.Module):
        def __init__(self, in_place: bool) -> None:
            super().__init__()
            self.first, self.in_place = first, in_place

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            if not self.in_place:  # which torch's own ReLU refuses
                return (h + x) * 2
            h += x
            return h.mul_(2)

    x = torch.randn(2, 5, 8)
    (expected,), exact = gradients(Net(False), x)
    first.forward = Approximate(first, Compressed(scheme="fused"))
    (y,), got = gradients(Net(True), x)
    assert torch.equal(y, expected)
    for one, other in zip(got, exact, strict=True):
        assert error(one, other) <= 10 * torch.finfo(torch.float32).eps  # sums of ten, in another order


def test_strides_of_any_kind_stay() -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    for act in (nn.ReLU(), nn.LeakyReLU(0.1)):
        for view in (x.transpose(1, 2), x[:, ::2], x.permute(2, 0, 1), x.expand(2, 2, 3, 4)):
            expected, y = act(view * 1), approximately(act, view * 1, Compressed())
            assert torch.equal(y, expected)
            assert y.stride() == expected.stride()


def test_nothing_goes_along_with_inputs_and_parameters() -> None:
    query = nn.Parameter(torch.randn(16, 64))
    QLinear(nn.Linear(64, 64))(query).sum().backward()
    assert not hasattr(query, "_actfit_copy")


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_largest_numbers_of_float16(bits: int) -> None:
    x = torch.randn(8, 64).half()
    x[0, 0], x[1, 0] = 65504, -65504
    made = encode(x, Compressed(bits=bits), MemoryLayout.of_rows(x))
    assert restored(*made).isfinite().all()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
def test_no_features() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    QLinear(nn.Linear(4, 0))(x * 1).sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


def test_what_is_parametrized_afterwards_is_computed_once() -> None:
    linear = nn.Linear(8, 8)
    linear.forward = Approximate(linear, Compressed())
    counted = []

    class Count(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            counted.append(1)
            return weight * 2

    nn.utils.parametrize.register_parametrization(linear, "weight", Count())
    counted.clear()
    linear(torch.randn(2, 8, requires_grad=True))
    assert len(counted) == 1


@each_scheme
def test_nothing_comes_to_a_bias_before_a_norm(how: dict) -> None:
    """A norm takes a constant away, so dx has a sum of 0: by codes, too."""
    norm, conv, x = layer(torch.float64)
    _, (dx, *_) = gradients(PreActivation(norm, nn.ReLU(), conv, **how), x)
    # Sums of 4096 numbers of float64, of which each is a sum of some hundred.
    assert (dx.sum((0, 2, 3)).abs() <= 1e5 * EPS * dx.abs().sum((0, 2, 3))).all()


def test_a_tensor_changed_in_place_is_copied_anew() -> None:
    norm, linear = nn.BatchNorm1d(8).double(), nn.Linear(8, 3).double()
    x = torch.randn(32, 8, dtype=torch.float64)
    how = Compressed()

    class Net(nn.Module):
        def __init__(self, ours: bool) -> None:
            super().__init__()
            self.norm, self.linear, self.ours = norm, linear, ours

        def forward(self, x: Tensor) -> Tensor:
            run: Callable[..., Tensor] = approximately if self.ours else lambda one, x, how: one(x)
            h = run(self.norm, x, how)
            h += 5
            return run(self.linear, h, how)

    got, exact = (gradients(Net(ours), x)[1] for ours in (True, False))
    assert error(got[3], exact[3]) <= 1e-2  # by the copy from before it would be off by as much as it is


@each_scheme
def test_the_stock_modules_run_where_nothing_is_to_be_kept(how: dict) -> None:
    norm, conv, x = layer()
    x = x[:2]
    ours, stock = PreActivation(norm, nn.ReLU(), conv, **how), plain(norm, nn.ReLU(), conv)
    with torch.no_grad():
        assert torch.equal(ours(x), stock(x))
    with torch.inference_mode():
        assert torch.equal(ours(x), stock(x))
    ours.eval()
    stock.eval()
    assert torch.equal(ours(x), stock(x))
    assert saved_bytes(Doubled(ours), x).total == saved_bytes(Doubled(stock), x).total
    ours.requires_grad_(False)
    assert not ours.train()(x).requires_grad


@pytest.mark.parametrize("frozen", range(16))
@pytest.mark.parametrize("how", [{}, {"scheme": "fused"}, {"scheme": "paper"}], ids=str)
def test_frozen_parameters(frozen: int, how: dict) -> None:
    """Any of x and the three parameters without a gradient; the others get what they get with all."""
    norm, conv, x = layer(torch.float64)
    x, ours = x[:2], PreActivation(norm, nn.ReLU(), conv, **how)
    _, exact = gradients(ours, x)
    leaves = [x.clone().requires_grad_(), *ours.parameters()]
    for place, leaf in enumerate(leaves):
        leaf.requires_grad_(not frozen >> place & 1)
    y = ours(leaves[0])
    wanted = [place for place, leaf in enumerate(leaves) if leaf.requires_grad]
    if not wanted:
        assert not y.requires_grad
        return
    made = torch.Generator().manual_seed(1)
    cotangent = torch.randn(y.shape, generator=made, dtype=y.dtype)
    # A weight of ours whose input wants no gradient is torch's, and exact.
    got = torch.autograd.grad(y, [leaves[place] for place in wanted], cotangent)
    for place, one in zip(wanted, got, strict=True):
        alone = place == 3 and frozen & 7 == 7
        assert error(one, exact[place]) <= (0.05 if alone else 1e3 * EPS)


def test_frozen_weights_keep_nothing() -> None:
    linear = nn.Linear(64, 32)
    linear.weight.requires_grad_(False)
    assert saved_bytes(Doubled(QLinear(linear)), torch.randn(16, 64, requires_grad=True)).total == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_scheme
def test_sixteen_bits(dtype: torch.dtype, how: dict) -> None:
    norm, conv, x = layer()
    norm, conv, x = norm.to(dtype), conv.to(dtype), x[:4].to(dtype)
    (y,), got = gradients(PreActivation(norm, nn.ReLU(), conv, **how), x)
    (expected,), exact = gradients(plain(norm, nn.ReLU(), conv), x)
    assert torch.equal(y, expected)
    assert [one.dtype for one in got] == [dtype] * 4
    assert error(got[0].float(), exact[0].float()) <= 0.02
    assert error(got[3].float(), exact[3].float()) <= 0.25


MIXED = {
    "convolution": lambda how: (PreActivation(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), **how), (4, 8, 6, 6)),
    "linear": lambda how: (NormLinear(nn.LayerNorm(64), nn.Linear(64, 8), **how), (4, 5, 64)),
    "alone": lambda how: (QLinear(nn.Linear(64, 8), **how), (4, 5, 64)),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("scheme", ["robust", "fused"])
def test_autocast(name: str, scheme: str) -> None:
    torch.manual_seed(0)
    ours, shape = MIXED[name]({"scheme": scheme})
    x = torch.randn(shape)
    with torch.autocast("cpu", torch.bfloat16):
        (y,), got = gradients(ours, x)
    ours.eval() if name != "convolution" else None  # the stock modules, which a batch norm's evaluation are not
    stock = ours
    if name == "convolution":
        stock = nn.Sequential(ours.norm, ours.act, ours.consumers[0])
    with torch.autocast("cpu", torch.bfloat16):
        (expected,), exact = gradients(stock, x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, expected)
    for one, other in zip(got, exact, strict=True):
        assert one.dtype == other.dtype
        assert error(one, other) <= 0.02


def test_autocast_leaves_no_copy_of_a_weight_without_gradient() -> None:
    """Autocast keeps a cast weight for its next use, which must get a gradient then."""
    linear = nn.Linear(8, 8)
    x = torch.randn(4, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        h = QLinear(linear)(x * 1)
        y = F.linear(x, linear.weight)
    (dweight,) = torch.autograd.grad(y.sum(), linear.weight)
    assert dweight.abs().sum() > 0
    h.sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("how", [{}, {"scheme": "group", "rounding": "stochastic"}], ids=str)
def test_checkpoints(reentrant: bool, how: dict) -> None:
    norm, conv, x = layer()
    ours = PreActivation(norm, nn.ReLU(), conv, **how)
    torch.manual_seed(2)
    _, exact = gradients(ours, x[:2])

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = ours

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    torch.manual_seed(2)
    if reentrant:  # which has no torch.autograd.grad
        leaf = x[:2].clone().requires_grad_()
        y = Checkpointed()(leaf * 1)
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))
        got = [leaf.grad, *(one.grad for one in ours.parameters())]
    else:
        _, got = gradients(Checkpointed(), x[:2])
    assert all(map(torch.equal, got, exact))


def test_gradients_of_gradients_are_refused() -> None:
    norm, conv, x = layer()
    leaf = x[:2].clone().requires_grad_()
    (dx,) = torch.autograd.grad(PreActivation(norm, nn.ReLU(), conv)(leaf).sum(), leaf, create_graph=True)
    with pytest.raises(KernelError, match="differentiated once only"):
        dx.sum().backward()


def test_torch_func_and_exports_take_the_stock_modules() -> None:
    ours = NormLinear(nn.LayerNorm(8), nn.Linear(8, 3))
    x = torch.randn(4, 8)
    expected = torch.func.jacrev(nn.Sequential(ours.norm, ours.linears[0]))(x)
    assert torch.equal(torch.func.jacrev(ours)(x), expected)
    names = [str(node.target) for node in torch.export.export(ours, (x,)).graph.nodes]
    assert not any("actfit" in name for name in names)


def test_copies_and_pickles() -> None:
    norm, conv, x = layer()
    ours = PreActivation(norm, nn.ReLU(), conv, bits=4)
    _, exact = gradients(ours, x[:2])
    for one in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert all(map(torch.equal, gradients(one, x[:2])[1], exact))
    assert repr(ours).splitlines()[1].strip() == "4 bits, robust"


POOLS = {
    "mean": lambda: nn.AvgPool2d(2),
    "mean, with all": lambda: nn.AvgPool2d((3, 2), 2, 1, True, False, 5),
    "mean, 3d": lambda: nn.AvgPool3d(2),
    "mean to a size": lambda: nn.AdaptiveAvgPool2d((3, None)),
    "largest": lambda: nn.MaxPool2d(3, 2, 1),
    "largest, with all": lambda: nn.MaxPool2d(2, dilation=2, ceil_mode=True),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", POOLS)
def test_pooling_is_exact_and_keeps_no_input(name: str, last: bool) -> None:
    pool = POOLS[name]()
    x = torch.randn(2, 3, 9, 8, *([7] if isinstance(pool, nn.AvgPool3d) else []))
    if last:
        x = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    (expected,), (exact,) = gradients(pool, x)
    pool.forward = Approximate(pool, Compressed())
    (y,), (dx,) = gradients(pool, x)
    assert torch.equal(y, expected)
    assert torch.equal(dx, exact)
    assert dx.stride() == exact.stride()
    places = 4 * y.numel() if name.startswith("largest") else 0
    assert saved_bytes(Doubled(pool), x.requires_grad_()).total == places


def test_the_mean_as_a_function() -> None:
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    assert torch.equal(avg_pool2d(x, 2), F.avg_pool2d(x, 2))
    assert saved_bytes(lambda x: avg_pool2d(x * 1.0, 2, padding=1), x).total == 0


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_none(value: float) -> None:
    """They come out as they do by torch, where they come; and elsewhere nothing changes."""
    x = torch.randn(300, 8)
    x[7, 3] = value
    for act in (nn.ReLU(), nn.LeakyReLU(0.1)):
        leaf = x.clone().requires_grad_()
        y = approximately(act, leaf, Compressed())
        assert torch.equal(y.isnan(), act(x).isnan())
        assert torch.equal(y.nan_to_num(), act(x).nan_to_num())
        (dx,) = torch.autograd.grad(y.sum(), leaf)
        other = x.clone().requires_grad_()
        (exact,) = torch.autograd.grad(act(other).sum(), other)
        same = ~x.isnan()  # torch's own two disagree there
        assert torch.equal(dx[same], exact[same])
    linear = nn.Linear(8, 2)
    leaf = x.clone().requires_grad_()
    QLinear(linear)(leaf * 1).sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, linear.weight.sum(0).expand_as(leaf).detach())
    assert not linear.weight.grad.isfinite().all()  # as with torch


REFUSALS: dict[str, tuple[Callable[[], Any], str]] = {
    "bits": (lambda: Compressed(bits=9), "bits must be a whole number from 2 to 8 for approx-backprop, got 9"),
    "bits of a kind": (
        lambda: Compressed(bits=True),
        "bits must be a whole number from 2 to 8 for approx-backprop, got True",
    ),
    "scheme": (lambda: Compressed(scheme="magic"), "scheme must be one of robust, paper, group, fused, got 'magic'"),
    "rounding": (lambda: Compressed(rounding="up"), "rounding must be one of nearest, stochastic, got 'up'"),
    "clip": (lambda: Compressed(clip=-1), "clip must be a number above 0 and at most 1000, got -1"),
    "clip of others": (
        lambda: Compressed(scheme="group", clip=3),
        "clip must go with scheme='robust', got scheme='group'",
    ),
    "norm": (
        lambda: PreActivation(nn.LayerNorm(3), nn.ReLU(), nn.Linear(3, 3)),
        "norm must be a batch norm, got LayerNorm",
    ),
    "synchronised": (
        lambda: QLinear(nn.SyncBatchNorm(3)),
        "linear must be a linear layer or a convolution, got SyncBatchNorm",
    ),
    "act": (
        lambda: PreActivation(nn.BatchNorm1d(3), nn.GELU(), nn.Linear(3, 3)),
        "act must be nn.ReLU or nn.LeakyReLU, got GELU",
    ),
    "consumers": (
        lambda: PreActivation(nn.BatchNorm1d(3), nn.ReLU()),
        "consumers must be one or more, got none; give a convolution or a linear layer",
    ),
    "padding": (
        lambda: QLinear(nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect")),
        "it pads by padding_mode='reflect'",
    ),
    "one side": (lambda: QLinear(nn.Conv1d(3, 3, 4, padding="same")), "it pads one side more than the other"),
    "own forward": (lambda: QLinear(Own(3, 3)), "it has a forward of its own"),
    "lazy": (lambda: QLinear(nn.LazyLinear(3)), "its parameters are not there yet"),
    "computed": (
        lambda: QLinear(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))),
        "its parameters are computed each time they are asked for",
    ),
}


class Own(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    make, said = REFUSALS[name]
    with pytest.raises(KernelError) as caught:
        make()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_batch_of_one_is_refused_as_torch_does() -> None:
    ours = PreActivation(nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(1, 3, requires_grad=True)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel") as stock:
        ours.norm(x)
    with pytest.raises(ValueError, match=re.escape(str(stock.value))):
        ours(x)
