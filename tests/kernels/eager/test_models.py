"""With exact codes every gradient is stock's: layers of all kinds, norms, pooling, dropout, losses."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.kernels.eager.nets import Net, assert_same

pytestmark = pytest.mark.usefixtures("exact_codes")


def wide(inward: int = 32, outward: int = 64) -> nn.Linear:
    return nn.Linear(inward, outward)


def conv(inward: int = 8, outward: int = 8) -> nn.Conv2d:
    return nn.Conv2d(inward, outward, 3, padding=1)


def written_norm(net: Net, x: Tensor) -> Tensor:
    h = net[0](x)
    mean = h.mean(-1, keepdim=True)
    variance = (h - mean).pow(2).mean(-1, keepdim=True)
    return net[1]((h - mean) / torch.sqrt(variance + 1e-6) * net[2].weight)


def norm_by_var_mean(net: Net, x: Tensor) -> Tensor:
    h = net[0](x)
    variance, mean = torch.var_mean(h, -1, keepdim=True)
    return net[1]((h - mean) * (variance + 1e-6) ** -0.5 * net[2].weight)


def written_rms_norm(net: Net, x: Tensor) -> Tensor:
    h = net[0](x)
    return net[1](net[2].weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)))


def tanh_gelu(net: Net, x: Tensor) -> Tensor:
    h = net[0](x)
    return net[1](0.5 * h * (1 + torch.tanh(0.79788 * (h + 0.044715 * torch.pow(h, 3.0)))))


FLAT = {
    "gelu": nn.Sequential(wide(), nn.GELU(), wide(64, 32)),
    "gate": Net(lambda net, x: net[2](F.silu(net[0](x)) * net[1](x)), wide(), wide(), wide(64)),
    "gate of gelu": Net(lambda net, x: net[2](net[1](x) * F.gelu(net[0](x))), wide(), wide(), wide(64)),
    "glu": Net(lambda net, x: net[1](F.glu(net[0](x))), wide(), wide()),
    "norm": nn.Sequential(wide(), nn.LayerNorm(64), nn.GELU(), nn.RMSNorm(64), wide(64)),
    "written norm": Net(written_norm, wide(), wide(64), nn.LayerNorm(64)),
    "norm by var_mean": Net(norm_by_var_mean, wide(), wide(64), nn.LayerNorm(64)),
    "written rms norm": Net(written_rms_norm, wide(), wide(64), nn.RMSNorm(64)),
    "tanh gelu": Net(tanh_gelu, wide(), wide(64)),
    "batch norm": nn.Sequential(wide(), nn.BatchNorm1d(64), nn.Tanh(), wide(64)),
}


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "gradient of the input"])
def test_linear_layers(name: str, requires_grad: bool) -> None:
    assert_same(FLAT[name], torch.randn(16, 32, requires_grad=requires_grad))


class Residual(nn.Module):
    """A block of a ResNet, with or without changes in place."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.stem, self.conv1, self.conv2 = conv(3), conv(), conv()
        self.norm0, self.norm1, self.norm2 = (nn.BatchNorm2d(8) for _ in range(3))
        self.relu, self.in_place = nn.ReLU(inplace=in_place), in_place

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.relu(self.norm0(self.stem(x))), 2)
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        if self.in_place:
            out += x
        else:
            out = out + x
        return F.avg_pool2d(self.relu(out), 2)


