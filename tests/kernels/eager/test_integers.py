"""Codes of integers are exact: positions of max pooling of any geometry, and indices."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import convert, saved_bytes
from kernels.eager.encoded import Encoded
from kernels.eager.integers import Integers, coding_of
from tests.kernels.eager.nets import assert_same, converted

POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
sizes = st.integers(1, 12)
kernels = st.integers(1, 4)


@st.composite
def geometries(draw: st.DrawFn) -> tuple[list[int], dict[str, object]]:
    """Sizes of an image of 1 to 3 dimensions, and arguments of a pooling that PyTorch allows."""
    count = draw(st.integers(1, 3))
    each = [(draw(sizes), draw(kernels), draw(st.integers(1, 5)), draw(st.integers(1, 3))) for _ in range(count)]
    paddings = [draw(st.integers(0, kernel // 2)) for _, kernel, _, _ in each]
    lengths = [size for size, *_ in each]
    # A window must fit, with the padding on both sides.
    lengths = [
        max(length, dilation * (kernel - 1) + 1 - 2 * padding)
        for length, (_, kernel, _, dilation), padding in zip(lengths, each, paddings, strict=True)
    ]
    _, kernel, stride, dilation = zip(*each, strict=True)
    options = {"kernel_size": kernel, "stride": stride, "padding": tuple(paddings), "dilation": dilation}
    return lengths, {**options, "ceil_mode": draw(st.booleans())}


def again(code: Encoded) -> Tensor:
    return code.decode(code.hand_over())


@given(geometries(), st.integers(0, 2**32), st.booleans(), st.booleans())
@example(([7, 7], {"kernel_size": 3, "stride": 2, "padding": 1}), 0, False, False)
@example(([5, 9], {"kernel_size": (2, 3), "stride": None, "dilation": 2, "ceil_mode": True}), 1, True, True)
def test_places_of_pooling(geometry: tuple[list[int], dict[str, object]], seed: int, last: bool, hostile: bool) -> None:
    lengths, options = geometry
    x = torch.randn(2, 3, *lengths, generator=torch.Generator().manual_seed(seed))
    if hostile:
        x[x > 0.5], x[0] = math.nan, -math.inf
    if last and len(lengths) == 2:
        x = x.contiguous(memory_format=torch.channels_last)
    name = f"max_pool{len(lengths)}d"
    _, places = POOLS[len(lengths)](x, return_indices=True, **options)
    coding = coding_of(name, (x,), options, [x])
    dilations = options.get("dilation", 1)
    dilations = [dilations] * len(lengths) if isinstance(dilations, int) else dilations
    if any(dilation > length for dilation, length in zip(dilations, lengths, strict=True)):
        assert coding is None
        return
    decoded = again(coding(places)).as_strided(places.shape, places.stride())
    torch.testing.assert_close(decoded, places, rtol=0, atol=0)


@pytest.mark.parametrize("bound", [1, 2, 3, 255, 256, 257, 2**16, 2**16 + 1, 2**40])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers(bound: int, dtype: torch.dtype) -> None:
    bound = min(bound, torch.iinfo(dtype).max)
    x = torch.randint(bound, (1001,), dtype=dtype)
    x[0], x[1] = bound - 1, 0
    code = Integers(x, bound)
    tensors = code.hand_over()
    assert sum(len(plane) for plane in tensors) == max(1, (bound - 1).bit_length())
    torch.testing.assert_close(code.decode(tensors), x, rtol=0, atol=0)


@pytest.mark.parametrize(("kernel", "bits"), [(2, 2), (3, 4), (4, 4), (5, 5)])
def test_bits_of_a_window(kernel: int, bits: int) -> None:
    """Enough bits for the positions in a window; of the image, only its shape and one element of 4 bytes."""
    net = converted(nn.Sequential(nn.Conv2d(3, 3, 1), nn.MaxPool2d(kernel, 1, kernel // 2)))
    side = 64 if kernel % 2 else 65
    assert int(saved_bytes(net, torch.randn(1, 3, 64, 64))) == bits * math.ceil(3 * side**2 / 8) + 4


class Indexing(nn.Module):
    """A module that saves indices other than inputs and buffers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.linear, self.name = nn.Linear(32, 64), name

    def forward(self, x: Tensor) -> Tensor:
        h, index = self.linear(x), torch.arange(128 * 64).view(128, 64) * 37 % 64
        match self.name:
            case "gather":
                return h.gather(1, index)
            case "expanded":
                return h.gather(1, index[0].add(0).expand(128, -1))
            case "part":  # others of its storage are larger
                return h[:, :8].gather(1, (index % 8).add(torch.arange(64) // 40 * 50)[:, :40])
            case "scatter":
                return h.scatter(1, index, h).scatter_add(1, index.flip(0), h.sin())
            case "select":
                return h.index_select(0, index.view(-1))
            case "embedding":
                return F.embedding(index, h)
            case "sort":
                return h.sort(1)[0] + h.topk(40, 1)[0].sum() + h.cummax(1)[0] + h.kthvalue(3, 1, True)[0]


@pytest.mark.filterwarnings("ignore:the error of the gradient must be measured")  # exact codes have none
@pytest.mark.usefixtures("exact_codes")
@pytest.mark.parametrize("name", ["gather", "expanded", "part", "scatter", "select", "embedding", "sort"])
def test_indices(name: str) -> None:
    net, x = Indexing(name), torch.randn(128, 32)
    assert_same(net, x)
    whole = {row.operation for row in convert(net, "compress", inputs=x).whole if row.reason == "integers"}
    assert whole == ({"gather"} if name == "part" else set())


@pytest.mark.filterwarnings("ignore:the error of the gradient must be measured")  # exact codes have none
@pytest.mark.usefixtures("exact_codes")
@pytest.mark.parametrize(
    ("pool", "shape"),
    [
        (nn.MaxPool1d(3, 2, 1), (4, 3, 33)),
        (nn.MaxPool2d((3, 2), ceil_mode=True, dilation=(1, 3)), (2, 3, 13, 14)),
        (nn.MaxPool3d(2, 1), (2, 3, 5, 6, 7)),
        (nn.MaxPool2d(2), (3, 16, 16)),
    ],
    ids=str,
)
def test_pooling_within_a_model(pool: nn.Module, shape: tuple[int, ...]) -> None:
    norm = nn.LayerNorm(shape[-1])
    assert_same(nn.Sequential(norm, pool), torch.randn(shape))
    whole = convert(nn.Sequential(norm, pool), "compress", inputs=torch.randn(shape)).whole
    assert not [row for row in whole if row.reason == "integers"]
