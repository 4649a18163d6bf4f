"""Layers of all kinds: exact bit for bit, and by 8 bits as right as with a plain hook."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.kernels.graph.conformance import Net, assert_kept, cases

ACTIVATIONS: dict[str, Callable[..., nn.Module]] = {
    **{name: getattr(nn, name) for name in ("ReLU", "ReLU6", "Hardtanh", "Hardswish", "Hardsigmoid", "LeakyReLU")},
    **{name: getattr(nn, name) for name in ("ELU", "SELU", "CELU", "Mish", "SiLU", "RReLU")},
    **{name: getattr(nn, name) for name in ("GELU", "Softplus", "Softsign", "Tanhshrink", "Softshrink", "Hardshrink")},
    **{name: getattr(nn, name) for name in ("LogSigmoid", "PReLU", "Sigmoid", "Tanh")},
    "Threshold": lambda **options: nn.Threshold(0.1, 0.0, **options),
    "Softmax": lambda: nn.Softmax(-1),
    "LogSoftmax": lambda: nn.LogSoftmax(-1),
}
IN_PLACE = [*list(ACTIVATIONS)[:12], "Threshold"]


@cases(ACTIVATIONS, ["Hardtanh"])
def test_activations(name: str) -> None:
    """After a norm, and in place."""
    for before, options in ((nn.LayerNorm(64), {}), (nn.GELU(), {"inplace": True})):
        if not options or name in IN_PLACE:
            layers = nn.Linear(32, 64), before, ACTIVATIONS[name](**options), nn.GELU(), nn.Linear(64, 4)
            assert_kept(nn.Sequential(*layers), torch.randn(16, 32))


def wide(inward: int = 32, outward: int = 64) -> nn.Linear:
    return nn.Linear(inward, outward)


def written_norm(net: Net, x: Tensor) -> Tensor:
    h = net[0](x)
    mean = h.mean(-1, keepdim=True)
    variance = (h - mean).pow(2).mean(-1, keepdim=True)
    made: Tensor = net[1]((h - mean) / torch.sqrt(variance + 1e-6) * net[2].weight)
    return made


def norm_by_var_mean(net: Net, x: Tensor) -> Tensor:
    h = net[0](x)
    variance, mean = torch.var_mean(h, -1, keepdim=True)
    made: Tensor = net[1]((h - mean) * (variance + 1e-6) ** -0.5 * net[2].weight)
    return made


def tanh_gelu(net: Net, x: Tensor) -> Tensor:
    h = net[0](x)
    made: Tensor = net[1](0.5 * h * (1 + torch.tanh(0.79788 * (h + 0.044715 * torch.pow(h, 3.0)))))
    return made


CAUSAL = torch.ones(16, 16, dtype=torch.bool).tril()
ADDED = torch.zeros(16, 16).masked_fill(~CAUSAL, -torch.inf)


def attention(mask: Callable[[Net, Tensor], Any] | None = None, **options: Any) -> Net:
    """Heads of 8 numbers, with a mask that is made of the input."""

    def forward(net: Net, x: Tensor) -> Tensor:
        q, k, v = (net[place](x).unflatten(-1, (-1, 8)).transpose(1, 2) for place in range(3))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask(net, x), **options)
        made: Tensor = net[3](y.transpose(1, 2).flatten(2))
        return made

    heads = 2 if options.get("enable_gqa") else 4
    return Net(forward, nn.Linear(32, 32), *(nn.Linear(32, 8 * heads) for _ in range(2)), wide(32, 32), wide(32, 16))


def written_attention(net: Net, x: Tensor) -> Tensor:
    q, k, v = (net[place](x).unflatten(-1, (4, 8)).transpose(1, 2) for place in range(3))
    weights = F.dropout(torch.softmax((q @ k.mT / 8**0.5).masked_fill(~CAUSAL, -torch.inf), -1), 0.1)
    made: Tensor = net[3]((weights @ v).transpose(1, 2).reshape(x.shape))
    return made


FLAT: dict[str, Callable[[], nn.Module]] = {  # of [2, 16, 32]
    "gate": lambda: Net(lambda net, x: net[2](F.silu(net[0](x)) * net[1](x)), wide(), wide(), wide(64)),
    "gated linear unit": lambda: Net(lambda net, x: net[1](F.glu(net[0](x))), wide(), wide()),
    "norms": lambda: nn.Sequential(wide(), nn.LayerNorm(64), nn.GELU(), nn.RMSNorm(64), wide(64)),
    "written norm": lambda: Net(written_norm, wide(), wide(64), nn.LayerNorm(64)),
    "norm by var_mean": lambda: Net(norm_by_var_mean, wide(), wide(64), nn.LayerNorm(64)),
    "written gelu": lambda: Net(tanh_gelu, wide(), wide(64)),
    "dropout": lambda: nn.Sequential(wide(), nn.GELU(), nn.Dropout(0.3), wide(64)),
    "dropout in place": lambda: nn.Sequential(wide(), nn.GELU(), nn.Dropout(0.3, inplace=True), wide(64)),
    "alpha dropout": lambda: nn.Sequential(wide(), nn.SELU(), nn.AlphaDropout(0.3), wide(64)),
    "dropout of all": lambda: nn.Sequential(wide(), nn.GELU(), nn.Dropout(1.0), wide(64)),
    "attention": attention,
    "causal attention": lambda: attention(is_causal=True),
    "attention with dropout": lambda: attention(dropout_p=0.3),
    "grouped attention": lambda: attention(enable_gqa=True),
    "mask of bools": lambda: attention(lambda net, x: CAUSAL),
    "mask of activations": lambda: attention(lambda net, x: torch.where(x[:, None, :, :16] > 3.0, -torch.inf, 0.0)),
    "mask with a gradient": lambda: attention(lambda net, x: net[4](x)[:, None] + ADDED),
    "written attention": lambda: Net(written_attention, *(wide(32, 32) for _ in range(4))),
    "multi-head attention": lambda: Net(
        lambda net, x: net[0](x, x, x, need_weights=False)[0], nn.MultiheadAttention(32, 4, batch_first=True)
    ),
    "encoder layer": lambda: nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True),
    "decoder layer": lambda: Net(lambda net, x: net[0](x, x), nn.TransformerDecoderLayer(32, 4, 64, 0.1)),
}


@cases(FLAT, ["norm by var_mean", "mask with a gradient"])
def test_layers(name: str) -> None:
    assert_kept(FLAT[name](), torch.randn(2, 16, 32, requires_grad=True))


def conv(inward: int = 8, outward: int = 8) -> nn.Conv2d:
    return nn.Conv2d(inward, outward, 3, padding=1)


def residual(net: Net, x: Tensor) -> Tensor:
    """A block of a ResNet, in place."""
    x = F.max_pool2d(F.relu(net[1](net[0](x)), inplace=True), 2)
    out = net[3](net[2](x))
    out += x
    return F.avg_pool2d(F.relu_(out), 2)


IMAGES: dict[str, Callable[[], nn.Module]] = {  # of [4, 3, 8, 8]
    "residual": lambda: Net(residual, conv(3), nn.BatchNorm2d(8), conv(), nn.BatchNorm2d(8)),
    "group norm": lambda: nn.Sequential(conv(3), nn.GroupNorm(2, 8), nn.SiLU(), conv()),
    "instance norm": lambda: nn.Sequential(
        conv(3), nn.InstanceNorm2d(8, affine=True, track_running_stats=True), conv()
    ),
    "norm without statistics": lambda: nn.Sequential(conv(3), nn.BatchNorm2d(8, track_running_stats=False), conv()),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(3, 8, 3, 2), nn.GELU(), nn.ConvTranspose2d(8, 4, 3)),
    "average pools": lambda: nn.Sequential(
        conv(3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), conv(), nn.AdaptiveAvgPool2d(1)
    ),
    "max pools": lambda: nn.Sequential(conv(3), nn.MaxPool2d(3, 1, 1), nn.AdaptiveMaxPool2d(2), conv()),
    "unpool": lambda: Net(lambda net, x: F.max_unpool2d(*F.max_pool2d(net[0](x), 2, return_indices=True), 2), conv(3)),
    "nearest": lambda: nn.Sequential(conv(3), nn.Upsample(scale_factor=2), nn.PixelShuffle(2)),
    "bilinear": lambda: nn.Sequential(conv(3), nn.Upsample(scale_factor=2, mode="bilinear"), conv()),
    "bicubic": lambda: nn.Sequential(conv(3), nn.Upsample(size=(13, 5), mode="bicubic"), conv()),
}


@cases(IMAGES, ["residual", "bilinear"])
@pytest.mark.parametrize(("training", "last"), [(True, False), (False, True)], ids=["", "eval, channels last"])
def test_images(name: str, training: bool, last: bool) -> None:
    form = torch.channels_last if last else torch.contiguous_format
    net = IMAGES[name]().to(memory_format=form).train(training)
    assert_kept(net, torch.randn(4, 3, 8, 8).to(memory_format=form))


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 17])
@pytest.mark.parametrize("share", [1.0, 0.7])
def test_windows_of_nothing_but_minus_infinity(channels: int, share: float) -> None:
    """Of channels-last images on a CPU, PyTorch's pooling then returns positions outside of all windows."""
    x = torch.randn(4, channels, 8, 8)
    x[torch.rand_like(x) <= share] = -torch.inf
    assert_kept(nn.MaxPool2d(3, 2, 1), x.contiguous(memory_format=torch.channels_last).requires_grad_())


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"max_norm": 1.0}, {"padding_idx": 3}], ids=str)
def test_embeddings(options: dict[str, Any]) -> None:
    net = Net(lambda net, ids: net[1](F.gelu(net[0](ids))), nn.Embedding(50, 32, **options), wide())
    assert_kept(net, torch.randint(50, (8, 16)))


NARROW = {
    "linear": lambda: nn.Sequential(wide(), nn.GELU(), nn.RMSNorm(64, elementwise_affine=False), wide(64)),
    "products": lambda: Net(
        lambda net, x: net[0](x) @ net[1](x).float().mT @ net[2](x).float(), wide(), wide(), wide()
    ),
    "functions": lambda: Net(
        lambda net, x: [f(y) for y in [net[0](x)] for f in (torch.exp, torch.expm1, F.softplus)], wide()
    ),
    "encoder layer": lambda: nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True),
}


@cases(NARROW, ["products"])
def test_autocast(name: str) -> None:
    """Of weights that are used once: others' gradients PyTorch adds up in 16 bits, by its cache of casts."""

    def cast(net: Net, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return net[0](x)

    assert_kept(Net(cast, NARROW[name]()), torch.randn(2, 16, 32), most=torch.finfo(torch.bfloat16).eps)
