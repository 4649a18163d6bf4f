"""Norm, activation and layers in one: torch's forward, exact gradients where promised, else errors like the codes'."""

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

from kernels import KernelError, saved_bytes
from kernels.approx_backprop import Compressed, PreActivation, QLinear
from tests.kernels.approx_backprop.layers import (
    EPS,
    Doubled,
    Stock,
    assert_near,
    compared,
    each_scheme,
    error,
    gradients,
    layer,
    plain,
)

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
    """The bounds of the relative errors of dx and dW, for the layer of `layer`.

    dx has one term that is approximate, a * mean(a * g) over 4096 numbers of a channel: codes that are off by e change
    it by e * mean(a * g) + a * mean(e * g), of deviation sqrt(2 / 4096) times theirs. 32 channels make that certain to
    an eighth; three of these are allowed. dW is a sum of products with a ReLU's output, of sqrt(1/2) of a's size, which
    is off by as much as a is, or less.
    """
    return 1.375 * (2 / 4096) ** 0.5 * deviation, 2**0.5 * deviation


@pytest.mark.parametrize("name", NUMBERS)
def test_bytes_and_errors_of_a_layer(name: str) -> None:
    options, kept, deviation = NUMBERS[name]
    bound_x, bound_weight = bounds(deviation)
    norm, conv, x = layer()
    ours = PreActivation(norm, nn.ReLU(), conv, **options)
    assert saved_bytes(Doubled(plain(norm, nn.ReLU(), conv)), x).total == 1048832
    assert saved_bytes(Doubled(ours), x).total == kept
    dx, _, dbias, dweight = compared(ours, plain(norm, nn.ReLU(), conv), x)
    assert torch.equal(*dbias)
    assert error(*dx) <= bound_x
    assert error(*dweight) <= bound_weight


@pytest.mark.parametrize(("bits", "deviation"), [(8, 0.0113), (4, 0.1116)])
def test_a_hostile_layer(bits: int, deviation: float) -> None:
    """The issue's, with shifts of 4 scales, a scale of 0 and a constant channel."""
    norm, conv, x = layer(hostile=True)
    ours, stock = PreActivation(norm, nn.ReLU(), conv, bits=bits), plain(norm, nn.ReLU(), conv)
    dx, dgain, dbias, dweight = compared(ours, stock, x)
    assert torch.equal(*dbias)
    assert error(*dx) <= bounds(deviation)[0]
    assert all(gradient.isfinite().all() for gradient, _ in (dgain, dweight))
    _, of_paper = gradients(PreActivation(norm, nn.ReLU(), conv, bits=bits, scheme="paper"), x)
    assert of_paper[0].isnan().any()  # unlike the paper's scheme, robust handles this


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
    return norm.double(), act, [consumer.double() for consumer in consumers], x


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
    """With "fused", which saves whole copies, every layer's gradients are exact."""
    norm, act, consumers, x = drawn
    ours = PreActivation(norm, act, *consumers, scheme="fused")
    stock = Stock([norm, act], consumers)
    pairs = compared(ours, stock, x)
    assert all(map(torch.equal, norm.buffers(), stock.first[0].buffers()))
    # Sums of at most some hundred products of numbers below ten, divided by a deviation that is seldom below a tenth.
    assert_near(pairs, 1e5 * EPS)


@given(layers(), st.sampled_from([2, 4, 8]), st.sampled_from(["nearest", "stochastic"]))
@settings(max_examples=30)
def test_what_is_exact_by_codes(drawn: Any, bits: int, rounding: str) -> None:
    """Outputs, averages, dbias and the gradient that reaches the norm are exact; other errors follow the codes'."""
    norm, act, consumers, x = drawn
    ours = PreActivation(norm, act, consumers[0], bits=bits, scheme="group", rounding=rounding)
    stock = plain(norm, act, consumers[0])
    named = dict(zip(["x", *(name for name, _ in ours.named_parameters())], compared(ours, stock, x), strict=True))
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
    cotangent = torch.randn(stock(x).shape, generator=made, dtype=x.dtype)
    consumer = copy.deepcopy(consumers[0])
    # The largest possible change of the weights' gradients:
    consumer(torch.full_like(consumed, step * gain)).backward(cotangent.abs())
    dweight, exact_weight = named["consumers.0.weight"]
    assert ((dweight - exact_weight).abs() <= consumer.weight.grad * (1 + 1e-9) + 1e-9).all()


@each_scheme
def test_nothing_comes_to_a_bias_before_a_norm(options: dict) -> None:
    """A norm subtracts a constant, so dx sums to 0, also by codes."""
    norm, conv, x = layer(torch.float64)
    _, (dx, *_) = gradients(PreActivation(norm, nn.ReLU(), conv, **options), x)
    # Sums of 4096 numbers of float64, of which each is a sum of some hundred.
    assert (dx.sum((0, 2, 3)).abs() <= 1e5 * EPS * dx.abs().sum((0, 2, 3))).all()


