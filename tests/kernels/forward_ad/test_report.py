"""The report that compares all ways of nested forward AD."""

import copy
import json

import pytest
import torch
from torch import Tensor, nn

from kernels.errors import KernelError
from kernels.forward_ad import report, wrap
from tests.kernels.forward_ad.chains import mish, newgelu
from tests.kernels.forward_ad.graphs import MARKS, Act, Branching

pytestmark = MARKS


def test_report_side_by_side() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), Act(newgelu), nn.Linear(64, 64)), torch.randn(1024, 64)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    measured = report(model, x)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert "forward" not in vars(model)
    units = {way.name: round((way.kept or 0) / x.nbytes, 1) for way in measured.ways}
    assert units == {
        "plain": 5,
        "nested, eager": 2,
        "nested, traced": 2,
        "nested, exported": 2,
        "nested, compiled": 2,
        "the same chains checkpointed": 2,  # and the state of the random numbers
        "torch.compile's partitioner": units["torch.compile's partitioner"],
    }
    assert measured["nested, exported"].chains == measured["nested, compiled"].chains == 1
    assert "| plain |  | 1.2 MiB | 100.0% |" in str(measured)
    assert json.loads(measured.to_json())[0] == {"name": "plain", "kept": 5 * x.nbytes, "chains": None, "reason": ""}


def test_report_says_who_cannot_take_a_model() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.branching = nn.Linear(64, 64), Branching()

        def forward(self, x: Tensor, *, factor: float) -> Tensor:
            return mish(self.branching(self.first(x))) * factor

    measured = report(Odd(), torch.randn(1024, 64), factor=2.0)
    assert measured["nested, traced"].reason.startswith("cannot be traced: inputs must be positional")
    assert measured["nested, exported"].reason.startswith(
        "cannot be exported: model must be one that torch.export takes"
    )
    assert measured["nested, compiled"].kept == measured["nested, eager"].kept < measured["plain"].kept
    assert "cannot be exported" in str(measured)
    with pytest.raises(KernelError, match=r"model must be a torch.nn.Module"):
        report(torch.tanh, torch.randn(3))


def test_a_report_of_what_is_wrapped() -> None:
    with pytest.raises(KernelError, match="got one that is wrapped; unwrap it"):
        report(wrap(nn.Linear(2, 2)), torch.randn(1, 2))
