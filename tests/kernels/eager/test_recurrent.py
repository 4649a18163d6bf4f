"""Recurrent layers and synchronised batch norm with real codes."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from kernels import convert
from kernels.methods.every_tensor import MAX_GROUP, SMALLEST
from kernels.methods.expected_error import expected_error
from tests.kernels.eager.nets import Net, converted, error, gradients
from tests.kernels.processes import needs_distributed

FEW = f"fewer than {SMALLEST} elements"
BATCH, LENGTH, WIDTH = 64, 8, 64  # a step of time has SMALLEST elements


def most(bits: int) -> float:
    """A bound of a gradient's relative error.

    A weight's gradient sums products of a decoded tensor and a gradient that was made with decoded ones: each errs as
    codes do, and sums of many independent errors grow no faster than sums of what has no common direction.
    """
    return 2 * expected_error(bits, MAX_GROUP, "nearest")


def errors(net: nn.Module, x: Tensor) -> dict[int, float]:
    """By bits, of gradients; outputs must be stock's."""
    output, exact = gradients(copy.deepcopy(net), x)
    by_bits = {}
    for bits in (8, 4, 2):
        coded_output, coded = gradients(converted(net, bits=bits), x)
        assert torch.equal(coded_output, output)
        by_bits[bits] = error(coded, exact)
    return by_bits


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2}], ids=str)
def test_gradients_of_recurrent_layers_err_by_their_codes(layer: type[nn.Module], options: dict[str, Any]) -> None:
    width = WIDTH * (1 + options.get("bidirectional", False))
    net = Net(lambda net, x: net[1](net[0](x)[0]), layer(WIDTH, WIDTH, **options), nn.Linear(width, WIDTH))
    for bits, measured in errors(net, torch.randn(LENGTH, BATCH, WIDTH)).items():
        assert 0 < measured < most(bits)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("batch", [BATCH, BATCH // 2])
def test_what_recurrent_layers_keep_whole_is_in_the_report(layer: type[nn.Module], batch: int) -> None:
    """Steps of time are tensors of their own; of half a batch they are too small for codes."""
    net = Net(lambda net, x: net[1](net[0](x)[0]), layer(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    report = convert(net, "compress", inputs=torch.randn(LENGTH, batch, WIDTH))
    assert report.whole is not None
    whole = sum(tensor.bytes for tensor in report.whole)
    reasons = {tensor.reason for tensor in report.whole}
    assert reasons <= {FEW, "no elements", "needs no gradient"}  # the last: the first state
    coded = report.before.total - whole
    assert report.after.total <= whole + coded * 5 / 32  # 4 bits, and at most 1 for minima and steps
    if batch == BATCH:
        assert coded >= LENGTH * BATCH * WIDTH * 4  # no less than the states of all steps
    else:
        assert FEW in reasons


def normed(norm: type[nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm(8), nn.GELU(), nn.Conv2d(8, 8, 3))


@pytest.mark.parametrize("training", [True, False], ids=["", "eval"])
def test_synchronised_batch_norm_of_a_process_alone_is_batch_norm(training: bool) -> None:
    net, twin = (normed(norm).train(training) for norm in (nn.SyncBatchNorm, nn.BatchNorm2d))
    x = torch.randn(8, 3, 16, 16)
    for bits, measured in errors(net, x).items():
        assert measured > 0
        torch.testing.assert_close(
            gradients(converted(net, bits=bits), x), gradients(converted(twin, bits=bits), x), rtol=0, atol=0
        )


@pytest.fixture
def group(tmp_path: Path) -> Any:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@needs_distributed
@pytest.mark.usefixtures("group")
def test_synchronised_batch_norm_in_a_group_on_a_cpu() -> None:
    """PyTorch refuses to train it on a CPU, converted or not; what it does in evaluation has codes."""
    x, net = torch.randn(8, 3, 16, 16), normed(nn.SyncBatchNorm)
    report = convert(net, "compress")
    for _ in range(2):
        with pytest.raises(ValueError, match="expected input tensor to be on GPU"):
            net(x)
        assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
        report.revert()
    assert all(0 < measured < most(bits) for bits, measured in errors(net.eval(), x).items())