@each_scheme
def test_the_stock_modules_run_where_nothing_is_to_be_kept(options: dict) -> None:
    norm, conv, x = layer()
    x = x[:2]
    ours, stock = PreActivation(norm, nn.ReLU(), conv, **options), plain(norm, nn.ReLU(), conv)
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
@pytest.mark.parametrize("options", [{}, {"scheme": "fused"}, {"scheme": "paper"}], ids=str)
def test_frozen_parameters(frozen: int, options: dict) -> None:
    """Any subset of x and the three parameters is frozen; the others get the same gradients as with none frozen."""
    norm, conv, x = layer(torch.float64)
    x, ours = x[:2], PreActivation(norm, nn.ReLU(), conv, **options)
    _, exact = gradients(ours, x)
    leaves = [x.clone().requires_grad_(), *ours.parameters()]
    for place, leaf in enumerate(leaves):
        leaf.requires_grad_(not frozen >> place & 1)
    y = ours(leaves[0])
    places = [index for index, leaf in enumerate(leaves) if leaf.requires_grad]
    if not places:
        assert not y.requires_grad
        return
    made = torch.Generator().manual_seed(1)
    cotangent = torch.randn(y.shape, generator=made, dtype=y.dtype)
    # Where the input needs no gradient, torch's own layer runs, and the weight's gradient is exact.
    got = torch.autograd.grad(y, [leaves[index] for index in places], cotangent)
    for index, gradient in zip(places, got, strict=True):
        alone = index == 3 and frozen & 7 == 7
        assert error(gradient, exact[index]) <= (0.05 if alone else 1e3 * EPS)


def test_frozen_weights_keep_nothing() -> None:
    linear = nn.Linear(64, 32)
    linear.weight.requires_grad_(False)
    assert saved_bytes(Doubled(QLinear(linear)), torch.randn(16, 64, requires_grad=True)).total == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_scheme
def test_sixteen_bits(dtype: torch.dtype, options: dict) -> None:
    norm, conv, x = layer()
    norm, conv, x = norm.to(dtype), conv.to(dtype), x[:4].to(dtype)
    pairs = compared(PreActivation(norm, nn.ReLU(), conv, **options), plain(norm, nn.ReLU(), conv), x)
    assert [computed.dtype for computed, _ in pairs] == [dtype] * 4
    dx, _, _, dweight = ([tensor.float() for tensor in pair] for pair in pairs)
    assert error(*dx) <= 0.02
    assert error(*dweight) <= 0.25


def test_copies_and_pickles() -> None:
    norm, conv, x = layer()
    ours = PreActivation(norm, nn.ReLU(), conv, bits=4)
    _, exact = gradients(ours, x[:2])
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert all(map(torch.equal, gradients(copied, x[:2])[1], exact))
    assert repr(ours).splitlines()[1].strip() == "4 bits, robust"


class Own(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


BITS = "bits must be .* from 2 to 8 .*"
REFUSALS: list[tuple[Callable[[], Any], str]] = [
    (lambda: Compressed(bits=9), BITS + "got 9"),
    (lambda: Compressed(bits=True), BITS + "got True"),
    (lambda: Compressed(scheme="magic"), "scheme must be one of robust, paper, group, fused, got 'magic'"),
    (lambda: Compressed(rounding="up"), "rounding must be one of nearest, stochastic, got 'up'"),
    (lambda: Compressed(clip=-1), "clip must be .* above 0 and at most 1000, got -1"),
    (lambda: Compressed(scheme="group", clip=3), "clip must go with scheme='robust', got scheme='group'"),
    (lambda: PreActivation(nn.LayerNorm(3), nn.ReLU(), nn.Linear(3, 3)), "norm must be a batch norm, got LayerNorm"),
    (lambda: QLinear(nn.SyncBatchNorm(3)), "linear must be .*, got SyncBatchNorm"),
    (lambda: PreActivation(nn.BatchNorm1d(3), nn.GELU(), nn.Linear(3, 3)), "act must be .*LeakyReLU, got GELU"),
    (lambda: PreActivation(nn.BatchNorm1d(3), nn.ReLU()), "consumers must be one or more, got none"),
    (lambda: QLinear(nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect")), "pads by padding_mode='reflect'"),
    (lambda: QLinear(nn.Conv1d(3, 3, 4, padding="same")), "pads one side more than the other"),
    (lambda: QLinear(Own(3, 3)), "has a forward of its own"),
    (lambda: QLinear(nn.LazyLinear(3)), "parameters are not there yet"),
    (lambda: QLinear(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))), "parameters are computed each time"),
]


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize(("make", "said"), REFUSALS, ids=[said for _, said in REFUSALS])
def test_refusals(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(KernelError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_batch_of_one_is_refused_as_torch_does() -> None:
    ours = PreActivation(nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(1, 3, requires_grad=True)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel") as stock:
        ours.norm(x)
    with pytest.raises(ValueError, match=re.escape(str(stock.value))):
        ours(x)
