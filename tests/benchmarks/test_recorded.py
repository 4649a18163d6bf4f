"""The study of recorded tables: properties of its tables, and a quick run."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.recorded import __main__ as bench
from benchmarks.recorded import page, study
from benchmarks.rows import RESULTS, read_lines
from benchmarks.training import jobs
from coefficients import command
from fitting.activations import get


def error(made: study.Fit) -> np.ndarray:
    """q - f' at the samples of the table."""
    x = made.weight.samples
    codes = made.steps.codes[np.searchsorted(made.steps.borders, x, side="left")]
    return made.steps.levels[codes] - get(study.FUNCTION).df(x)


@pytest.mark.parametrize("bits", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_levels_without_slope(bits: int) -> None:
    samples = tuple(np.random.default_rng(0).normal(0.3, 0.7, 2000))
    best = study.fitted(bits, samples)
    level = study.levelled(best)
    x, d = level.weight.samples, error(level)
    # Sums of 2000 numbers of about 1 in float64, and a system of two equations.
    assert abs(d.mean()) < 1e-12
    assert abs((x * d).mean()) < 1e-12
    assert abs((x * error(best)).mean()) > 1e-3
    assert level.error.l2_squared == pytest.approx(float(np.mean(d**2)), rel=1e-12)
    assert level.error.l2_squared > best.error.l2_squared
    assert level.error.linf >= float(np.abs(d).max()) * (1 - 1e-12)
    assert np.array_equal(level.steps.borders, best.steps.borders)


def test_only_tables_of_samples_can_be_levelled() -> None:
    with pytest.raises(ValueError, match="samples"):
        study.levelled(study.fitted(1))


@pytest.mark.slow
def test_stages_and_errors_of_a_tiny_network(tmp_path: Path) -> None:
    settings = jobs.settings("text", "quick", "cpu", 1, False)
    first, last = study.stages(settings, 0)
    assert (first.steps, last.steps) == (0, settings.steps)
    assert list(first.histograms) == ["blocks.0.mlp.2"]
    per_batch = settings.batch * settings.context * 4 * settings.width
    assert int(first.histograms["blocks.0.mlp.2"].counts.sum()) == study.RECORDED * per_batch
    exact = study.stock_gradients(settings, first, 0)
    assert len(exact) == study.JUDGED
    own = {bits: study.recorded_tables(first, bits, tmp_path) for bits in (1, 6)}
    coarse, fine = (np.median(study.errors(settings, first, bits, own[bits], exact, 0)) for bits in own)
    assert 0 < fine < 0.1 * coarse  # levels are some 32 times as close
    rms = {name: study.derivative_errors(first, 2, tables)[0] for name, tables in tables_of(first, tmp_path).items()}
    assert rms["recorded"] < min(rms["uniform"], rms["normal"])  # it is the best for these inputs


def tables_of(stage: study.Stage, folder: Path) -> dict[str, study.Tables | None]:
    return {
        "uniform": None,
        "normal": {"": study.usual_table(2, folder)},
        "recorded": study.recorded_tables(stage, 2, folder),
    }


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    assert bench.main(["--quick", "--task", "text", "--out", str(out)]) == command.GOOD
    rows = read_lines(out)
    assert {row["implementation"] for row in rows} == {"stock", "uniform", "normal", "recorded", "level", "together"}
    assert f"{len(rows)} rows, wrote" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--task", "digits"), ("--seeds", "0")])
def test_bad_options(words: tuple[str, ...]) -> None:
    with pytest.raises(command.Misuse, match=f"{words[0].removeprefix('--')} must be"):
        bench.main(words)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/recorded.jsonl")), ids=lambda path: path.parent.name)
def test_the_page_has_a_line_for_every_table(path: Path) -> None:
    text = page.section()
    assert text.count("| usual |") == 2 * 2 * 3  # tasks, errors, stages
    assert text.count("(+0 %)") + text.count("(-0 %)") < 10  # a table that is the usual one would change nothing
