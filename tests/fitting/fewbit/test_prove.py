"""`check --prove`: bounds proven from the file alone, bounds refused, and files for which it cannot prove any."""

import copy

import pytest

from actfit.coefficients import load
from actfit.coefficients.__main__ import run
from actfit.coefficients.document import dumps, seal
from actfit.coefficients.store import DATA
from actfit.fitting.activations import from_expression
from actfit.fitting.fewbit import document
from actfit.fitting.fewbit.prove import prove
from actfit.fitting.fewbit.solve import fit
from tests.coefficients.documents import changed
from tests.fitting.fewbit.references import SHOWN, fitted
from tests.tiers import in_ci

FILES = sorted(path.relative_to(DATA).as_posix() for path in DATA.glob("*/fewbit-*.json"))


BOUND = ("error", "lower_bound")


def silent(_):
    pass


@pytest.mark.parametrize("name", FILES)
def test_every_shipped_table_is_near_the_best(name):
    stored = load(DATA / name)
    assert stored["error"]["gap"] <= (1e-5 if stored["options"]["bits"] <= 4 else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", in_ci(FILES, SHOWN.match))
def test_every_shipped_bound_is_proven(name):
    assert prove(load(DATA / name), silent) == ([], [])


# One smooth function, and one whose f' jumps.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gelu/fewbit-1bit.v1.json", "selu/fewbit-1bit.v1.json"])
def test_no_bound_above_the_best_error_is_proven(name):
    """Not the error itself; the bound that is proven instead, as for any larger one, is below it, and near."""
    good = load(DATA / name)
    error = good["error"]["l2_squared"]
    [problem], unproven = prove(changed(good, BOUND, error), silent)
    assert unproven == []
    words = problem.split()
    assert words[:5] == ["error.lower_bound", "must", "be", "at", "most"]
    assert problem.endswith(f"got {error!r}")
    assert error * (1 - 1e-6) < float(words[5].rstrip(",")) < error


@pytest.mark.parametrize("kind", ["contiguous", "shared"])
@pytest.mark.parametrize("name", ["gelu", "selu", "x*sin(x)"])
def test_any_table_may_have_the_bound(name, kind):
    """The bound depends on the function, not on the table: it is proven even if the stored table is not the best."""
    good = document.to_document(fitted(name, 2, kind))
    assert prove(good, silent) == ([], [])
    bad = copy.deepcopy(good)
    bad["solution"].update(borders=[-1.5, 0.3, 2.0], codes=[0, 1, 0, 1], levels=[-0.3, 0.4])
    assert prove(bad, silent) == ([], [])


def test_a_bound_of_zero_needs_no_proof():
    assert prove(changed(load("gelu", "fewbit-8bit"), BOUND, 0.0), silent) == ([], [])


def test_what_cannot_be_proven_is_said():
    cases = [
        (fitted("gelu", 2, "best", "norm"), "as the weight is not uniform"),
        (fitted("tanh", 2, "even"), "as f' is known to be even at some points only"),
        (fitted("x**2.5", 1, "best", "uniform", (0.0, 5.0)), "as f' has none at some points of the domain"),
    ]
    for result, why in cases:
        assert prove(document.to_document(result), silent) == ([], [f"error.lower_bound in ball arithmetic, {why}"])


def test_a_function_that_cannot_be_followed_is_a_problem():
    wild = copy.deepcopy(document.to_document(fit(from_expression("x*sin(x)", "wild"), 2)))
    wild["function"]["expr"] = "1/x"
    [problem], unproven = prove(wild, silent)
    assert unproven == []
    assert "a divisor of f is 0" in problem


def test_the_command(tmp_path, capsys):
    good = document.to_document(fitted("mish", 2))
    path = tmp_path / "mine.json"
    path.write_text(dumps(seal(good, 1)))
    assert run(["check", "--prove", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{path}: ok", "1 file, 0 bad, 1 bound proven"]
