"""compress by convert: which modules, errors, copies, what reports say, and models of all shapes."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import KernelError, convert, saved_bytes
from kernels.eager import InFewBits, InFewBitsApart, Untouched
from tests.kernels.eager.nets import Net, assert_same, block, converted, gradients

exactly = pytest.mark.usefixtures("exact_codes")


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 32), block(), block())


def standing(model: nn.Module) -> dict[str, type]:
    return {name: type(vars(module)["forward"]) for name, module in model.named_modules() if "forward" in vars(module)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"": InFewBits, "1": InFewBitsApart, "2": InFewBitsApart}),
        ({"include": "1"}, {"1": InFewBits}),
        ({"include": ["1", "2.0"]}, {"1": InFewBits, "2.0": InFewBits}),
        ({"exclude": "2"}, {"": InFewBits, "1": InFewBitsApart, "2": Untouched}),
        ({"include": "1*", "exclude": "1.0"}, {"1": InFewBits, "1.0": Untouched}),
    ],
    ids=str,
)
@exactly
def test_which_modules(options: dict[str, Any], expected: dict[str, type]) -> None:
    model, x = net(), torch.randn(16, 32)
    assert_same(model, x, **options)
    before = gradients(copy.deepcopy(model), x)
    report = convert(model, "compress", **options)
    assert standing(model) == expected
    report.revert()
    assert standing(model) == {}
    torch.testing.assert_close(gradients(model, x), before, rtol=0, atol=0)


def test_what_is_excluded_stays_as_it_is() -> None:
    model, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))), torch.randn(128, 64)
    code = 128 * 64 // 2 + 128 * 4
    assert int(saved_bytes(converted(model), x)) == 2 * code
    assert int(saved_bytes(converted(model, exclude="2"), x)) == code + 128 * 64 * 4


def test_errors() -> None:
    for options, message in [
        ({"include": "nothing"}, "nothing"),
        ({"exclude": "nothing"}, "nothing"),
        ({"bits": 1}, "bits must be a whole number from 2 to 8, got 1"),
        ({"bits": 2.5}, "bits must be"),
        ({"rounding": "up"}, "rounding must be one of nearest, stochastic"),
        ({"scheme": "robust"}, "scheme"),
        ({"max_derivative_error": 0.1}, "max_derivative_error"),
    ]:
        model = net()
        with pytest.raises(KernelError, match=message):
            convert(model, "compress", **options)
        assert standing(model) == {}


def test_a_second_time() -> None:
    model = net()
    convert(model, "compress")
    before = standing(model)
    once = "must be converted once, got one that goes by compress already; call revert"
    for again in ({"method": "compress", "bits": 8}, {"inputs": torch.randn(16, 32), "budget": 0.5}):
        with pytest.raises(KernelError, match=once):
            convert(model, **again)
    assert standing(model) == before


def test_an_error_in_the_run_leaves_the_model_alone() -> None:
    model = net()
    with pytest.raises(Exception, match=r"shapes|size"):
        convert(model, "compress", inputs=torch.randn(16, 5))
    assert standing(model) == {}


@exactly
def test_copies() -> None:
    """The copy's replaced forward refers to the copy; names of parameters are unchanged."""
    model, x = net(), torch.randn(16, 32)
    names = list(model.state_dict())
    convert(model, "compress")
    expected = gradients(model, x)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied.forward.module is copied
        copied.zero_grad()
        torch.testing.assert_close(gradients(copied, x), expected, rtol=0, atol=0)
    assert list(model.state_dict()) == names
    net().load_state_dict(model.state_dict())


class Structured(nn.Module):
    """Takes and gives structures, as Hugging Face's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block, self.head = nn.Embedding(50, 32), block(), nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, batch: dict[str, Tensor], labels: Tensor | None = None) -> dict[str, Any]:
        h = self.embedding(batch["ids"]) * batch["mask"][..., None]
        h = self.block(h)
        logits = self.head(h)
        loss = None if labels is None else F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits, "states": (h, [h.mean(1)])}


@exactly
def test_structures_and_shared_weights() -> None:
    ids, outcomes, stock = torch.randint(50, (4, 16)), [], Structured()
    for model in (stock, converted(stock)):
        given = {"ids": ids, "mask": (ids > 5).float()}
        outcomes.append(gradients(model, call=lambda model=model, given=given: model(given, labels=ids)))
    torch.testing.assert_close(*outcomes, rtol=0, atol=0)


class Adapted(nn.Module):
    """A frozen layer with a low-rank part that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.down, self.up = nn.Linear(32, 32), nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + 2 * self.up(F.dropout(self.down(x), 0.1))


@exactly
def test_frozen_layers() -> None:
    model = nn.Sequential(Adapted(), nn.GELU(), Adapted(), nn.LayerNorm(32).requires_grad_(False), Adapted())
    assert_same(model, torch.randn(16, 32))
    assert_same(nn.Sequential(block().requires_grad_(False), nn.Linear(32, 8)), torch.randn(16, 32))
    assert_same(block().requires_grad_(False), torch.randn(16, 32, requires_grad=True))


@exactly
@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64], ids=str)
def test_types(dtype: torch.dtype) -> None:
    layers = [nn.Linear(32, 64), nn.Linear(64, 32)]
    model = Net(lambda net, x: net[1](torch.tanh(net[0](x)).square()), *layers).to(dtype)
    assert_same(model, torch.randn(16, 32).to(dtype))


@exactly
def test_parametrized_weights() -> None:
    model = net()
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrizations.spectral_norm(model[1][0])
    x = torch.randn(16, 32)
    state = copy.deepcopy(model.state_dict())
    expected = gradients(model, x)
    model.load_state_dict(state)  # spectral norm keeps a vector
    model.zero_grad()
    convert(model, "compress")
    torch.testing.assert_close(gradients(model, x), expected, rtol=0, atol=0)


@exactly
def test_lazy_layers() -> None:
    model = nn.Sequential(nn.LazyLinear(64), nn.GELU(), nn.LazyLinear(8))
    convert(model, "compress")
    x = torch.randn(16, 32)
    model(x)
    stock = copy.deepcopy(model)
    del stock.forward
    torch.testing.assert_close(gradients(model, x), gradients(stock, x), rtol=0, atol=0)


@exactly
def test_empty_batches() -> None:
    assert_same(net(), torch.randn(0, 32))


def test_training_goes_on_as_with_stock() -> None:
    """At 8 bits, for some steps."""
    torch.manual_seed(0)
    stock = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
    x, y = torch.randn(128, 64), torch.randn(128, 64)
    losses = []
    for model in (stock, converted(stock, bits=8)):
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(20):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[0] < 0.9


def test_a_list_of_modules_has_each_converted() -> None:
    """It has no forward itself."""
    models = nn.ModuleList([nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8))])
    report = convert(models, "compress")
    assert [site.name for site in report.converted] == ["0", "1"]
    report.revert()
    assert str(convert(nn.ModuleList(), "compress")).startswith("0 of 0 modules")


def test_the_row_of_the_model_says_all_it_keeps() -> None:
    report = convert(nn.Sequential(nn.Linear(64, 256), nn.GELU()), "compress", inputs=torch.randn(64, 64))
    (row,) = report.converted
    assert (row.before, row.after) == (report.before.total, report.after.total)