IMAGES = {
    "residual": Residual(False),
    "residual in place": Residual(True),
    "group norm": nn.Sequential(conv(3), nn.GroupNorm(2, 8), nn.SiLU(), conv()),
    "instance norm": nn.Sequential(conv(3), nn.InstanceNorm2d(8, affine=True, track_running_stats=True), conv()),
    "batch norm, cumulative": nn.Sequential(conv(3), nn.BatchNorm2d(8, momentum=None), nn.ReLU(), conv()),
    "batch norm, no statistics": nn.Sequential(conv(3), nn.BatchNorm2d(8, track_running_stats=False), conv()),
    "transposed": nn.Sequential(nn.ConvTranspose2d(3, 8, 3, 2), nn.GELU(), nn.ConvTranspose2d(8, 4, 3)),
    "pool 1": nn.Sequential(conv(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), wide(8)),
    "pool 2": nn.Sequential(conv(3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), conv()),
    "max pool": nn.Sequential(conv(3), nn.MaxPool2d(3, 1, 1), nn.AdaptiveMaxPool2d(2), conv()),
    "unpool": Net(lambda net, x: F.max_unpool2d(*F.max_pool2d(net[0](x), 2, return_indices=True), 2), conv(3)),
    "upsampled": nn.Sequential(conv(3), nn.Upsample(scale_factor=2, mode="bilinear"), nn.PixelShuffle(2)),
}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["", "channels last"])
@pytest.mark.parametrize("training", [True, False], ids=["", "eval"])
def test_images(name: str, memory_format: torch.memory_format, training: bool) -> None:
    assert_same(IMAGES[name].train(training), torch.randn(4, 3, 8, 8).to(memory_format=memory_format))


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ((nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.Conv2d(8, 8, 1)), (3, 40, 10)),
        ((nn.Conv1d(3, 8, 3), nn.MaxPool1d(2), nn.Conv1d(8, 8, 1)), (3, 600)),
        ((nn.Conv1d(3, 8, 3), nn.MaxPool1d(2), nn.Conv1d(8, 8, 1)), (2, 3, 600)),
        ((nn.Conv3d(3, 8, 3), nn.MaxPool3d(2), nn.Conv3d(8, 8, 1)), (2, 3, 9, 9, 9)),
    ],
)
def test_places_of_maxima(layers: tuple[nn.Module, ...], shape: tuple[int, ...]) -> None:
    """Without a batch, too."""
    assert_same(nn.Sequential(*layers), torch.randn(shape))


def test_running_statistics_by_an_operator() -> None:
    """It does not run again, as that would count a batch twice."""

    def forward(net: Net, x: Tensor) -> Tensor:
        h = torch.batch_norm(net[0](x), None, None, net.mean, net.var, True, 0.1, 1e-5, False)
        return net[1](h)

    assert_same(Net(forward, conv(3), conv(), mean=torch.zeros(8), var=torch.ones(8)), torch.randn(4, 3, 8, 8))


DROPOUTS = [
    nn.Dropout(0.3),
    nn.Dropout(0.3, inplace=True),
    nn.Dropout(0.0),
    nn.Dropout(1.0),
    nn.AlphaDropout(0.3),
    nn.FeatureAlphaDropout(0.3),
    nn.Dropout1d(0.3),
]


@pytest.mark.parametrize("dropout", DROPOUTS, ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["", "eval"])
@pytest.mark.parametrize("before", [nn.Identity(), nn.GELU()], ids=["", "gelu"])
def test_dropout(dropout: nn.Module, training: bool, before: nn.Module) -> None:
    net = nn.Sequential(nn.Linear(32, 64), before, dropout, nn.Linear(64, 8)).train(training)
    assert_same(net, torch.randn(4, 8, 32))


@pytest.mark.parametrize("function", [torch.dropout, torch.dropout_, F.dropout])
def test_dropout_as_a_function(function: object) -> None:
    assert_same(
        Net(lambda net, x: net[1](function(F.gelu(net[0](x)), 0.2, True)), wide(), wide(64)), torch.randn(9, 32)
    )
    named = Net(lambda net, x: net[1](torch.dropout(input=F.gelu(net[0](x)), p=0.2, train=True)), wide(), wide(64))
    assert_same(named, torch.randn(9, 32))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(layer: type[nn.Module]) -> None:
    net = Net(lambda net, x: net[1](net[0](x)[0]), layer(32, 48, 2, dropout=0.2, bidirectional=True), wide(96, 8))
    assert_same(net, torch.randn(2, 16, 32))
    assert_same(net.double(), torch.randn(2, 16, 32).double())


@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"max_norm": 1.0}, {"padding_idx": 3}], ids=str)
def test_embeddings(options: dict[str, object]) -> None:
    net = Net(lambda net, ids: net[1](F.gelu(net[0](ids))), nn.Embedding(50, 32, **options), wide())
    assert_same(net, torch.randint(50, (8, 16)))
