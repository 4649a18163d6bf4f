"""PySR's guesses, the arguments of its Python layer, and its search."""

import json
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from actfit.fitting.errors import InputError
from actfit.fitting.invact.formula import Form
from actfit.fitting.invact.symbolic import equations, error, evaluate, pysr
from actfit.fitting.invact.variable import S
from tests.fitting.invact.symbolic.forms import C, data, form

has_pysr = pytest.mark.skipif(find_spec("pysr") is None, reason="pysr is not installed")


def test_guesses_are_spelled_in_the_search_s_own_operators():
    assert pysr.spell(form("s*(1.5 - 2.25*s)/(1 + 0.4*s)"))[1] == 13
    for text in ("s**3 - 1/s**2 + y**4", "2*exp(-0.3*y)/sqrt(s + 1) - s**2.5", "1/((y + 2)*(s + 3))"):
        spelled, nodes = pysr.spell(form(text))
        assert nodes < 30
        again = equations.equation(spelled)
        points = np.random.default_rng(1).uniform(0.1, 2, (2, 20))
        assert evaluate(again, *points) == pytest.approx(evaluate(form(text), *points), rel=1e-13)
    for text in ("log(s + 2)", "max(s, 1)", "s**1.3", "abs(s)"):
        assert pysr.spell(form(text)) == ("", 0)


# Stands in for Julia: it records what PySR's Python layer hands over, and leaves the file that the search would.
JULIACALL = """
import json, os
from pathlib import Path
from unittest.mock import MagicMock
AnyValue = VectorValue = type("Value", (), {})
JuliaError = type("JuliaError", (Exception,), {})
convert = Main = MagicMock()
Main.VERSION.major, Main.VERSION.minor, Main.VERSION.patch = 1, 11, 5
def search(*args, **kwargs):
    handed = Main.SymbolicRegression.Options.call_args.kwargs
    folder = Path(handed["output_directory"]) / kwargs["run_id"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hall_of_fame.csv").write_text('Complexity,Loss,Equation\\n3,0.5,"x1 * 1.5"\\n')
    plain = lambda table: {k: v for k, v in table.items() if isinstance(v, (int, float, str, bool, type(None)))}
    record = {"options": plain(handed), "search": plain(kwargs), "calls": str(Main.mock_calls)}
    Path(os.environ["RECORD"]).write_text(json.dumps(record))
Main.SymbolicRegression.equation_search._jl_call_nogil = search
"""


@has_pysr
@pytest.mark.slow
def test_the_arguments_go_through_pysr_s_python_layer(tmp_path, module, monkeypatch):
    """The real PySRRegressor takes our arguments and weights and hands them on. Julia does NOT run here.

    A stand-in for juliacall records what arrives and writes the file that Julia would write: what a machine without
    Julia can show of the mapping, and no more.
    """
    module("juliacall", JULIACALL)
    monkeypatch.setenv("RECORD", str(tmp_path / "record.json"))
    guess = form("s*(1.5 - 2.25*s)/(1 + 0.4*s)")
    forms = pysr.search(data(), 5, 7, maxsize=21, timeout=60, guesses=[guess])
    assert forms == [Form(C[0] * S, (1.5,), "pysr")]
    record = json.loads((tmp_path / "record.json").read_text("utf-8"))
    given, started = record["options"], record["search"]
    assert (given["maxsize"], given["npopulations"], given["timeout_in_seconds"]) == (21, 15, 60)
    assert (given["deterministic"], given["batching"], given["print_precision"]) == (True, False, 17)
    assert isinstance(given["seed"], int)
    assert (started["niterations"], started["parallelism"]) == (7, "serial")
    assert pysr.spell(guess)[0] in record["calls"]
    assert "(exp) => Dict((exp) => 1" in record["calls"]
    assert not Path(given["output_directory"]).exists()  # nothing is left behind


@has_pysr
def test_a_search_without_formulas_says_so(monkeypatch):
    monkeypatch.setattr(pysr, "child", lambda *arguments: nullcontext())
    with pytest.raises(InputError, match="give it more time"):
        pysr.search(data(), 1, 1, maxsize=15)


def julia_starts() -> bool:
    command = [sys.executable, "-c", "import socket; socket.setdefaulttimeout(30); import pysr"]
    return find_spec("pysr") is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


@has_pysr
@pytest.mark.slow
def test_pysr_searches():
    """The whole search, where there is a Julia."""
    if not julia_starts():
        with pytest.raises(InputError, match=r"PySR's Julia does not start .*--import-pysr DIR.*--engine operon"):
            pysr.search(data(), 1, 1, maxsize=15)
        pytest.skip("Julia cannot be had on this machine")
    forms = pysr.search(data(100), 1, 5, maxsize=15, guesses=[form("s*(1.5 - 2.25*s)/(1 + 0.4*s)")])
    assert forms == pysr.search(data(100), 1, 5, maxsize=15, guesses=[form("s*(1.5 - 2.25*s)/(1 + 0.4*s)")])
    assert error(forms[-1], data()) < 1e-6
