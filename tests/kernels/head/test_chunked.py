"""The loss in chunks is PyTorch's, and so are its gradients, for all that F.cross_entropy takes."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from actfit import KernelError
from actfit.kernels.head.chunked import rows_of
from tests.kernels.head.heads import CLASSES, NEARLY, ROWS, WIDTH, agree, inputs, near, pair, targets

OPTIONS = {
    "reduction": ["mean", "sum", "none"],
    "ignore_index": [-100, 7],
    "label_smoothing": [0.0, 0.1],
    "weighted": [False, True],
}


@pytest.mark.parametrize("chosen", list(itertools.product(*OPTIONS.values())), ids=str)
def test_all_options(chosen: tuple[Any, ...]) -> None:
    options = dict(zip(OPTIONS, chosen, strict=True))
    if options.pop("weighted"):
        options["weight"] = torch.rand(CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    target = targets(ignored=options["ignore_index"])
    agree(pair(), lambda logits: F.cross_entropy(logits, target, **options))


def capped(logits: Tensor) -> Tensor:
    """As Gemma 2 does."""
    return torch.tanh(logits / 30.0) * 30.0


CHAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "float": lambda logits: logits.float(),
    "to": lambda logits: logits.to(torch.float32),
    "cap": capped,
    "scaled": lambda logits: 0.5 * logits + 1.0,
}


@pytest.mark.parametrize("chain", CHAINS)
def test_operations_of_single_elements_wait(chain: str) -> None:
    target = targets()
    # Casts are to float32, which rounds by 6e-8.
    nearly = 1e-6 if chain in ("float", "to") else NEARLY
    agree(pair(), lambda logits: F.cross_entropy(CHAINS[chain](logits), target), nearly=nearly)


def test_bfloat16_as_its_rounding_allows() -> None:
    """The weight's gradient is a sum over 3 chunks, of which each rounds once more, by 2^-8."""
    target = targets()
    agree(pair(torch.bfloat16), lambda logits: F.cross_entropy(logits.float(), target), nearly=3 * 2**-8)


def test_autocast() -> None:
    """Products are in bfloat16, the loss in float32."""
    both, target = pair(torch.float32), targets()

    def loss(logits: Tensor) -> Tensor:
        assert logits.dtype == torch.bfloat16
        return F.cross_entropy(logits, target)

    def likelihood(logits: Tensor) -> Tensor:
        return F.nll_loss(logits.log_softmax(-1), target)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        agree(both, loss, nearly=3 * 2**-8)
        agree(pair(torch.float32), likelihood, nearly=3 * 2**-8)


def test_a_cast_to_float16_needs_all_logits() -> None:
    """Gradients of a mean over many rows would be lost in it, before a scaler has multiplied the loss."""
    both = pair(torch.float32)
    F.cross_entropy(both.ours(inputs(torch.float32)[0]).half().float(), targets())
    assert both.head.last.asked == "half"


def test_a_checkpoint_around_layer_and_loss_runs_them_once_more() -> None:
    """It sees nothing of the chunks' own graphs."""
    both, calls = pair(), []

    def loss(x: Tensor) -> Tensor:
        calls.append(1)
        return F.cross_entropy(both.ours(x), targets())

    x, y = inputs()
    checkpoint(loss, y, use_reentrant=False).backward()
    F.cross_entropy(both.stock(x), targets()).backward()
    assert len(calls) == 2
    assert all(near(ours, stock, NEARLY) for stock, ours in [*both.gradients(), (x.grad, y.grad)])


def test_all_rows_ignored_give_no_number() -> None:
    both, target = pair(), torch.full((ROWS,), -100)
    assert F.cross_entropy(both.ours(inputs()[0]), target).isnan()
    assert F.cross_entropy(both.stock(inputs()[0]), target).isnan()


@pytest.mark.parametrize("frozen", ["weight", "bias", "input"])
def test_what_is_frozen_gets_no_gradient(frozen: str) -> None:
    both = pair()
    x, _ = inputs()
    if frozen == "input":
        x.requires_grad_(False)
    else:
        getattr(both.ours, frozen).requires_grad_(False)
    F.cross_entropy(both.ours(x), targets()).backward()
    grads = {"input": x.grad, "weight": both.ours.weight.grad, "bias": both.ours.bias.grad}
    assert [name for name, grad in grads.items() if grad is None] == [frozen]


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_graph_that_is_retained_runs_again(reduction: str) -> None:
    both, target = pair(), targets()
    x, y = inputs()
    expected, made = (
        F.cross_entropy(layer(values), target, reduction=reduction).sum()
        for layer, values in ((both.stock, x), (both.ours, y))
    )
    for factor in (1.0, 0.5, 2.0):
        (factor * expected).backward(retain_graph=True)
        (factor * made).backward(retain_graph=True)
    assert all(near(ours, stock, NEARLY) for stock, ours in [*both.gradients(), (x.grad, y.grad)])


