"""`benchmarks.budget`: rows of well-known models in a quarter of their peak, and README's table of them."""

import pytest

from benchmarks import budget
from benchmarks.rows import read_lines
from coefficients import command
from kernels import KernelError


def run(*arguments):
    return command.run(budget.PROG, lambda: budget.main(arguments), (KernelError,))


@pytest.mark.slow
def test_the_plan_stays_within_the_budget_and_errs_less_than_uniform_bits(tmp_path, capsys, monkeypatch):
    out = tmp_path / "rows.jsonl"
    assert run("--quick", "--models", "vit", "--out", str(out)) == command.GOOD
    rows = read_lines(out)
    value = {(row["implementation"], row["unit"]): row["median"] for row in rows}
    peak, error = budget.PEAK, budget.ERROR
    assert value[budget.PLAN, peak] <= value[budget.BUDGET, peak] == value[budget.STOCK, peak] // budget.SHARE
    assert 0 < value[budget.PLAN, error] <= value[budget.UNIFORM, error]
    assert value[budget.FAST, peak] <= value[budget.BUDGET, peak]
    assert value[budget.PLAN, error] <= value[budget.FAST, error]
    assert value[budget.CHECKPOINT, error] == 0
    assert value[budget.STOCK, budget.WORK] == 1
    assert value[budget.PLAN, budget.WORK] < value[budget.CHECKPOINT, budget.WORK] < 4 / 3
    assert value[budget.CHECKPOINT, budget.KEPT] < value[budget.PLAN, budget.KEPT] < value[budget.STOCK, budget.KEPT]
    assert {row["unit"] for row in rows if row["mode"] == budget.TIME} == {"s", "ratio of times"}
    assert "vit: times checkpoint / stock" in capsys.readouterr().out
    lower = ((budget.PEAK, 2**30), (budget.ERROR, 0.05), (budget.AGAIN, 3))
    rows += [{**rows[0], "implementation": budget.LOWER, "unit": unit, "median": median} for unit, median in lower]
    monkeypatch.setattr(budget, "read", lambda name: {"a-cpu": rows})
    assert budget.section() == "No rows yet.\n"
    every = [{**row, "what": name} for row in rows for name in budget.NAMED]
    monkeypatch.setattr(budget, "read", lambda name: {"a-cpu": every})
    text = budget.section()
    assert "| Llama 2 (7B), 1 × 224, float32 |" in text
    assert "by as few codes as the same budget allows: BERT takes " in text
    assert "Llama 2 (7B) in 1.0 GiB, with an error of 5 %, computes 3 blocks again" in text
    assert "benchmarks/results/a-cpu/budget-front.svg" in text


def test_peaks(monkeypatch):
    """Of the models that have rows; how many times less than as it is."""
    peaks = {budget.STOCK: 2**30, budget.CHECKPOINT: 2**28, "8 bits": 2**29, "4 bits": 2**28, "2 bits": 2**27}
    rows = [
        {"what": "vit", "implementation": way, "unit": budget.PEAK, "median": peak, "dtype": "float32"}
        for way, peak in peaks.items()
    ]
    kept = {**rows[0], "unit": budget.KEPT, "median": 1}
    monkeypatch.setattr(budget, "read", lambda name, mode: {"a-cpu": [*rows, kept]})
    assert "| vit, float32 | 1.0 GiB | 4.0× | 2.0× | 4.0× | 8.0× |" in budget.peaks_section()
    assert "bert" not in budget.peaks_section()


def test_no_rows_no_table(monkeypatch):
    monkeypatch.setattr(budget, "read", lambda *_: {})
    assert budget.section() == budget.peaks_section() == "No rows yet.\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--models", "LSTM"), "models must be of bert, vit, llama, got 'LSTM'"),
        (("--runs", "none"), "runs must be a whole number from 1 to 10000, got 'none'"),
    ],
)
def test_wrong_words(words, message, capsys):
    assert run(*words) == command.MISUSED
    assert message in capsys.readouterr().err
