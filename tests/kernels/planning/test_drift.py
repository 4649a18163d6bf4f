"""What a plan promises holds while a model trains; where it does not, the plan's model says so."""

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from actfit import compress, make_plan
from actfit.kernels.graph import codes, watch
from actfit.kernels.graph.engine import Engine
from actfit.kernels.graph.install import install
from actfit.kernels.methods.planned import Planned
from actfit.kernels.planning import decoded
from actfit.kernels.planning.batches import call_of
from actfit.kernels.planning.make import task_of
from tests.kernels.planning.nets import Attending, mlp

TOKENS, WORDS = 64, 256


class Language(nn.Module):
    """A small language model, and its loss; at random weights all words are about as likely."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.blocks = nn.Embedding(WORDS, 64), nn.Sequential(Attending(64), Attending(64))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, WORDS, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, words: Tensor) -> Tensor:
        logits = self.head(self.norm(self.blocks(self.embedding(words))))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())


class OwnLoss(nn.Module):
    """A model of transformers, which computes its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor) -> Tensor:
        loss: Tensor = self.model(input_ids=words, labels=words).loss
        return loss


def batches() -> Iterator[Tensor]:
    """Places in a text, this file, eight at a time."""
    words = torch.tensor(list(Path(__file__).read_bytes()))
    generator = torch.Generator().manual_seed(0)
    while True:
        places = torch.randint(len(words) - TOKENS, (8,), generator=generator)
        yield torch.stack([words[place : place + TOKENS] for place in places.tolist()])


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _, words in zip(range(steps), batches(), strict=False):
        optimizer.zero_grad()
        model(words).backward()
        optimizer.step()


class Later(NamedTuple):
    """Errors of the gradient after some steps: with the plan, with the same bits everywhere, and as promised before."""

    error: float
    uniform: float
    promised: float


def later(model: nn.Module, budget: float, *, compiled: bool = False, samples: int = 2, steps: int = 30) -> Later:
    torch.manual_seed(0)
    words = next(batches())
    plan = make_plan(model, words, budget, compiled=compiled, samples=samples, goal="error")
    train(model, steps)
    task = task_of(model, call_of(words), samples=samples, compiles=compiled)
    bits = plan.method.at_site
    with task.checking(plan.recomputed, bits) as gradients:
        error, uniform = (gradients.error(each) for each in (bits, dict.fromkeys(bits, plan.uniform)))
    return Later(error**0.5, uniform**0.5, plan.errors.predicted)


@pytest.mark.slow
def test_a_plan_is_better_than_the_same_bits_everywhere_in_training_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of which the gradient hardly depends at random weights get their part of it; without it is worse."""
    after = later(Language(), 0.25)
    assert after.error < after.uniform
    assert after.error < 2 * after.promised
    monkeypatch.setattr(decoded, "SHARE", 0.0)  # of what is foreseen
    without = later(Language(), 0.25)
    assert without.error > after.error
    assert without.error > 2 * without.promised


@pytest.mark.slow
def test_a_compiled_plan_is_better_in_training_too() -> None:
    after = later(Language(), 0.19, compiled=True, samples=4)
    assert after.error < 0.8 * after.uniform
    assert after.error < 2 * after.promised


@pytest.mark.slow
def test_a_plan_of_gpt_2_keeps_its_promise_in_training() -> None:
    """As transformers has it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 128, "n_head": 4, "vocab_size": WORDS, "n_positions": TOKENS}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    after = later(OwnLoss(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **off))), 0.06, steps=20)
    assert after.error < after.uniform
    assert after.error < 2 * after.promised


def spread(model: nn.Module) -> None:
    """Of the first layer's results, all but two are about 0, and these are far off, on both sides."""
    with torch.no_grad():
        weight = model[0].weight
        weight *= 1e-3
        weight[0] = 1.0
        weight[1] = -1.0


def repeat(count: int, model: nn.Module, x: Tensor) -> None:
    """Forward and backward."""
    for _ in range(count):
        model(x).sum().backward()


def test_an_error_that_was_not_planned_is_told_once() -> None:
    model, (x,) = mlp()
    handle = compress(model, fit=0.12, inputs=x)
    seen, planned = handle.watch.seen, handle.watch.planned
    assert "seen last" not in str(handle)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        repeat(len(planned) + 1, model, x)
    assert seen.keys() == planned.keys()
    spread(model)
    with pytest.warns(UserWarning, match="at most 2 times what is planned, .* '0: aten.addmm': .*plan again") as caught:
        repeat(2 * len(planned), model, x)
    assert len(caught) == 1
    site = "0: aten.addmm"
    assert seen[site] > 2 * planned[site]
    assert f"  *: aten.addmm                   {seen[site]:.2%}    {planned[site]:.2%}" in str(handle)


@pytest.mark.parametrize("of_roots", [False, True])
def test_what_is_watched_is_the_error_of_what_backward_gets(of_roots: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole or in pieces, the last of which is ragged, of a tensor that lies in memory in another order."""
    x, order = torch.rand(3, 67, 60).mT, (0, 2, 1)
    code = planes, low, step = codes.encode(x, order, 64, 3, False, of_roots, False)
    got = codes.decode(planes, low, step, None, x.shape, order, 64, x.dtype, of_roots)
    for piece in (watch.PIECE, 1 << 11):
        monkeypatch.setattr(watch, "PIECE", piece)
        watched = watch.Watch({"a": 1.0})
        watched._see("a", x, order, 64, of_roots, code)
        assert watched.seen["a"] == pytest.approx(float((got - x).norm() / x.norm()), rel=1e-5)


def watched(model: nn.Module, *sites: str) -> watch.Watch:
    """Watches sites of a model with 4 bits everywhere."""
    engine = Engine(Planned(4), planned=dict.fromkeys(["", *sites], 1.0))
    install(model, engine)
    return engine.watch


def test_layers_with_one_graph_are_told_apart() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)) for _ in range(4)))
    sites = [f"{layer}.1: aten.tanh" for layer in range(4)]
    seen = watched(model, *sites).seen
    model[2][0].weight.data.zero_()
    model[2][0].bias.data.zero_()
    repeat(12, model, torch.randn(128, 64))
    assert [seen[site] > 0 for site in sites] == [True, True, False, True]


def test_one_tensor_of_a_forward_pass_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where two passes go before one backward pass, and where a checkpoint runs layers again in backward."""
    model, (x,) = mlp()
    watching, seen = watched(model), list[str]()
    monkeypatch.setattr(watching, "_see", lambda site, *_: seen.append(site))
    repeat(7, model, x)
    assert len(set(seen)) == 5
    assert seen == [*dict.fromkeys(seen), seen[0]]  # a turn that no tensor has is the first one's
    ways: list[Callable[[], Any]] = [lambda: model(x) + model(x), lambda: checkpoint(model, x, use_reentrant=False)]
    for run in ways:
        seen.clear()
        run().sum().backward()
        assert len(seen) == 1


def test_a_watched_model_is_copied_and_pickled() -> None:
    model, (x,) = mlp()
    original = watched(model, "0: aten.addmm")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        repeat(12, other, x)
        assert other.forward.engine.watch.seen.keys() == {"0: aten.addmm"}
    assert not original.seen
