"""Whatever is asked of logits that wait gets what stock's logits give, bit for bit."""

import copy
import gc
import io
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import KernelError
from actfit.kernels.head.logits import Logits
from tests.kernels.head.heads import CLASSES, ROWS, inputs, pair, targets

ASKED: dict[str, Callable[[Tensor], Any]] = {
    "argmax": lambda logits: logits.argmax(-1),
    "softmax": lambda logits: F.softmax(logits, -1),
    "log_softmax read": lambda logits: logits.log_softmax(-1).exp(),
    "log_softmax over rows": lambda logits: logits.log_softmax(0),
    "turned and read": lambda logits: logits[None].transpose(1, 2).exp(),
    "mean": lambda logits: logits.mean(),
    "classes cut": lambda logits: logits[:, :10],
    "one class": lambda logits: logits[..., 3],
    "rows by numbers": lambda logits: logits[torch.arange(0, 300, 2)],
    "rows by a mask": lambda logits: logits[torch.arange(300) % 2 == 0],
    "transposed": lambda logits: logits.t(),
    "reshaped": lambda logits: logits.view(-1, 2, CLASSES // 2),
    "another tensor": lambda logits: logits * torch.linspace(0, 1, CLASSES, dtype=logits.dtype),
    "itself": lambda logits: logits + logits,
    "stacked": lambda logits: torch.stack([logits, logits]),
    "detached": lambda logits: logits.detach(),
    "numpy": lambda logits: torch.from_numpy(logits.detach().numpy()),
    "in place": lambda logits: logits.mul_(2),
    "an entry set": lambda logits: (logits.__setitem__((0, 0), 3.0), logits)[1],
    "iterated": lambda logits: list(logits)[5],
    "compared": lambda logits: logits > 0,
    "an element": lambda logits: logits[0, 0].item(),
    "written": repr,
    "saved": lambda logits: _loaded(logits.detach()),
    "by dimension": lambda logits: F.cross_entropy(logits.t()[None], targets()[None]),
    "probabilities": lambda logits: F.cross_entropy(logits, F.one_hot(targets(), CLASSES).to(logits)),
    "margin": lambda logits: F.multi_margin_loss(logits, targets()),
    "divergence": lambda logits: F.kl_div(logits.log_softmax(-1), logits.detach().softmax(-1), reduction="sum"),
}


def _loaded(values: Tensor) -> Any:
    file = io.BytesIO()
    torch.save(values, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("asked", ASKED)
def test_other_operations_get_all_logits(asked: str) -> None:
    both = pair()
    x, y = inputs()
    expected, made = ASKED[asked](both.stock(x)), ASKED[asked](both.ours(y))
    assert both.head.last.asked is not None
    assert asked == "an entry set" or not isinstance(made, Logits)
    if not isinstance(expected, Tensor):
        assert str(made).partition("grad_fn")[0] == str(expected).partition("grad_fn")[0]
        return
    assert torch.equal(made, expected)
    assert made.requires_grad == expected.requires_grad
    if expected.requires_grad:
        expected.square().sum().backward()
        made.square().sum().backward()
        assert both.same(x, y)


def test_what_is_known_needs_no_logits() -> None:
    both = pair()
    logits, stock = both.ours(inputs()[0]), both.stock(inputs()[0])
    assert isinstance(logits, Logits)
    assert (logits.shape, logits.dtype, logits.device) == (stock.shape, stock.dtype, stock.device)
    assert (logits.dim(), logits.numel(), len(logits), logits.stride()) == (2, stock.numel(), ROWS, stock.stride())
    assert logits.requires_grad
    assert not logits.is_leaf
    assert logits in {logits}
    assert logits.untyped_storage is not None
    assert both.head.last.asked is None


def test_what_made_logits_is_told_after_their_loss() -> None:
    """As wrappers and measures read it of all outputs."""
    both = pair()
    logits = both.ours(inputs()[0])
    F.cross_entropy(logits, targets())
    assert logits.grad_fn is not None
    assert both.head.last.asked is None


def test_logits_are_not_made_of_weights_that_have_changed() -> None:
    both = pair()
    logits = both.ours(inputs()[0])
    F.cross_entropy(logits, targets()).backward()
    torch.optim.SGD(both.ours.parameters(), 1.0).step()
    with pytest.raises(KernelError, match=r"^logits of head must be read before the layer's weights or inputs change"):
        logits.argmax(-1)


def test_a_call_keeps_nothing_alive() -> None:
    """What became of the last logits is told without them."""
    both = pair()
    x = inputs()[0] * 1.0
    alive = weakref.ref(x)
    F.cross_entropy(both.ours(x), targets()).backward()
    del x
    gc.collect()
    assert both.head.last.used
    assert alive() is None


def test_without_gradients_and_of_few_rows_it_is_the_layer_itself() -> None:
    both = pair()
    with torch.no_grad():
        assert torch.equal(both.ours(inputs()[0]), both.stock(inputs()[0]))
        assert type(both.ours(inputs()[0])) is Tensor
    few = inputs(rows=(2, 10))[0]
    assert type(both.ours(few)) is Tensor
    assert torch.equal(both.ours(few), both.stock(few))


@pytest.mark.parametrize("wrong", ["width", "dtype"])
def test_wrong_input_is_refused_as_stock_refuses_it(wrong: str) -> None:
    both = pair()
    x = torch.randn(ROWS, 3, dtype=torch.float64) if wrong == "width" else torch.randn(ROWS, 8)
    messages = []
    for layer in (both.stock, both.ours):
        with pytest.raises(RuntimeError) as caught:
            layer(x)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_copies_have_heads_of_their_own() -> None:
    model = nn.Sequential(pair().ours)
    copied = copy.deepcopy(model)
    assert copied[0].forward is not model[0].forward
    F.cross_entropy(copied(inputs()[0]), targets()).backward()
    assert copied[0].weight.grad is not None
    assert model[0].weight.grad is None
