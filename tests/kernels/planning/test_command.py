"""`actfit memory --budget`: plans of models by name, and of the user's own."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from actfit import KernelError, Plan
from actfit.coefficients import command
from actfit.kernels.memory import zoo
from actfit.kernels.memory.__main__ import NARROW, main
from actfit.kernels.planning.batches import call_of
from actfit.kernels.planning.make import task_of
from tests.tiers import in_ci

TRANSFORMERS = find_spec("transformers") is not None
BLOCK = "--model block"
NARROWED = ("bert", "clip", "ast", "mistral", "resnet18", "resnet50", "efficientnet-b0")  # one of each kind
# 1/std of the rows of two norms, which cross where what they normalise has codes; a plan counts them for both.
STATISTICS = 2 * 8192 * 4
OWN = "--model tests.kernels.planning.nets:text --budget 0.3 --goal error"


def ran(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(line.split()) == command.GOOD
    out, err = capsys.readouterr()
    assert err == ""  # stderr is no terminal here
    return out


@pytest.mark.slow
def test_the_plan_stands_below_the_table_and_a_picture_has_the_front(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    threads = torch.get_num_threads()
    lines = ran(f"{BLOCK} --budget 0.3 --rows 2 --plot {tmp_path}/front.svg", capsys).splitlines()
    assert torch.get_num_threads() == threads
    assert lines[0] == "block (Block), bfloat16, input 2×4096×1024; as this machine runs it"
    assert [line.split(" | ")[0] for line in lines[4:6]] == ["| as it is", "| plan"]
    assert any(line.startswith("Block, budget 0.3: kept for backward ") for line in lines)
    assert any(line.endswith("(measured on a Block that stands in for it)") for line in lines)
    assert NARROW in lines
    assert lines[-1].startswith("kept besides: inputs ")
    drawn = (tmp_path / "front.svg").read_text("utf-8")
    assert "kept for backward" in drawn
    assert "4 bits" in drawn
    assert [path.name for path in tmp_path.iterdir()] == ["front.svg"]


@pytest.mark.slow
def test_json_has_the_plan_and_what_it_takes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    document = json.loads(ran(f"{BLOCK} --budget 280MiB --format json --save {tmp_path}/plan.json", capsys))
    assert document["accounting"] == "as-run"
    stock, planned = document["results"]
    assert (stock["way"], planned["way"]) == ("as it is", "plan")
    plan = Plan.load(tmp_path / "plan.json")
    assert document["plan"]["sites"][0]["name"] == plan.sites[0].name
    assert stock["total"] == plan.stock.kept
    assert 0 <= plan.planned.peak - planned["peak"] <= STATISTICS
    assert plan.planned.peak <= 280 * 2**20 < plan.stock.peak == stock["peak"]


@pytest.mark.slow
def test_a_budget_of_a_whole_training(capsys: pytest.CaptureFixture[str]) -> None:
    """Weights, two moments of each and the batch count; gradients are not there yet at the peak."""
    document = json.loads(ran(f"{BLOCK} --budget 400MiB --optimizer adamw --format json", capsys))
    plan, batch = document["plan"], 2 * 2 * 4096 * 1024
    assert plan["optimizer"] == "AdamW"
    held = plan["stock"]["peak"] - document["results"][0]["peak"]
    assert 3 * document["parameters"] + batch <= held < 3 * document["parameters"] + batch + 1024  # numbers of steps
    assert plan["planned"]["peak"] <= 400 * 2**20 < plan["stock"]["peak"]


@pytest.mark.slow
def test_a_plan_for_a_compiled_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = ran(f"{BLOCK} --budget 0.1 --compiled --save {tmp_path}/plan.json", capsys).splitlines()
    assert [line.split(" | ")[0] for line in lines[4:6]] == ["| as it is", "| plan"]
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.compiled
    assert plan.planned.kept <= 0.1 * plan.stock.kept


@pytest.mark.slow
def test_ones_own_model_is_measured_itself(capsys: pytest.CaptureFixture[str]) -> None:
    out = ran(OWN, capsys)
    assert "stands in" not in out
    assert NARROW not in out
    assert "| 0.self_attn" not in out
    assert "\n| *.out: aten.addmm | 2 |" in out


@pytest.mark.slow
def test_a_budget_that_is_there_anyway(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Block needs no plan for a budget of 10GiB" in ran(f"{BLOCK} --budget 10GiB", capsys)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--budget 10XB", "budget must be bytes at the peak of a step, .*, got '10XB'; give a share"),
        ("--budget 0.2 --policy invact", "policy must be left out with --budget, which decides it, got 'invact'"),
        ("--budget 0.2 --bits 4", "bits must be left out with --budget, which decides it, got '4'"),
        ("--budget 0.2 --accounting cuda", "accounting must be as-run with --budget"),
        ("--compiled", "compiled must go with --budget, whose plan it is of, got no budget"),
        ("--save plan.json", "save must go with --budget, whose plan it is of, got no budget"),
        ("--goal time", "goal must go with --budget, whose plan it is of, got no budget"),
        ("--optimizer adamw", "optimizer must go with --budget, whose plan it is of, got no budget"),
        ("--budget 0.2 --optimizer adamw", "optimizer must go with --budget in bytes, as 80GB, got the share 0.2"),
        ("--budget 1GiB --optimizer lion", "optimizer must be one of adamw, adam, sgd, adamw-fused, got 'lion'"),
        ("--budget 1GiB --optimizer AdamW", "optimizer must be one of .*, got 'AdamW'; did you mean adamw"),
        ("--budget 0.3 --goal speed", "goal must be one of time, error, got 'speed'"),
    ],
)
def test_bad_input(line: str, said: str) -> None:
    with pytest.raises(KernelError, match=said):
        main([*BLOCK.split(), *line.split()])


def test_a_plan_in_no_folder(tmp_path: Path) -> None:
    with pytest.raises(command.Misuse, match="--save must be in a folder that exists"):
        main([*BLOCK.split(), "--budget", "0.2", "--save", str(tmp_path / "none" / "plan.json")])


# Narrow copies.


def names_of(built: Any) -> list[str]:
    return [name for name, _ in built[0].named_modules()]


@pytest.mark.slow
@pytest.mark.skipif(not TRANSFORMERS, reason="transformers is not installed")
@pytest.mark.parametrize("name", in_ci(sorted(set(zoo.names()) - {"mlp", "block", "vgg11"}), NARROWED.__contains__))
def test_narrow_copies_have_the_same_modules_and_heads(name: str) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        narrow, published = zoo.narrow(name), zoo.build(name)
    assert names_of(narrow) == names_of(published)
    assert sum(x.numel() for x in narrow[0].parameters()) <= sum(x.numel() for x in published[0].parameters())


@pytest.mark.slow
@pytest.mark.skipif(not TRANSFORMERS, reason="transformers is not installed")
def test_every_saved_tensor_is_in_the_narrow_copy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan would raise otherwise; and it has the sites of a model as wide as published, here of three layers."""
    recipe = zoo.RECIPES["vit"]
    monkeypatch.setitem(zoo.RECIPES, "vit", replace(recipe, values={**recipe.values, "num_hidden_layers": 3}))
    ran(f"--model vit --act silu --batch 8 --budget 0.5 --goal error --save {tmp_path}/plan.json", capsys)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, _, kwargs = zoo.build("vit", act="silu", batch=8)
    sites = task_of(model, call_of(kwargs)).step().sites
    planned = Plan.load(tmp_path / "plan.json").sites[: len(sites)]  # then come those that stay whole
    assert [site.name for site in planned] == [site.name for site in sites]
