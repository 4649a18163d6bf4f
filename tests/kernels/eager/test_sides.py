"""ReLUs after norms: the codes of the norm's input tell exactly where the result is above 0."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import saved_bytes
from kernels.eager.encoded import Sided
from kernels.methods.every_tensor import EveryTensor
from tests.kernels.eager.nets import Net, assert_same, converted

CHANNELS, SIDE = 16, 14
NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(CHANNELS),
    "group": lambda: nn.GroupNorm(4, CHANNELS),
    "none": nn.Identity,
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu in place": lambda x: F.relu(x, inplace=True),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "leaky_relu in place": lambda x: F.leaky_relu(x, 0.1, inplace=True),
    "relu6": lambda x: F.relu6(4 * x),
    "clamp": lambda x: x.clamp(min=0.5),
    "of another order": lambda x: F.relu(x.transpose(2, 3)),
}


def normed(norm: str, activation: str, shift: float = 0.3) -> Net:
    """A convolution, a norm whose channels rise and fall, a shift that backward sums up, and an activation."""
    net = Net(
        lambda net, x: ACTIVATIONS[activation](net[1](net[0](x)) + 0 if norm == "none" else net[1](net[0](x))),
        nn.Conv2d(3, CHANNELS, 3, padding=1),
        NORMS[norm](),
    )
    for parameter in net[1].parameters():
        nn.init.normal_(parameter, 0.0 if parameter is net[1].weight else shift)
    return net


def shift_gradient(net: Net, x: Tensor, weights: Tensor) -> Tensor:
    """The gradient of the shift: sums of weights where the derivative is not 0, whatever was decoded."""
    net.zero_grad()
    (net(x).float() * weights).sum().backward()
    bias = net[0].bias if isinstance(net[1], nn.Identity) else net[1].bias
    return bias.grad.clone()


@pytest.mark.parametrize("bits", [2, 8])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", NORMS)
def test_no_gradient_goes_to_a_wrong_place(norm: str, activation: str, bits: int) -> None:
    weights = torch.randint(-99, 99, (4, CHANNELS, SIDE, SIDE)).float()
    for dtype in (torch.float32, torch.bfloat16):
        for layout in (torch.contiguous_format, torch.channels_last):
            net = normed(norm, activation).to(dtype=dtype, memory_format=layout)
            x = torch.randn(4, 3, SIDE, SIDE).to(dtype=dtype, memory_format=layout)
            expected = shift_gradient(net, x, weights)
            assert torch.equal(shift_gradient(converted(net, bits=bits), x, weights), expected)


def test_a_relu_after_a_norm_takes_a_byte_a_group() -> None:
    """Groups of 98, half of a channel of 14 x 14; without a norm it keeps its own codes."""
    x, elements = torch.randn(4, 3, SIDE, SIDE), 4 * CHANNELS * SIDE * SIDE
    groups = elements / 98
    for norm in ("batch", "none"):
        kept = [int(saved_bytes(converted(normed(norm, name), bits=4), x)) for name in ("relu", "relu6")]
        assert kept[0] < elements / 2 + 5 * groups + 1000  # and statistics
        assert kept[1] > kept[0] + elements / 8 - groups - 1000  # of two ends


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bits", range(2, 9))
def test_codes_of_a_divided_group_err_no_more(bits: int, dtype: torch.dtype) -> None:
    """Half a step of the whole range's codes, and rounding: a minimum is rounded by 2^-7 of itself at most, and a
    number that this moves across the threshold by as much again; a step by 2^-7; a result by half of its eps."""
    x = torch.randn(64 * 96).to(dtype)
    x[:3] = 0.5
    for inside in (x > 0.5, x <= 0.5, x >= 0.5, x > 9, x < 9):
        code = Sided(x, EveryTensor(bits), 96, inside=inside)
        edges, tensors = code.hand_over_edges(), code.hand_over()
        assert torch.equal(code.inside(tensors, edges), inside)
        groups = x.double().view(-1, 96)
        least, largest = groups.amin(-1), groups.amax(-1)
        step = (largest - least + least.abs() * 2**-7) / (2**bits - 1) * (1 + 2**-7)
        bound = step / 2 + 2 * 2**-7 * (least.abs() + step) + groups.abs().amax(-1) * torch.finfo(dtype).eps
        error = (code.decode(tensors).double() - x.double()).abs().view(-1, 96).amax(-1)
        assert (error <= bound).all()


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_sides_of_what_is_not_finite(special: float) -> None:
    """The group's values are NaN, as in codes of any kind; the sides are exact."""
    x = torch.randn(4 * 32)
    x[5] = special
    for inside in (x > 0, x < 0, x != x, x == x):
        code = Sided(x, EveryTensor(4), 32, inside=inside)
        edges, tensors = code.hand_over_edges(), code.hand_over()
        assert torch.equal(code.inside(tensors, edges), inside)
        decoded = code.decode(tensors)
        assert decoded[:32].isnan().all()
        assert decoded[32:].isfinite().all()


def test_sides_that_no_threshold_divides_are_exact() -> None:
    x, inside = torch.randn(1000), torch.rand(1000) < 0.5
    for group in (32, 98, 1000):
        code = Sided(x, EveryTensor(2), group, inside=inside)
        edges, tensors = code.hand_over_edges(), code.hand_over()
        assert torch.equal(code.inside(tensors, edges), inside)


@pytest.mark.usefixtures("small")
def test_a_relu_of_part_of_a_norms_result() -> None:
    """Its bools are those of the part, not of the norm's input."""
    net = Net(
        lambda net, x: F.relu(net[1](net[0](x))[:3]), nn.Conv2d(3, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS)
    )
    x, weights = torch.randn(4, 3, SIDE, SIDE), torch.randint(-99, 99, (3, CHANNELS, SIDE, SIDE)).float()
    assert torch.equal(shift_gradient(converted(net), x, weights), shift_gradient(net, x, weights))


@pytest.mark.usefixtures("exact_codes")
def test_a_norm_whose_weight_is_made_of_data() -> None:
    """It saves two tensors that are coded, the input first."""

    def forward(net: Net, x: Tensor) -> Tensor:
        weight, bias = net[1](x.mean((0, 2, 3))).chunk(2)
        return F.relu(F.batch_norm(net[0](x), None, None, weight, bias, True))

    assert_same(Net(forward, nn.Conv2d(3, 128, 3, padding=1), nn.Linear(3, 256)), torch.randn(4, 3, 8, 8))
