"""What actfit invact refuses, in one line; what both commands do is in tests/fitting/test_commands.py."""

import re
import shlex
from pathlib import Path

import pytest

from actfit.fitting.invact import front
from actfit.fitting.invact.engines import ENGINES, minimax
from actfit.fitting.invact.engines.problem import Problem
from actfit.fitting.invact.formula import Form
from tests.fitting.commands import Command, files
from tests.fitting.invact.command.words import MISH

REFUSED: list[tuple[str, str]] = [
    ("--fn gelu", "say how y is stored by --dtype: bfloat16, float16, float32"),
    ("--fn gelu --dtype bf16", "dtype must be one of bfloat16, float16, float32, got 'bf16'; did you mean bfloat16"),
    ("--fn gelu --dtype float16 --bits 3", "bits must be 1 or 2, got '3'"),
    ("--fn gelu --dtype float32 --bits 2", "bits must be 1 in float32, got 2: f is computed in float32, so nothing"),
    ("--fn tanh --dtype float16 --bits 2", "bits must be 1 for tanh, got 2: the second bit is for functions that fall"),
    ("--all --bits 2", "--all"),
    ("--fn gelu --dtype float16 --engine magic", "engine must be one of minimax, template, operon, pysr, all"),
    ("--expr 'sin(x)' --dtype float16", "custom must be defined everywhere and have limits at -inf and +inf"),
    ("--expr 'sin(x)*exp(-x**2)' --dtype float16", "custom must have at most two monotone branches"),
    *(
        (f"--fn gelu --dtype float16 --max-error {error}", f"max-error must be positive and finite, got {error}")
        for error in ("0", "nan")
    ),
    ("--fn gelu --dtype float16 --seed -1", "seed must be from 0 to 2147483647, got -1"),
    ("--fn gelu --dtype float16 --budget 0", "budget must be at least 1, got 0"),
    ("--fn gelu --dtype float16 --timeout 0", "timeout must be positive and finite, got 0"),
    *(
        (
            f"--fn gelu --dtype float16 --engine minimax --{option} 3",
            f"--{option} goes with --engine template or operon",
        )
        for option in ("seed", "budget")
    ),
    ("--fn gelu --dtype float16 --engine all --timeout 3", "--timeout goes with --engine pysr, got minimax,te"),
    (
        "--fn gelu --dtype float16 --engine operon --template 'a*s'",
        "--template goes with --engine template, got operon",
    ),
    ("--fn gelu --dtype float16 --engine minimax,operno", "got 'operno'; did you mean operon"),
    ("--fn gelu --dtype float16 --engine template --template 'a*(s'", "'(' was never closed"),
    ("--fn gelu --dtype float16 --template x", "unknown name 'x' (did you mean max or exp?) at position 1"),
    ("--fn gelu --dtype float16 --template ''", "expression is empty: write one of y and s"),
    ("--fn gelu --dtype float16 --engine template --template 'a*s' --start b=1", "got 'b'"),
    ("--fn gelu --dtype float16 --engine template --template 'a*s' --start a", "start must be NAME=VALUE, each name"),
    ("--fn gelu --dtype float16 --start a=1", "--start goes with --template"),
    ("--fn gelu --dtype float16 --import-pysr missing", "--import-pysr must name a hall_of_fame.csv or a folder"),
    *(
        (f"--fn gelu --dtype float16 --engine published --{option} 1", f"--{option} goes with ")
        for option in ("max-error", "seed")
    ),
    ("--fn mish --dtype float16 --engine published", "engine published has formulas for gelu and silu, got mish"),
    ("--expr 1e300*x --dtype float16", "custom must have finite outputs in float16, and not one only: scale"),
    ("--fn gelu --dtype float16 --front --format csv", "--front goes with --format table"),
    ("--fn gelu --dtype float16 --front --out -", "--front goes with --format table"),
    *(
        (f"--all --{option} {value}", f"--{option} goes with one function, not with --all")
        for option, value in (("front", ""), ("template", "a*s"), ("start", "a=1"), ("import-pysr", "."))
    ),
    ("--all --max-error 0", "max-error must be positive and finite, got 0"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED, ids=[line for line, _ in REFUSED])
def test_bad_input_is_one_line(line: str, message: str, invact: Command) -> None:
    status, out, err = invact(*shlex.split(line))
    assert (status, out) == (2, "")
    assert err.startswith("invact: ")
    assert message in err
    assert err.count("\n") == 1
    assert files() == []


def test_a_hostile_hall_of_fame(invact: Command) -> None:
    """More of them, without the command, in tests/fitting/invact/symbolic/test_equations.py."""
    message = "row 2 column Equation: "
    Path("hall_of_fame.csv").write_text("Complexity,Loss,Equation\n1,0.1,\"__import__('os').system('touch evil')\"\n")
    status, out, err = invact(*MISH, "--import-pysr", "hall_of_fame.csv")
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert files() == ["hall_of_fame.csv"]


@pytest.mark.parametrize(("engine", "package"), [("pysr", "pysr"), ("operon", "pyoperon")])
def test_engines_that_are_not_installed(
    engine: str, package: str, invact: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"actfit.fitting.invact.symbolic.{engine}.find_spec", lambda name: None)
    status, out, err = invact(*MISH, "--engine", engine)
    assert (status, out) == (2, "")
    assert f"pip install {package}" in err
    assert err.count("\n") == 1
    assert files() == []


def test_what_no_formula_reaches(hopeless: None, invact: Command) -> None:
    status, out, err = invact(*MISH, "--max-error", "1e-7")
    assert (status, out) == (2, "")
    assert err.startswith("invact: no formula found for mish reaches max |q - g| at most 1e-07: ")
    assert files() == []
    assert err.count("\n") == 1


def test_what_misses_the_rule_says_the_error_that_takes_it(
    invact: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def cheapest(problem: Problem, *_: object) -> list[Form]:
        return minimax.search(problem)[:1]

    monkeypatch.setattr(front, "ENGINES", dict.fromkeys(ENGINES, cheapest))
    status, _, err = invact(*MISH, "--engine", "operon")
    assert status == 2
    needed = re.search(r"allow more by --max-error \(the best needs (\S+)\), or try --engine all", err)
    assert needed is not None
    assert invact(*MISH, "--engine", "operon", "--max-error", needed[1], "--out", str(tmp_path / "o.json"))[0] == 0
