"""What one block returns and the next one saves: recomputed from what the first saves, bit for bit, or saved."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from actfit import KernelError, compress, saved_bytes
from tests.kernels.graph.conformance import Net, assert_kept, equal, outcome
from tests.kernels.graph.nets import WIDTH, batch
from tests.kernels.graph.test_norms import PostNorm

ROWS, LAYERS = 96, 8


class Rectified(nn.Module):
    """As a ResNet's bottleneck: its result is made of its input by cheap operations, and of a norm's input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm(self.layer(x)))


def layers(kind: Callable[[], nn.Module] = PostNorm) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(kind() for _ in range(LAYERS)))


def kept(model: nn.Module, *inputs: Tensor) -> float:
    """Tensors of the size of the batch."""
    return saved_bytes(model, *(inputs or [batch(ROWS)])).total / batch(ROWS).nbytes


def both(model: nn.Module, within: Callable[[], Any] = nullcontext) -> None:
    """Assert that stock and exact steps are the same, bit for bit."""
    ours, x = copy.deepcopy(model), batch(ROWS).requires_grad_()
    compress(ours)
    for _ in range(2):  # captures at the first
        got, expected = (outcome(each, x, within=within()) for each in (ours, model))
        assert all(equal(*parts) for parts in zip(got, expected, strict=True))


def test_a_norms_result_is_not_saved_beside_its_input() -> None:
    """Each layer saves what tanh gives and what the norm is given; of inputs only the first, which the caller holds."""
    model = layers()
    compress(model)
    assert kept(model) == 2 * LAYERS


def test_one_input_of_three_is_saved_where_each_is_made_of_the_one_before() -> None:
    """Each layer saves what its norm is given. Of the inputs the first is the caller's; the second and third are
    computed from it, the fourth is saved, as is the seventh."""
    model = layers(Rectified)
    compress(model)
    assert kept(model) == LAYERS + 2


@pytest.mark.parametrize("kind", [PostNorm, Rectified])
@pytest.mark.parametrize("within", [nullcontext, save_on_cpu])
def test_bit_for_bit(kind: Callable[[], nn.Module], within: Callable[[], Any]) -> None:
    """Also where hooks pack what is saved, as to move it elsewhere: they get whole tensors."""
    both(layers(kind), within)


def test_bit_for_bit_around_and_between_blocks() -> None:
    """In a checkpoint; and with results that somebody holds, or changes in place."""
    held = []

    def forward(net: Net, x: Tensor) -> Any:
        x = checkpoint(net[1], net[0](x), use_reentrant=False)
        held.append(net[2](x))
        return net[5](net[4](net[3](held[-1]).mul_(2)))

    both(Net(forward, *layers()))


@pytest.mark.parametrize("kind", [PostNorm, Rectified])
def test_sizes_that_change(kind: Callable[[], nn.Module]) -> None:
    stock, ours = layers(kind), layers(kind)
    handle = compress(ours)
    for rows in (ROWS, 2 * ROWS, 3 * ROWS, ROWS):
        got, expected = (outcome(model, batch(rows).requires_grad_()) for model in (ours, stock))
        assert all(equal(*parts) for parts in zip(got, expected, strict=True))
    assert len(handle.report.graphs) == 2  # the second for all sizes
    assert kept(ours, batch(2 * ROWS)) == 2 * kept(ours)


def test_a_graph_may_be_used_twice() -> None:
    model, x = layers(), batch(ROWS).requires_grad_()
    compress(model)
    loss = model(x).square().sum()
    gradients = [torch.autograd.grad(loss, [x, *model.parameters()], retain_graph=True) for _ in range(2)]
    assert equal(*gradients)


def test_a_weight_that_is_changed_before_backward_is_refused() -> None:
    """Stock would not read a norm's bias again; a gradient by another result would be wrong."""
    model = layers()
    compress(model)
    loss = model(batch(ROWS)).square().sum()
    with torch.no_grad():
        model[0].norm.bias.add_(1)
    with pytest.raises(KernelError, match="weights of a compressed block must not be changed in place before backward"):
        loss.backward()


def test_weights_that_are_freed_after_a_block_has_run_are_not_needed() -> None:
    """As FSDP does, until backward comes to the block."""
    model, x = layers(), batch(ROWS).requires_grad_()
    expected = outcome(copy.deepcopy(model), x)
    compress(model)
    values = {layer: layer.norm.weight.detach().clone() for layer in model}

    def free(layer: Any, *_: Any) -> None:
        layer.norm.weight.untyped_storage().resize_(0)

    def bring_back(layer: Any, *_: Any) -> None:
        weight = layer.norm.weight
        if not weight.untyped_storage().nbytes():
            weight.untyped_storage().resize_(weight.nbytes)
            with torch.autograd._unsafe_preserve_version_counter(weight):
                weight.data.copy_(values[layer])

    for layer in model:
        layer.register_forward_pre_hook(bring_back)
        layer.register_forward_hook(free)
        layer.register_full_backward_pre_hook(bring_back)
    got = outcome(model, x)
    assert equal(got.results, expected.results)
    assert equal(got.gradients, expected.gradients)


def test_embeddings_are_looked_up_again() -> None:
    """Neither what the norm is given nor its result is saved: rows of tables that the model holds, and the caller's
    words say both."""

    def forward(net: Net, words: Tensor) -> Any:
        return net[3](net[2](net[0](words) + net[1](words % 2)))

    model = Net(forward, nn.Embedding(500, WIDTH), nn.Embedding(2, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4))
    words = torch.arange(ROWS).reshape(4, -1) % 500
    assert_kept(model, words)
    before = kept(model, words)
    compress(model)
    assert kept(model, words) <= before - 2


def test_a_codebook_that_forward_changes_is_not_looked_up_again() -> None:
    """As that of a VQ-VAE by moving averages: backward would read the new one."""

    def forward(net: Net, x: Tensor) -> Any:
        y = net[0](x)
        found = nn.functional.embedding((y @ net.codes.mT).argmax(-1), net.codes)
        with torch.no_grad():
            net.codes.lerp_(torch.ones_like(net.codes), 0.1)
        return net[1](torch.tanh(y + found))

    codes = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(2))
    both(Net(forward, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), codes=codes))


@pytest.mark.parametrize(
    ("p", "dtype"),
    [*((p, torch.float32) for p in (0.04, 0.1, 0.15, 0.48, 0.88)), (0.48, torch.bfloat16), (0.15, torch.float64)],
)
def test_dropout_scales_as_eager_does(p: float, dtype: torch.dtype) -> None:
    """1/(1 - p) is rounded before, or after, or twice: in float32 it matters for these but .1; 15 of 99 hundredths."""
    model = Net(lambda net, x: net[1](nn.functional.dropout(net[0](x), p)), *(nn.Linear(WIDTH, WIDTH) for _ in "12"))
    both(model.to(dtype)) if dtype == torch.float32 else assert_kept(model.to(dtype), batch().to(dtype))
