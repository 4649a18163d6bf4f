"""Groups of elements that share a minimum and a scale: each of one feature, so a large feature coarsens no other."""

from math import ceil, prod

import pytest
import torch
from torch import Tensor, nn

from kernels import saved_bytes
from kernels.approx_backprop import Compressed, NormLinear, PreActivation, QLinear
from kernels.approx_backprop.forwards import Approximate
from kernels.approx_backprop.memory_layout import MemoryLayout
from tests.kernels.approx_backprop.layers import Doubled


def worst_column(layer: nn.Module, stock: nn.Module, weight: nn.Parameter, x: Tensor, dim: int = 1) -> float:
    """The relative error of the weight's gradient for the input feature where it is worst."""
    grads = []
    for net in (layer, stock):
        y = net(x.clone(memory_format=torch.preserve_format).requires_grad_() * 1)
        cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
        grads += torch.autograd.grad(y, weight, cotangent)
    got, exact = (gradient.movedim(dim, 0).flatten(1) for gradient in grads)
    return float(((got - exact).norm(dim=1) / exact.norm(dim=1)).max())


def inputs(name: str, times: float) -> tuple[nn.Module, nn.Module, nn.Parameter, Tensor, int]:
    """Our layer, torch's, the weight, an input with one feature scaled by a factor, and the dimension of features."""
    torch.manual_seed(0)
    if name in ("convolution", "channels last", "small images"):
        conv = nn.Conv2d(24, 64, 1)
        x = torch.randn((128, 24, 2, 2) if name == "small images" else (16, 24, 12, 12))
        x[:, 7] *= times
        if name == "channels last":
            x = x.to(memory_format=torch.channels_last)
        return QLinear(conv), conv, conv.weight, x, 1
    x = torch.randn(4, 100, 24)
    if name == "norm":
        norm, linear = nn.LayerNorm(24), nn.Linear(24, 64)
        norm.weight.data[7] = times
        return NormLinear(norm, linear), nn.Sequential(norm, linear), linear.weight, x, 1
    x[..., 7] *= times
    if name == "conv1d of transformers":
        other = pytest.importorskip("transformers").pytorch_utils.Conv1D(64, 24)
        ours = pytest.importorskip("transformers").pytorch_utils.Conv1D(64, 24)
        ours.weight, ours.bias = other.weight, other.bias
        ours.forward = Approximate(ours, Compressed())
        return ours, other, other.weight, x, 0
    linear = nn.Linear(24, 64)
    return QLinear(linear), linear, linear.weight, x, 1


