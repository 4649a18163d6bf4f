"""The front of bytes against error: what its points are, and how it is drawn."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from actfit import KernelError
from actfit.kernels.graph.planning import CapturedTask
from actfit.kernels.memory.step import peak_bytes
from actfit.kernels.planning.batches import Call
from actfit.kernels.planning.blocks import recomputing, repeated_blocks
from actfit.kernels.planning.budget import Limits
from actfit.kernels.planning.fronts import UNIFORM, Front, front_of
from actfit.kernels.planning.planner import plan_of
from actfit.kernels.planning.solve import GAP, solve
from actfit.kernels.planning.task import Task
from tests.kernels.planning.nets import mlp, text


@pytest.fixture(scope="module")
def task() -> Task:
    model, inputs = text()
    return CapturedTask(model, Call(inputs, {}), passes=1)


@pytest.fixture(scope="module")
def solved_front(task: Task) -> Front:
    return front_of(task, count=4)


def test_bytes_rise_and_errors_fall(solved_front: Front) -> None:
    kept, errors = [point.bytes.kept for point in solved_front.points], [point.error for point in solved_front.points]
    assert len(solved_front.points) == 4
    assert kept == sorted(kept)
    # The solver stops within GAP of the least square: so much may an error be above that of the budget before.
    assert all(after <= before * (1 + GAP) ** 0.5 for before, after in pairwise(errors))
    assert errors[0] > errors[-1] == 0.0


def test_ends_are_the_narrowest_codes_and_whole_tensors(task: Task, solved_front: Front) -> None:
    step = task.step()
    assert solved_front.points[0].bytes.kept == step.kept_with(2)
    assert solved_front.points[-1].bytes.kept == step.kept_with(None)


def test_named_points(task: Task, solved_front: Front) -> None:
    named = {point.name: point for point in solved_front.named}
    assert list(named) == ["stock", "checkpoint", *(f"{bits} bits" for bits in UNIFORM)]
    assert named["stock"].error == named["checkpoint"].error == 0.0
    assert named["stock"].bytes.peak == peak_bytes(task.model, *task.call.args)
    with recomputing(task.model, repeated_blocks(task.model)):
        assert named["checkpoint"].bytes.peak == peak_bytes(task.model, *task.call.args)
    assert named["checkpoint"].bytes.kept < named["8 bits"].bytes.kept < named["stock"].bytes.kept
    assert named["8 bits"].error < named["4 bits"].error < named["2 bits"].error


@pytest.mark.parametrize("bits", UNIFORM)
def test_no_uniform_point_is_below_the_front(task: Task, solved_front: Front, bits: int) -> None:
    step = task.step()
    uniform = next(point for point in solved_front.named if point.name == f"{bits} bits")
    solved = solve(step, task.errors((), step), Limits(kept=uniform.bytes.kept))
    assert solved.error**0.5 <= uniform.error * (1 + GAP) ** 0.5


def test_the_plan_is_on_it(task: Task) -> None:
    plan = plan_of(task, 0.3, goal="error")
    point = front_of(task, plan, count=2).named[-1]
    assert (point.name, point.bytes, point.error) == ("plan", plan.planned, plan.errors.predicted)


@pytest.mark.slow
def test_nothing_is_measured_twice() -> None:
    model, inputs = mlp()
    doing: list[str] = []
    task = CapturedTask(model, Call(inputs, {}), passes=1, progress=doing.append)
    plan_of(task, 0.5, goal="error")
    assert any(words.startswith("backward pass") for words in doing)
    doing.clear()
    front_of(task, count=2)
    assert doing == ["solving for budget 1 of 2", "solving for budget 2 of 2"]


def test_a_peak_is_limited(task: Task) -> None:
    solved_front = front_of(task, by="peak", count=3)
    peaks = [point.bytes.peak for point in solved_front.points]
    assert peaks == sorted(peaks)
    assert peaks[0] <= task.step().peak_with(2)


@pytest.mark.parametrize("ending", [".svg", ".png"])
def test_the_same_front_gives_the_same_bytes(solved_front: Front, tmp_path: Path, ending: str) -> None:
    paths = [tmp_path / f"{name}{ending}" for name in "ab"]
    for path in paths:
        solved_front.plot(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"by": "time"}, "by must be one of kept, peak, got 'time'"),
        ({"count": 1}, "count must be a whole number of 2 or more, got 1"),
        ({"count": True}, "count must be a whole number of 2 or more, got True"),
        ({"plan": "plan.json"}, "plan must be a plan, as make_plan gives, or None, got 'plan.json'"),
    ],
)
def test_bad_arguments(task: Task, given: dict[str, Any], said: str) -> None:
    with pytest.raises(KernelError, match=said):
        front_of(task, **given)


def test_a_bad_ending(solved_front: Front, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"plot must be a file that ends in one of .png, .svg"):
        solved_front.plot(tmp_path / "front.txt")
