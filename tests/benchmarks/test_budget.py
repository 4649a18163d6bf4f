"""`benchmarks.budget`: rows of well-known models in a quarter of their peak."""

import pytest

from actfit import KernelError
from actfit.coefficients import command
from benchmarks import budget
from benchmarks.rows import read_lines

pytestmark = pytest.mark.slow


def run(*arguments):
    return command.run(budget.PROG, lambda: budget.main(arguments), (KernelError,))


def test_the_plan_stays_within_the_budget_and_errs_no_more_than_uniform_bits(tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    assert run("--quick", "--models", "vit", "--out", str(out)) == command.GOOD
    rows = read_lines(out)
    value = {(row["implementation"], row["unit"]): row["median"] for row in rows}
    peak, error = budget.PEAK, budget.ERROR
    assert value[budget.PLAN, peak] <= value[budget.BUDGET, peak] == value[budget.STOCK, peak] // budget.SHARE
    assert value[budget.PLAN, error] <= value[budget.UNIFORM, error]
    assert value[budget.CHECKPOINT, error] == 0
    assert value[budget.STOCK, budget.WORK] == 1
    assert 1 < value[budget.PLAN, budget.WORK] <= value[budget.CHECKPOINT, budget.WORK] < 4 / 3
    assert max(value[way, budget.KEPT] for way in (budget.PLAN, budget.CHECKPOINT)) < value[budget.STOCK, budget.KEPT]
    assert {row["unit"] for row in rows if row["mode"] == budget.TIME} == {"s", "ratio of times"}
    assert "vit: times checkpoint / stock" in capsys.readouterr().out