NAMES = ["linear", "conv1d of transformers", "norm", "convolution", "channels last", "small images"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("times", [1, 30, 1000])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_large_feature_does_not_blur_the_others(name: str, times: float, bits: int) -> None:
    layer, stock, weight, x, dim = inputs(name, times)
    for module in layer.modules():
        if hasattr(module, "method"):
            module.method = Compressed(bits=bits)
    if isinstance(forward := vars(layer).get("forward"), Approximate):
        forward.options.method = Compressed(bits=bits)
    # Numbers of a feature are from N(0, 1), and 64 of them in six deviations or less: a step of 6 / (2^bits - 1), and
    # an error of step / sqrt(12). Twice that for the worst of 24 features, each a mean over 64 outputs.
    assert worst_column(layer, stock, weight, x, dim) <= 2 * 6 / (2**bits - 1) / 12**0.5


SHAPES = {
    "rows": lambda: MemoryLayout.of_rows(torch.empty(5, 7, 6)),
    "rows of two dimensions": lambda: MemoryLayout.of_rows(torch.empty(5, 7, 6), 2),
    "many rows": lambda: MemoryLayout.of_rows(torch.empty(131, 3)),
    "one row": lambda: MemoryLayout.of_rows(torch.empty(1, 9)),
    "one feature": lambda: MemoryLayout.of_rows(torch.empty(70, 1)),
    "images": lambda: MemoryLayout.of(torch.empty(3, 4, 9, 11)),
    "small images": lambda: MemoryLayout.of(torch.empty(70, 4, 2, 3)),
    "channels last": lambda: MemoryLayout.of(torch.empty(3, 4, 9, 11).to(memory_format=torch.channels_last)),
    "signals": lambda: MemoryLayout.of(torch.empty(5, 7, 6)),
    "long signals": lambda: MemoryLayout.of(torch.empty(2, 3, 131)),
    "a batch": lambda: MemoryLayout.of(torch.empty(131, 3)),
}


def groups(layout: MemoryLayout) -> Tensor:
    """The group of each element, by the definition."""
    i = torch.arange(prod(layout.shape))
    outer, token, feature = (
        i // (layout.tokens * layout.features),
        i // layout.features % layout.tokens,
        i % layout.features,
    )
    return (outer * ceil(layout.tokens / layout.group_size) + token // layout.group_size) * layout.features + feature


def features(layout: MemoryLayout, rows: bool) -> Tensor:
    i = torch.arange(prod(layout.shape))
    return i % layout.shape[-1] if rows else i // layout.inner % layout.shape[1]


def mixes(groups: Tensor, features: Tensor) -> bool:
    pairs = torch.unique(torch.stack([groups, features]), dim=1)
    return pairs.shape[1] > len(torch.unique(groups))


@pytest.mark.parametrize("name", SHAPES)
def test_no_group_has_two_features(name: str) -> None:
    layout, rows = SHAPES[name](), "row" in name or name == "one feature"
    assert not mixes(groups(layout), features(layout, rows))
    sizes = torch.bincount(groups(layout))
    assert 1 <= sizes.min() <= sizes.max() == layout.group_size <= 64
    assert layout.bytes_of(5) == 5 * ceil(sizes.sum() / 8) + 4 * len(sizes)
    # A feature's tokens form as few groups as possible, of similar size.
    assert len(sizes) == len(groups(layout)) // layout.tokens * ceil(layout.tokens / 64)


def test_a_copy_is_shared_only_where_it_does_not_mix_features() -> None:
    makers = {
        (5, 7, 6): [MemoryLayout.of, MemoryLayout.of_rows, lambda x: MemoryLayout.of_rows(x, 2)],
        (70, 4, 2): [MemoryLayout.of, MemoryLayout.of_rows, lambda x: MemoryLayout.of_rows(x, 2)],
        (131, 3): [MemoryLayout.of, MemoryLayout.of_rows],
        (3, 4, 9, 11): [
            MemoryLayout.of,
            MemoryLayout.of_rows,
            lambda x: MemoryLayout.of_rows(x, 2),
            lambda x: MemoryLayout.of_rows(x, 3),
        ],
    }
    answers = set()
    for shape, makes in makers.items():
        x = torch.empty(shape)
        for copy in makes:
            for layer_layout in makes[:2]:  # a layer's features are channels, or the last dimension
                separate = not mixes(groups(copy(x)), features(layer_layout(x), layer_layout is MemoryLayout.of_rows))
                assert copy(x).separates(layer_layout(x)) <= separate
                answers.add((copy(x).separates(layer_layout(x)), separate))
    assert {(True, True), (False, False)} <= answers


def test_a_norms_copy_is_not_taken_by_a_layer_whose_features_it_mixes() -> None:
    """Groups of a norm's last dimension lie along the channels that the convolution multiplies."""
    norm, conv = nn.LayerNorm(5), nn.Conv1d(64, 8, 1)
    x = torch.randn(2, 64, 5)
    for module in (norm, conv):
        module.forward = Approximate(module, Compressed(bits=8))
    kept = saved_bytes(lambda x: conv(norm(x * 1)), x.requires_grad_())
    codes, n = sum(tensor.bytes for tensor in kept.tensors if tensor.dtype == "uint8"), x.numel()
    assert codes == 2 * n  # each saves its own copy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_bytes_by_tokens(dtype: torch.dtype, bits: int) -> None:
    """A group of few tokens costs 4 bytes an element and more; if the tensor costs no more, it is saved itself."""
    exact = set()
    for tokens in (1, 2, 3, 4, 8, 16, 63, 64, 65, 130):
        linear = nn.Linear(24, 8).to(dtype)
        x = torch.randn(tokens, 24, dtype=dtype, requires_grad=True)
        codes = bits * 24 * tokens // 8 + 4 * 24 * ceil(tokens / 64)
        whole = x.numel() * x.element_size()
        assert saved_bytes(Doubled(QLinear(linear, bits=bits)), x).total == min(codes, whole)
        exact |= {tokens} if whole <= codes else set()
    assert exact == ({1} if dtype == torch.float32 else {1: set(), 2: {1, 2}, 4: {1, 2}, 8: {1, 2, 3, 4}}[bits])


def test_few_tokens_are_kept_exactly_also_behind_norms() -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(24, 8), torch.randn(1, 24)
    norm = nn.LayerNorm(24)
    ours, stock = NormLinear(norm, linear, bits=8), nn.Sequential(norm, linear)
    eps = torch.finfo(torch.float32).eps
    assert worst_column(ours, stock, linear.weight, x) <= 100 * eps  # the normalised input, rounded, and a gain
    ours = PreActivation(nn.BatchNorm1d(24), nn.ReLU(), linear, bits=8, scheme="group")
    stock, x = nn.Sequential(ours.norm, ours.act, linear), torch.randn(3, 24).bfloat16()
    # Of bfloat16, and its lowest bit tells the sign: off by an eps; sums of three products, of any size.
    assert worst_column(ours.bfloat16(), stock.bfloat16(), linear.weight, x) <= 4 * torch.finfo(torch.bfloat16).eps
