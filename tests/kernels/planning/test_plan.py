"""Plans as values and as files, and budgets as they are written."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from actfit import KernelError, Plan, make_plan
from actfit.kernels.methods.planned import Planned
from actfit.kernels.planning.budget import Limits, check, limits
from actfit.kernels.planning.values import Bytes, Errors, PlannedSite
from tests.kernels.planning.nets import mlp, text

SITES = (PlannedSite("0: silu", 3, 4096, 500, 1e-4), PlannedSite("0.out: linear", None, 4096, 4096, 0.0))
PLAN = Plan(
    *("Net", "0.2", "nearest", ("0",), SITES, Bytes(8192, 9000), Bytes(4596, 5000), Errors(0.01, 0.011), 3, 0.02, 0.0),
    modules={"*": 2},
)


def test_a_file_gives_the_plan_again(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path)
    assert Plan.load(path) == Plan.load(str(path)) == PLAN
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_the_method_of_a_plan() -> None:
    method = PLAN.method
    assert isinstance(method, Planned)
    silu, other = method.at("0: silu"), method.at("unknown: f")
    assert method.at("0.out: linear") is None
    assert silu is not None
    assert silu.bits == 3
    assert other is not None
    assert other.bits == 3


def change(name: str, value: Any, site: bool = False) -> dict[str, Any]:
    return {"name": name, "value": value, "site": site}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (change("format", "other"), "format and version"),
        (change("rounding", "up"), "rounding must be one of nearest, stochastic"),
        (change("goal", "speed"), "goal must be one of time, error, got 'speed'"),
        (change("recomputed", [3]), "recomputed must be a list of names of modules"),
        (change("unchanged", "blocks.0"), "unchanged must be a list of names of modules, got 'blocks.0'"),
        (change("extra", 1), "extra"),
        (change("modules", {"*": "2"}), "modules must be numbers by name"),
        (change("bits", 9, site=True), "bits must be 2 to 8 or null, got 9"),
        (change("bits", True, site=True), r"bits must be of type int \| None, got True"),
        (change("name", "silu", site=True), 'a name must be "module: function"'),
        (change("bytes", None, site=True), "bytes must be of type int, got None"),
        (change("stock", {"kept": "1", "peak": 2}), "kept must be of type int, got '1'"),
        (change("errors", {"predicted": None, "measured": 0.1}), "predicted must be of type float"),
    ],
)
def test_a_file_that_is_no_plan(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path)
    document = json.loads(path.read_text())
    (document["sites"][0] if changed["site"] else document)[changed["name"]] = changed["value"]
    path.write_text(json.dumps(document))
    with pytest.raises(KernelError, match=f"plan must be a file that Plan.save wrote.*{message}"):
        Plan.load(path)


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", "null", "{", '{"format": "actfit plan", "version": 1}'])
def test_a_file_of_something_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(KernelError, match=r"plan must be a file that Plan\.save wrote"):
        Plan.load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="plan must be a file that can be read"):
        Plan.load(tmp_path / "none.json")


def test_a_plan_of_another_model() -> None:
    PLAN.check_model(text(1)[0])
    with pytest.raises(KernelError, match=r"plan must be of this model, got one of a Net with '0\.out'"):
        PLAN.check_model(mlp()[0])


@pytest.mark.slow
def test_a_plan_of_another_number_of_layers() -> None:
    plan = replace(make_plan(*text(2), 0.3, goal="error"), recomputed=())
    assert plan.modules == {"*": 3}
    for layers, named in ((3, "nothing for '3'"), (1, r"'1\..*', which Sequential has not")):
        with pytest.raises(KernelError, match=f"plan must be of this model, got one of a .*{named}"):
            plan.check_model(text(layers)[0])
    plan.check_model(text(2)[0])


def test_what_a_plan_says() -> None:
    said = str(PLAN)
    assert "kept for backward 8.0 KiB before, 4.5 KiB planned" in said
    assert "1.10% measured, 1.00% predicted; with 3 bits everywhere 2.00%" in said
    assert "\ncomputed again in backward: block 0\n" in said
    assert "\nas they are: blocks 0, 2\n" in str(replace(PLAN, unchanged=("0", "2")))
    assert "backward: 4 blocks, 0 to 3\n" in str(replace(PLAN, recomputed=tuple("0123")))
    assert "| *: silu | 1 | 3 |" in said
    assert "| *.out: linear | 1 | whole |" in said
    assert "needs no plan" in str(replace(PLAN, sites=(), recomputed=(), planned=PLAN.stock))


@pytest.mark.parametrize(
    ("budget", "number"),
    [
        ("24GiB", 24 * 2**30),
        ("1.5kB", 1500),
        ("10 MB", 10_000_000),
        ("4096", 4096),
        (4096, 4096),
        (1e9, 10**9),
        (0.2, 0.2),
        (".25", 0.25),
    ],
)
def test_budgets(budget: Any, number: float) -> None:
    limit = check(budget)
    assert limit == number
    assert type(limit) is type(number)


@pytest.mark.parametrize(
    "budget",
    [
        "",
        1,
        24,
        1.0,
        "24",
        "1",
        "1000",
        "24XB",
        "GiB",
        "-1GiB",
        "0",
        0,
        0.0,
        1.5,
        -3,
        True,
        None,
        [1],
        "1e9",
        "inf",
        float("nan"),
        "0.2GiBB",
    ],
)
def test_what_is_no_budget(budget: Any) -> None:
    with pytest.raises(KernelError, match="budget must be bytes at the peak of a step"):
        check(budget)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"samples": "2"}, "samples must be a whole number of 1 or more, got '2'"),
        ({"passes": 0}, "passes must be a whole number of 1 or more, got 0"),
        ({"compiled": "no"}, "compiled must be True or False, got 'no'"),
        ({"accumulates": 1}, "accumulates must be True or False, got 1"),
        ({"strict": "yes"}, "strict must be True or False, got 'yes'"),
        ({"progress": True}, "progress must be a function of a text, or None, got True"),
        ({"stand_in": nn.ReLU()}, r"stand_in must be \(model, inputs\) or .*, got ReLU\(\)"),
        ({"model": "gpt"}, "model must be a torch.nn.Module, got 'gpt'"),
        ({"budget": 24}, "budget must be .*, got 24; give a share such as 0.4, or bytes such as '24GiB'"),
    ],
)
def test_what_make_plan_refuses(given: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        make_plan(**{"model": nn.Linear(4, 4), "inputs": torch.ones(2, 4), "budget": 0.5} | given)


def test_a_model_in_eval_is_told() -> None:
    model = nn.Linear(4, 4).eval()
    with pytest.warns(UserWarning, match=r"model must be in training mode, .*; call model.train\(\) before") as told:
        make_plan(model, torch.ones(2, 4), "1TB")
    assert [warning.filename for warning in told] == [__file__]
    assert not model.training


def test_limits_of_budgets() -> None:
    assert limits("1KiB", 5000) == Limits(peak=1024)
    assert limits(0.2, 5000) == Limits(kept=1000)
