"""Single layers of `benchmarks.approx_backprop`: the bytes they save, and the errors of their gradients.

The friendly layer is like those at the start of a training: gains around 1, biases around 0. Two are hostile to the
paper's codes (eq. 9 and 10), which hold a sign only for a bias below 3 gains, and divide by the gain: one has biases of
±4 gains, the other a gain of 0 and a constant channel.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from benchmarks.approx_backprop.nets import EIGHT, FOUR, FUSED, GROUPS, OPTIONS, PAPER, PAPER_EIGHT, STOCK
from benchmarks.rows import Row, summary
from kernels import saved_bytes
from kernels.approx_backprop.modules import NormLinear, PreActivation, QLinear

Layers = list[nn.Module]
BATCH, CHANNELS, OUT, SIDE = 16, 32, 48, 16
TOKENS, WIDTH, WIDER = 128, 64, 256
FAR = 8  # channels with a bias far above 0; as many have one far below
ZERO, CONSTANT = 0, 1  # the channel whose gain is 0, and the constant channel
OUTLIER, LARGE = 17, 1000  # the feature that is LARGE times the others
SEEDS = 10
WORST = ", worst column"  # of a weight's gradient; a column multiplies one feature
LOST = "seeds whose gradient is not finite"


@dataclass(frozen=True)
class Piece:
    """A group of layers to measure.

    shape: of the input. stock: makes torch's modules. ours: makes a module with few bits from those. spoil: changes the
    modules and the input. grads: titles of the parameters' gradients.
    """

    shape: tuple[int, ...]
    stock: Callable[[], Layers]
    ours: Callable[..., nn.Module]
    ways: tuple[str, ...]
    grads: Mapping[str, str]
    spoil: Callable[[Layers, Tensor], None] | None = None


def _friendly(layers: Layers, x: Tensor) -> None:
    norm = layers[0]
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_(std=0.3)


def _far(layers: Layers, x: Tensor) -> None:
    _friendly(layers, x)
    norm = layers[0]
    with torch.no_grad():
        norm.bias[:FAR] = 4 * norm.weight[:FAR]
        norm.bias[FAR : 2 * FAR] = -4 * norm.weight[FAR : 2 * FAR]


def _dead(layers: Layers, x: Tensor) -> None:
    _friendly(layers, x)
    norm = layers[0]
    with torch.no_grad():
        norm.weight[ZERO] = 0
        x[:, CONSTANT] = 1
        norm.weight[CONSTANT] = norm.eps**0.5  # so that its dx, which has a factor 1/std, is as large as the others'


def _outlier(layers: Layers, x: Tensor) -> None:
    x[:, OUTLIER] *= LARGE


def _outlying_gain(layers: Layers, x: Tensor) -> None:
    _friendly(layers, x)
    with torch.no_grad():
        layers[0].weight[OUTLIER] = LARGE


def _normed() -> Layers:
    return [nn.BatchNorm2d(CHANNELS), nn.ReLU(), nn.Conv2d(CHANNELS, OUT, 3, padding=1)]


def _gelu_linear(gelu: nn.Module, linear: nn.Module, **options: Any) -> nn.Module:
    few = kernels.GELU(method="fewbit", bits=options["bits"])
    return nn.Sequential(few, QLinear(linear, **options))


_IMAGES, _NORM = (BATCH, CHANNELS, SIDE, SIDE), {"0.weight": "dγ", "0.bias": "dβ", "2.weight": "dW"}
_ALL = (STOCK, FUSED, PAPER_EIGHT, PAPER, EIGHT, FOUR, GROUPS)
FRIENDLY = "BatchNorm – ReLU – convolution"
FAR_BIASES, DEAD_CHANNELS = "the same, biases of ±4 gains", "the same, a gain of 0, a constant channel"
PIECES = {
    FRIENDLY: Piece(_IMAGES, _normed, PreActivation, _ALL, _NORM, _friendly),
    FAR_BIASES: Piece(_IMAGES, _normed, PreActivation, _ALL, _NORM, _far),
    DEAD_CHANNELS: Piece(_IMAGES, _normed, PreActivation, _ALL, _NORM, _dead),
    "LayerNorm – linear": Piece(
        (TOKENS, WIDTH),
        lambda: [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDER)],
        NormLinear,
        (STOCK, FUSED, EIGHT, FOUR),
        {"0.weight": "dγ", "0.bias": "dβ", "1.weight": "dW"},
        _friendly,
    ),
    "linear": Piece(
        (TOKENS, WIDTH), lambda: [nn.Linear(WIDTH, WIDER)], QLinear, (STOCK, EIGHT, FOUR), {"0.weight": "dW"}
    ),
    "LayerNorm – linear, a gain of 1000": Piece(
        (TOKENS, WIDTH),
        lambda: [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDER)],
        NormLinear,
        (STOCK, EIGHT, FOUR),
        {"0.weight": "dγ", "0.bias": "dβ", "1.weight": "dW"},
        _outlying_gain,
    ),
    "linear, a feature 1000 times the others": Piece(
        (TOKENS, WIDTH), lambda: [nn.Linear(WIDTH, WIDER)], QLinear, (STOCK, EIGHT, FOUR), {"0.weight": "dW"}, _outlier
    ),
    "GELU – linear": Piece(
        (TOKENS, WIDER),
        lambda: [nn.GELU(), nn.Linear(WIDER, WIDTH)],
        _gelu_linear,
        (STOCK, EIGHT, FOUR),
        {"1.weight": "dW"},
    ),
}


def layers(names: Sequence[str], device: torch.device, where: Mapping[str, Any], seeds: int = SEEDS) -> list[Row]:
    """Rows of bytes kept and errors of gradients, of each piece in each of its ways."""
    rows = []
    for name in names:
        piece = PIECES[name]
        n = math.prod(piece.shape)
        base = {"mode": name, "size": {"n": n}, "dtype": "float32", **where}
        for way in piece.ways:
            total = float(kept(piece, way))
            rows.append(Row("kept", way, unit="B", **base, **summary([total])))
            rows.append(Row("kept", way, unit="units", **base, **summary([total / (4 * n)])))
        values_of: dict[tuple[str, str], list[float]] = {}
        for seed in range(seeds):
            for key, error in errors(piece, seed, device).items():
                values_of.setdefault(key, []).append(error)
        for (way, grad), values in values_of.items():
            lost = sum(not math.isfinite(value) for value in values)  # JSON has no NaN
            unit, values = (LOST, [float(lost)]) if lost else ("relative", values)
            rows.append(Row(f"error of {grad}", way, unit=unit, **base, **summary(values)))
    return rows


def module_by(piece: Piece, way: str, stock: Layers) -> nn.Module:
    """The stock layers, or the module with few bits that has their parameters."""
    return nn.Sequential(*stock) if way == STOCK else piece.ours(*stock, **OPTIONS[way])


def kept(piece: Piece, way: str) -> int:
    """Bytes saved for backward; an input that is saved counts as the output of another layer."""
    x = torch.randn(piece.shape, requires_grad=True)
    saved = saved_bytes(module_by(piece, way, piece.stock()), x, accounting="cuda", fake=True)
    return saved.total + saved.inputs


def errors(piece: Piece, seed: int, device: torch.device) -> dict[tuple[str, str], float]:
    """By way and gradient: |a - g| / |g|, with g torch's gradient in float64 and a the way's; not finite if a is not.

    For weights also the worst single column: one large feature hides the errors of all others.
    """
    torch.manual_seed(seed)
    x, stock = torch.randn(piece.shape), piece.stock()
    if piece.spoil is not None:
        piece.spoil(stock, x)
    x, stock = x.to(device), [tensor.to(device) for tensor in stock]
    exact = nn.Sequential(*(copy.deepcopy(tensor).double() for tensor in stock))
    dy = torch.randn(exact(x.double()).shape).to(device)
    exact_gradients = gradients(exact, [*exact.parameters()], x.double(), dy.double())
    names = ["dx", *(piece.grads.get(name, "") for name, _ in nn.Sequential(*stock).named_parameters())]
    errors_of = {}
    for way in piece.ways:
        own = [copy.deepcopy(tensor) for tensor in stock]
        given = gradients(module_by(piece, way, own), [p for tensor in own for p in tensor.parameters()], x, dy)
        for name, got, want in zip(names, given, exact_gradients, strict=True):
            if name:
                errors_of[way, name] = float((got.double() - want).norm() / want.norm())
            if name == "dW":
                errors_of[way, name + WORST] = _worst(got.double(), want)
    return errors_of


def _worst(got: Tensor, want: Tensor) -> float:
    """The largest error of a column, relative to that column; columns of 0 do not count."""
    off, whole = ((part.movedim(1, 0).flatten(1).norm(dim=1)) for part in (got - want, want))
    return float((off[whole > 0] / whole[whole > 0]).max())


def gradients(module: nn.Module, parameters: Sequence[Tensor], x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """The gradients of x and the parameters."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(module(x), (x, *parameters), dy)
