"""Models that keep tensors with a graph on their modules, as mixtures of experts keep an auxiliary loss."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from actfit import KernelError, compress, make_plan, saved_bytes
from actfit.kernels.planning import planner


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x).tanh()
        self.auxiliary = h.square().mean()
        result: Tensor = x + self.down(h)
        return result


def with_auxiliary_losses() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(4)))


@pytest.mark.slow
def test_a_plan_that_makes_the_peak_larger_is_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = with_auxiliary_losses(), torch.randn(256, 64)
    monkeypatch.setattr(planner, "_found", lambda *given: "the peak of a step would be 1 GiB, 2 × what it is now")
    with pytest.warns(UserWarning, match=r"fit must leave the peak as low as it is, got 0\.05: .* × what it is"):
        plan = compress(model, fit=0.05, inputs=x).plan
    assert plan is not None
    assert not plan.needed
    assert "Sequential is left as it is: the peak of a step would be" in str(plan)


@pytest.mark.slow
@pytest.mark.parametrize("recomputed", [(), ("0", "1")])
def test_auxiliary_losses(recomputed: tuple[str, ...]) -> None:
    """Graphs of blocks that are computed again refer to their modules."""
    model, x = with_auxiliary_losses(), torch.randn(256, 64)
    plan = make_plan(model, x, 0.3, goal="error")
    compress(model, plan=replace(plan, recomputed=recomputed))
    assert saved_bytes(model, x).total <= plan.planned.kept <= 0.3 * plan.stock.kept
    (model(x).square().mean() + sum(block.auxiliary for block in model)).backward()


@pytest.mark.slow
def test_what_is_put_elsewhere_is_told_with_a_way_out() -> None:
    outside: list[Any] = []

    class Leaking(Block):
        def forward(self, x: Tensor) -> Tensor:
            outside.append(super().forward(x))
            result: Tensor = outside[-1]
            return result

    x = torch.randn(256, 64)
    with pytest.raises(KernelError, match="start without what puts it there"):
        make_plan(Leaking(), x, 0.3, goal="error")
    outside.clear()


def test_a_model_that_says_how_it_is_copied_stays_as_it_is() -> None:
    class Itself(nn.Linear):
        def __deepcopy__(self, memo: Any) -> "Itself":
            return self

    layer = Itself(64, 64)
    make_plan(nn.Sequential(layer, *with_auxiliary_losses()), torch.randn(256, 64), "1GiB", goal="error")
    assert isinstance(layer.weight, nn.Parameter)