def test_float16_with_a_scaler_loses_nothing() -> None:
    """Gradients of a mean over many rows are below what float16 holds, before they are scaled."""
    both, target, scale = pair(torch.float16), targets(), 2.0**12
    x, y = inputs(torch.float16)
    for layer, values in ((both.stock, x), (both.ours, y)):
        (F.cross_entropy(layer(values).float(), target) * scale).backward()
    assert near(y.grad, x.grad, 3 * 2**-11)  # of float16, in 3 chunks
    assert near(both.ours.weight.grad, both.stock.weight.grad, 3 * 2**-11)


@pytest.mark.parametrize("changed", ["targets", "weights of classes"])
def test_a_change_in_place_is_noticed(changed: str) -> None:
    both, target, weight = pair(), targets(), torch.rand(CLASSES, dtype=torch.float64)
    loss = F.cross_entropy(both.ours(inputs()[0]), target, weight=weight, reduction="none").sum()
    (target if changed == "targets" else weight).zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_gradient_of_a_gradient_is_refused() -> None:
    both, x = pair(), inputs()[0]
    loss = F.cross_entropy(both.ours(x), targets())
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(KernelError, match="differentiated once only"):
        (grad.sum() + loss).backward()


@given(width=st.integers(1, 10**5), classes=st.integers(1, 10**6))
def test_chunks_are_whole_tiles_and_no_larger_than_the_weight_asks(width: int, classes: int) -> None:
    rows = rows_of(torch.empty(classes, width, device="meta"))
    assert rows % 64 == 0
    assert max(128, width // 4) <= rows < max(128, width // 4) + 64


def moves() -> st.SearchStrategy[list[tuple[str, Any]]]:
    bounds = st.one_of(st.none(), st.integers(-3, 3))
    cut = st.builds(slice, bounds, bounds)
    index = st.one_of(cut, st.tuples(cut, cut), st.tuples(st.just(...), cut, st.just(slice(None))))
    return st.lists(
        st.one_of(
            st.tuples(st.just("index"), index),
            st.tuples(st.sampled_from(["flat", "flattened", "contiguous", "double"]), st.none()),
            st.tuples(st.just("times"), st.floats(0.5, 2)),
        ),
        max_size=4,
    )


@pytest.mark.slow
@given(moves())
def test_rows_that_are_moved_are_those_of_stock(steps: list[tuple[str, Any]]) -> None:
    """Whatever is cut off and reshaped before the loss."""
    both = pair()
    x, y = inputs(rows=(3, 5, 24))  # still more than a chunk of 128

    def moved(values: Tensor) -> Tensor:
        for name, argument in steps:
            if name == "index" and values.dim() < 3:
                continue
            match name:
                case "index":
                    values = values[argument]
                case "flat":
                    values = values.reshape(-1, values.shape[-1])
                case "flattened":
                    values = values.flatten(0, -2)
                case "contiguous":
                    values = values.contiguous()
                case "double":
                    values = values.double()
                case "times":
                    values = values * argument
        return values.reshape(-1, CLASSES)

    stock, ours = moved(both.stock(x)), moved(both.ours(y))
    assert ours.shape == stock.shape
    target = torch.arange(len(stock)) % CLASSES
    expected, made = (F.cross_entropy(logits, target, reduction="sum") for logits in (stock, ours))
    expected.backward()
    made.backward()
    assert near(made, expected, NEARLY)
    assert near(y.grad, x.grad, NEARLY)


def test_widths_are_small_enough_for_chunks() -> None:
    """So that the tests above see several."""
    assert rows_of(torch.empty(CLASSES, WIDTH)) < ROWS / 2


def test_other_calls_and_no_bias() -> None:
    target = targets()
    agree(pair(bias=False), lambda logits: nn.CrossEntropyLoss()(logits, target))
    agree(pair(bias=False), lambda logits: F.cross_entropy(target=target, input=logits))


def test_targets_of_bytes_are_computed_as_stock_does() -> None:
    """156 is -100 as a signed byte."""
    both, target = pair(), (targets() % 250).to(torch.uint8)
    x, y = inputs()
    assert torch.equal(F.cross_entropy(both.ours(y), target), F.cross_entropy(both.stock(x), target))
