"""The fits of actfit invact: a user's own function, formulas of a search elsewhere, all functions."""

import json
import shlex
from itertools import product
from pathlib import Path

import pytest

from actfit.fitting.activations import names
from actfit.fitting.invact import sweep as sweeping
from actfit.fitting.invact.formats import FORMATS
from actfit.fitting.invact.sweep import shipped
from tests.fitting.commands import Command, files, stored
from tests.fitting.invact.command.words import CLOSED, MISH


@pytest.mark.slow
def test_own_function_with_name_and_parameters(invact: Command) -> None:
    words = ["--expr", "1/(1 + exp(-a*x))", "--name", "soft", "--param", "a=2", "--dtype", "float16"]
    assert invact(*words)[0] == 0
    assert files() == ["actfit/coefficients/soft/invact-float16-a=2.0.v1.json"]
    document = stored(files()[0])
    assert document["function"] == {"name": "soft", "expr": "1/(1 + exp(-a*x))", "params": {"a": 2.0}}
    again = shlex.split(document["provenance"]["command"])[3:]
    before = Path(files()[0]).read_bytes()
    assert "found the same" in invact(*again)[1]
    assert Path(files()[0]).read_bytes() == before


def test_formulas_of_a_search_elsewhere(hopeless: None, invact: Command) -> None:
    Path("run").mkdir()
    Path("run/hall_of_fame.csv").write_text('Complexity,Loss,Equation\n3,0.1,"x1 * 0.5"\n5,0.1,"x1 * 0.5 + y"\n')
    document = json.loads(invact(*MISH, "--import-pysr", "run", "--max-error", "0.7", "--out", "-")[1])
    assert {branch["engine"] for branch in document["solution"]["branches"]} == {"pysr"}
    assert document["provenance"]["command"] is None  # no command line can name what was found elsewhere


def test_own_templates(invact: Command) -> None:
    words = ["--engine", "template", "--budget", "1", "--max-error", "0.6", "--out", "-"]
    own = ["--template", "a + b*s", "--start", "a=0.5", "--template", "a*s**2"]
    document = json.loads(invact(*MISH, *words, *own)[1])
    assert document["options"] == {
        **{"dtype": "bfloat16", "engine": "template", "weight": "norm"},
        **{"budget": 1, "max_error": 0.6},
    }
    # At most: y - t, max, min, root for s; a product and a sum a branch; the selection between branches.
    assert document["solution"]["price"]["instructions"] <= 10


def test_shipped_files() -> None:
    tasks = shipped()
    one_bit = [task[:2] for task in tasks if task.bits == 1]
    assert one_bit == [(name, dtype) for name in names() for dtype in FORMATS]
    curved = ("hardswish", "gelu", "gelu_tanh", "quick_gelu", "silu", "mish")
    two_bits = {(task.name, task.dtype) for task in tasks if task.bits == 2}
    assert two_bits == set(product(curved, ("bfloat16", "float16")))


@pytest.mark.slow
def test_all(few: None, invact: Command) -> None:
    status, out, err = invact("--all")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    two_bits = [("hardswish", "bfloat16"), ("hardswish", "float16")]
    assert [line.split()[:3] for line in lines[:-1]] == [
        [name, dtype, "adapted" if name == "hardswish" and dtype != "float32" else "closed"]
        for name, dtype in [*product(CLOSED, FORMATS), *two_bits]
    ]
    assert len({line.index("actfit/coefficients") for line in lines[:-1]}) == 1
    assert max(len(line) for line in lines) < 172 + len(str(Path.cwd()))
    assert lines[-1] == "11 files: 11 written, 0 unchanged; 7 of them closed forms"
    before = {name: Path(name).read_bytes() for name in files()}
    assert len(before) == 11
    assert invact("--all", "--dtype", "float16")[1].splitlines()[-1].startswith("4 files: 0 written, 4 unchanged; ")
    assert {name: Path(name).read_bytes() for name in files()} == before


def test_a_function_that_cannot_be_fitted_is_named(
    hopeless: None, invact: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "names", lambda: ["relu", "mish"])
    status, out, err = invact("--all", "--dtype", "bfloat16", "--max-error", "1e-7")
    assert (status, len(out.splitlines())) == (2, 1)
    assert err.startswith("invact: mish in bfloat16: no formula found for mish reaches ")
    assert err.count("\n") == 1
