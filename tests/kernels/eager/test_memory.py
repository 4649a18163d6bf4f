"""Tensors that stay alive: after forward, codes and those in the report; after backward, none."""

import gc
import weakref
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

from kernels import convert, saved_bytes
from kernels.eager import Compressing
from tests.kernels.eager.nets import Net, assert_same, block, converted, loss_of, of_activations


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Disable the garbage collector, so that cycles stay alive."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(kind: type) -> int:
    # Not isinstance, which asks a dead weakref.proxy, as other tests may have left, for its class.
    return sum(issubclass(type(candidate), kind) for candidate in gc.get_objects())


def watched(model: nn.Module) -> list[weakref.ref]:
    """A list that will hold weak references to the output of each layer."""
    references: list[weakref.ref] = []
    for layer in model.modules():
        if not list(layer.children()) and not getattr(layer, "inplace", False):
            layer.register_forward_hook(lambda layer, given, output: references.append(weakref.ref(output)))
    return references


@pytest.mark.usefixtures("no_collector", "small")
def test_activations_die() -> None:
    net = converted(nn.Sequential(block(), block()))
    references = watched(net)
    loss = loss_of(net(torch.randn(16, 32)))
    assert len(references) == 10
    assert not any(reference() is not None for reference in references)
    loss.backward()


@pytest.mark.usefixtures("no_collector", "small")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_nothing_lives_on_after_backward() -> None:
    """Although the loss is alive."""
    net = converted(nn.Sequential(block(), nn.TransformerEncoderLayer(32, 4, 64, 0.1), block()))
    losses, counts, before = [], [], alive(Compressing)
    for _ in range(4):
        losses.append(loss_of(net(torch.randn(16, 32))))
        assert alive(Compressing) == before + 1
        losses[-1].backward()
        assert alive(Compressing) == before
        counts.append(alive(Tensor))
    assert [after - before for before, after in pairwise(counts[1:])] == [1, 1]  # the loss itself


@pytest.mark.usefixtures("no_collector", "small")
def test_nothing_lives_on_without_backward() -> None:
    net, before = converted(nn.Sequential(block(), block())), alive(Compressing)
    for _ in range(2):
        net(torch.randn(16, 32))
    assert alive(Compressing) == before


@pytest.mark.usefixtures("small")
def test_a_constant_is_not_kept_for_a_call() -> None:
    """Saving the added noise would take more than the code of the sum."""
    noises = []

    def forward(net: Net, x: Tensor) -> Tensor:
        h = net[0](x)
        before = F.gelu(h)
        noise = torch.randn_like(h)
        noises.append(weakref.ref(noise))
        return F.gelu(h + noise) + before

    output = converted(Net(forward, nn.Linear(32, 64)))(torch.randn(16, 32))
    assert noises[0]() is None
    loss_of(output).backward()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("named", [False, True])
def test_what_attention_is_given_dies(named: bool) -> None:
    references = []

    def forward(net: Net, x: Tensor) -> Tensor:
        given = [net[0](x).clone() for _ in range(3)]
        references.extend(weakref.ref(reference) for reference in given)
        q, k, v = given
        if named:
            return F.scaled_dot_product_attention(query=q, key=k, value=v)
        return F.scaled_dot_product_attention(q, k, v)

    output = converted(Net(forward, nn.Linear(32, 32)))(torch.randn(2, 16, 32))
    assert [reference() for reference in references] == [None] * 3
    loss_of(output).backward()


def test_the_report_names_what_is_kept_as_it_is() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        return torch.sqrt(net[0](x).square() + 1)

    net = Net(forward, nn.Linear(64, 256))
    report = convert(net, "compress", inputs=torch.randn(128, 64))
    assert [(whole.operation, whole.bytes) for whole in report.whole] == [
        ("sqrt", 128 * 256 * 4),
        ("square", 128 * 256 * 4),
    ]
    assert "Kept whole:\n- sqrt (1 tensors): 128.0 KiB, backward needs it exactly" in str(report)
    assert "- square (1 tensors): 128.0 KiB, a later call divides, and what meets it must be exact, too" in str(report)
    assert report.after.total == report.before.total == 2 * 128 * 256 * 4


def test_the_report_names_masks_of_attention() -> None:
    """But not those that are alive anyhow, as inputs and buffers are."""

    def forward(net: Net, x: Tensor, mask: Tensor) -> Tensor:
        q = net[0](x)
        own = torch.zeros(128, 128).masked_fill(mask > 0, -torch.inf)
        y = F.scaled_dot_product_attention(q, q, q, attn_mask=own)
        return F.scaled_dot_product_attention(y, y, y, attn_mask=mask)

    net, mask = Net(forward, nn.Linear(64, 64)), torch.randn(128, 128)
    (whole,) = convert(net, "compress", inputs=(torch.randn(2, 128, 64), mask)).whole
    assert (whole.operation, whole.bytes) == ("scaled_dot_product_attention", mask.nbytes)
    assert whole.reason == "a mask, which may hold infinities"


def test_an_error_in_the_forward_pass_leaves_no_hooks() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        raise ValueError(net[0](x).shape)

    net = converted(Net(forward, nn.Linear(64, 256)))
    with pytest.raises(ValueError, match="256"):
        net(torch.randn(128, 64))
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    assert torch.overrides._get_current_function_mode_stack() == []


def test_hooks_around_hold_the_codes_alone() -> None:
    """The originals of tensors that they move, as to the CPU, are released."""
    held = []

    def move(x: Tensor) -> Tensor:
        held.append(StorageWeakRef(x.untyped_storage()))
        return x.clone()

    model, x = converted(block()), torch.randn(512, 32)
    with saved_tensors_hooks(move, lambda x: x):
        model(x)
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), x)}
    assert any(storage.cdata not in own for storage in held)
    assert all(storage.expired() or storage.cdata in own for storage in held)


def test_as_many_bytes_on_fake_tensors() -> None:
    """Dividend and divisor are told apart although all addresses are 0."""
    net = nn.Sequential(nn.Linear(32, 128), Net(lambda _, h: h / (h.abs() + 1)), nn.Linear(128, 32))
    model, x = converted(net), torch.randn(512, 32)
    assert saved_bytes(model, x, fake=True).total == saved_bytes(model, x, fake=False).total


GATES = {
    "quick gelu": lambda h: h * torch.sigmoid(1.702 * h),
    "the gate first": lambda h: torch.sigmoid(1.702 * h) * h,
    "silu": lambda h: h * h.sigmoid(),
    "tanh": lambda h: (0.5 * h).tanh() * h,
}


@pytest.mark.parametrize("name", GATES)
def test_a_gate_of_itself_keeps_one_code(name: str) -> None:
    """Its sigmoid is coded before h is saved; then that code is dropped. Summed: as an output it would stay whole."""
    net = converted(of_activations(lambda h: GATES[name](h).sum()))
    assert int(saved_bytes(net, torch.randn(1024, 32))) == 1024 * (64 // 2 + 4)


@pytest.mark.usefixtures("exact_codes")
@pytest.mark.parametrize("name", GATES)
def test_a_dropped_code_is_made_again(name: str) -> None:
    assert_same(of_activations(GATES[name]), torch.randn(16, 32))
    assert_same(of_activations(lambda h: GATES[name](h).sigmoid() * GATES[name](h)), torch.randn(16, 32))
