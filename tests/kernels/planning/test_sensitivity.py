"""Errors that are measured over one graph are those of a model whose tensors have these codes."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from actfit import KernelError
from actfit.kernels.graph import trials as trials_of_graphs
from actfit.kernels.graph.engine import Engine
from actfit.kernels.graph.execute import Run
from actfit.kernels.graph.install import install
from actfit.kernels.graph.planning import CapturedGradients
from actfit.kernels.methods.planned import WIDTHS, Planned
from actfit.kernels.planning.sensitivity import MEASURED, Trials, like_site, sensitivities
from tests.kernels.planning.nets import NETS, gradient, text


def weighted(output: Tensor) -> Tensor:
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    return (output * weights).sum()


def squared_error(approximate: list[Tensor], exact: list[Tensor]) -> float:
    off, whole = (
        sum(float(part.double().square().sum()) for part in parts)
        for parts in ([a.double() - b.double() for a, b in zip(approximate, exact, strict=True)], exact)
    )
    return off / whole


@pytest.mark.parametrize("name", ["text", pytest.param("image", marks=pytest.mark.slow)])
def test_trials_see_what_codes_would_give(name: str) -> None:
    """Bit by bit: the same operations run on the same decoded numbers."""
    model, inputs = NETS[name]()
    trials = Trials()
    gradients = CapturedGradients(model, inputs, {}, weighted, trials)
    bits = {site: WIDTHS[place % len(WIDTHS)] for place, site in enumerate(trials.sites)}
    bits[next(iter(bits))] = None
    exact = gradient(model, inputs)
    install(model, Engine(Planned(8, "nearest", bits)))
    assert gradients.error(bits) == pytest.approx(squared_error(gradient(model, inputs), exact), rel=1e-12)


def test_each_pass_sees_its_own_codes() -> None:
    model, inputs = text(1)
    trials = Trials()
    gradients = CapturedGradients(model, inputs, {}, None, trials)
    site = next(name for name in trials.sites if "gate" in name)
    first = [gradients.error({site: bits}) for bits in (2, 8, 4)]
    assert first[0] > first[2] > first[1] > 0
    assert [gradients.error({site: bits}) for bits in (2, 8, 4)] == first
    assert gradients.passes == 7


def test_layers_behind_those_on_trial_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What their backward makes is known, and errors are as if they ran."""
    runs, where = [], trials_of_graphs._where_it_changes

    def counted(engine: Any, module: fx.GraphModule, run: Run) -> Run:
        def counting(given: list[Any]) -> Any:
            runs.extend(module.meta.get(trials_of_graphs.TRIED, ())[:1])  # the others are small, and run
            return run(given)

        counting._boxed_call = True  # type: ignore[attr-defined]
        return where(engine, module, counting)

    monkeypatch.setattr(trials_of_graphs, "_where_it_changes", counted)
    model, inputs = text(3)
    trials = Trials()
    gradients = CapturedGradients(model, inputs, {}, weighted, trials)
    for layer, expected in (("0", 1), ("1", 2), ("2", 3)):
        bits = {site: 4 for site in trials.sites if site.startswith(f"{layer}.")}
        runs.clear()
        error = gradients.error(bits)
        assert len(runs) == expected
        known = dict(trials.exact)
        trials.exact.clear()
        assert gradients.error(bits) == error > 0
        trials.exact.update(known)
    held = weakref.ref(trials)
    del gradients, trials
    assert held() is None  # Dynamo keeps graphs for ever


def test_trials_run_graphs_that_others_captured() -> None:
    """Each sees its own codes, also after others ran."""
    model, inputs = text(3)
    engines: dict[Any, Any] = {}
    alone, first, second = Trials(), Trials(engines=engines), Trials(engines=engines)
    made = [CapturedGradients(model, inputs, {}, weighted, trials) for trials in (alone, first)]
    (engine,) = engines.values()
    captured = len(engine.graphs)
    made.append(CapturedGradients(model, inputs, {}, weighted, second))
    assert len(engine.graphs) == captured
    assert alone.sites == first.sites == second.sites
    bits = dict.fromkeys(alone.sites, 4)
    expected = made[0].error(bits)
    again = Trials(recomputed=frozenset(["0"]), engines=engines)
    CapturedGradients(model, inputs, {}, weighted, again)
    assert len(engine.graphs) == captured + 1
    assert again.sites.keys() < alone.sites.keys()
    assert made[1].error(dict.fromkeys(bits, 2)) > made[2].error(bits) == made[1].error(bits) == expected > 0


@pytest.mark.slow
def test_errors_of_sites_add_up() -> None:
    """Roundings of thousands of elements each are all but orthogonal: of cosines of that size the sum is small."""
    model, inputs = text(2)
    trials = Trials()
    gradients = CapturedGradients(model, inputs, {}, None, trials)
    alone = sum(gradients.error({site: 4}) for site in trials.sites)
    assert gradients.error(dict.fromkeys(trials.sites, 4)) == pytest.approx(alone, rel=0.25)


@pytest.mark.parametrize("passes", [0, 64])
def test_sensitivities_of_all_widths(passes: int) -> None:
    model, inputs = text(2)
    trials = Trials()
    gradients = CapturedGradients(model, inputs, {}, None, trials)
    site_errors = sensitivities(gradients, list(trials.sites), passes)
    roles = {like_site(site) for site in trials.sites}
    assert site_errors.keys() == trials.sites.keys()
    assert all(
        errors.keys() == set(WIDTHS) and sorted(errors.values())[::-1] == list(errors.values())
        for errors in site_errors.values()
    )
    assert gradients.passes - 1 <= max(passes, len(MEASURED) * len(roles))
    for role in roles:  # what was measured together is what it is said to be together
        group = [site for site in trials.sites if like_site(site) == role]
        together = gradients.error(dict.fromkeys(group, 2))
        assert sum(site_errors[site][2] for site in group) == pytest.approx(together)
    alike = {tuple(errors.values()) for site, errors in site_errors.items() if "gate" in site}
    assert len(alike) == (1 if passes == 0 else 2)


class Output:
    """As models of transformers give it."""

    def __init__(self, loss: Any, logits: Tensor) -> None:
        self.loss, self.logits = loss, logits


class WithLoss(nn.Module):
    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.layer, self.loss = nn.Linear(64, 64), loss

    def forward(self, x: Tensor) -> Output:
        y = self.layer(x).sin()
        return Output(self.loss(y), y)


def test_the_loss_of_the_output() -> None:
    torch.manual_seed(0)
    x = torch.randn(128, 64)
    model = WithLoss(lambda y: y.square().mean())
    own = CapturedGradients(model, (x,), {}, None, Trials())
    given = CapturedGradients(model, (x,), {}, lambda output: output.logits.square().mean(), Trials())
    everywhere = dict.fromkeys(own.sites, 2)
    assert own.error(everywhere) == given.error(everywhere) > 0


def test_a_loss_that_is_none() -> None:
    x = torch.randn(128, 64)
    with pytest.raises(KernelError, match="loss must be a tensor of one number with a gradient"):
        CapturedGradients(WithLoss(lambda y: y), (x,), {}, None, Trials())
    with pytest.raises(KernelError, match="loss must be a tensor of one number"):
        CapturedGradients(WithLoss(lambda y: None), (x,), {}, lambda output: 3.0, Trials())
    frozen = nn.Linear(64, 64).requires_grad_(False)
    with pytest.raises(KernelError, match="parameters that want a gradient"):
        CapturedGradients(frozen, (x,), {}, None, Trials())
