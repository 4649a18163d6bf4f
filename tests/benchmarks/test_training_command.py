"""`python -m benchmarks.training`: rows, pictures, refusals and the page; not how well anything learns."""

import json

import pytest
import torch

from actfit.coefficients import command
from benchmarks.training import page as training_page
from benchmarks.training import plots as training_plots
from benchmarks.training import rows as training_rows
from benchmarks.training import runs as training_runs
from tests.benchmarks.quick_training import QUICK, run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def trained(monkeypatch):
    """A list that records the variants and seeds that are trained, in order; no pictures, which take seconds."""
    monkeypatch.setattr(training_plots, "save", lambda rows, path: [])
    calls, train = [], training_runs.train

    def spy(settings, variant, seed):
        calls.append((variant, seed))
        return train(settings, variant, seed)

    monkeypatch.setattr(training_runs, "train", spy)
    return calls


@pytest.mark.slow
def test_the_command_writes_rows_and_pictures(tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    threads = torch.get_num_threads()
    assert run("--quick", "--task", "text,digits", "--arms", "fewbit-3,recompute", "--out", str(out)) == command.GOOD
    assert torch.get_num_threads() == threads
    rows = training_rows.load(out)
    assert [json.dumps(row.line(), ensure_ascii=False) for row in rows] == out.read_text("utf-8").splitlines()
    trainings = {(row.what, row.implementation, row.seed) for row in rows if row.mode == "run"}
    both = ("training text", "training digits")
    assert trainings == {
        (what, variant, seed) for what in both for variant in ("stock", "fewbit-3", "recompute") for seed in (0, 1)
    }
    states = {(row.implementation, row.mode) for row in rows if row.what == "gradients text"}
    assert states == {
        (variant, mode) for variant in ("noise", "fewbit-3", "recompute") for mode in ("initial", "final")
    }
    for row in rows:
        assert row.versions["torch"] == torch.__version__
        assert row.versions["threads"] == "1"
        if row.mode == "run":
            assert row.results["curve"][-1][0] == row.settings["steps"] == len(row.results["curve"])
            assert min(row.results["kept"], row.results["seconds"], row.results["loss"]) > 0
            assert 0 <= row.results["accuracy"] <= 1
    pictures = {tmp_path / f"rows-{name}.png" for name in training_page.PICTURES}
    assert set(tmp_path.iterdir()) == {out, *pictures}
    assert "| recompute |" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_is_broken_off_is_taken_up_again(tmp_path, trained, monkeypatch, capsys):
    out = str(tmp_path / "rows.jsonl")
    spy = training_runs.train

    def stop(settings, variant, seed):
        if variant == "fewbit-2":
            raise KeyboardInterrupt
        return spy(settings, variant, seed)

    words = (*QUICK, "--arms", "fewbit-1,fewbit-2", "--out", out)
    monkeypatch.setattr(training_runs, "train", stop)
    assert run(*words) == command.INTERRUPTED
    before = {row.key: row for row in training_rows.load(tmp_path / "rows.jsonl")}
    monkeypatch.setattr(training_runs, "train", spy)
    trained.clear()
    assert run(*words) == command.GOOD
    assert trained == [("fewbit-2", 0)]
    after = {row.key: row for row in training_rows.load(tmp_path / "rows.jsonl")}
    assert before.items() <= after.items()
    assert "3 of 4 trainings are taken from the file" in capsys.readouterr().err
    trained.clear()
    assert run(*words, "--fresh") == command.GOOD
    assert {("stock", 0), ("fewbit-1", 0), ("fewbit-2", 0)} == set(trained)


@pytest.mark.usefixtures("trained")
def test_rows_of_other_settings_are_not_taken(tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    common = (*QUICK, "--arms", "stock", "--out", str(out))
    assert run(*common) == command.GOOD
    before = out.read_bytes()
    assert run(*common, "--steps", "3") == command.MISUSED
    assert "with other settings; give another --out, or --fresh to replace them" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert run(*common, "--steps", "3", "--fresh") == command.GOOD
    assert {row.settings["steps"] for row in training_rows.load(out)} == {3}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--task", "speech"), "task must be of text, digits, gpt, llama, resnet, small-vit, got 'speech'"),
        (("--arms", "invact,"), "got ''"),
        (("--task", "text", "--arms", "hook-4"), "arms of text must be of stock, invact, forward-ad, "),
        (("--seeds", "0"), "seeds must be a whole number from 1 to 1000, got '0'"),
        (("--steps", "1e3"), "steps must be a whole number"),
        (("--size", "huge"), "size must be small or large, got 'huge'"),
        (("--device", "tpu"), "device must be cuda or cpu, got 'tpu'"),
        (("--out", "/nowhere/rows"), "out must be in a folder that exists"),
        (("--quick", "--out", __file__), "must hold rows of this benchmark"),
    ],
)
def test_wrong_options(arguments, said, capsys):
    assert run(*arguments) == command.MISUSED
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]
