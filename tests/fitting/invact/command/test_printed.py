"""python -m fitting.invact: what it prints, what it refuses, and what it leaves behind."""

import contextlib
import csv
import io
import json
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coefficients
from coefficients import document as documents
from coefficients.__main__ import run as run_coefficients
from fitting.activations import Activation, names
from fitting.invact import __main__ as command
from fitting.invact import proposals, report, solve
from fitting.invact import sweep as sweeping
from fitting.invact.engines import ENGINES
from fitting.invact.formats import FORMATS
from fitting.invact.solve import Fit
from fitting.invact.sweep import shipped

ROOT = Path(coefficients.__file__).parents[1]
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX pipes and signals")

Ended = tuple[int, str, str]
Command = Callable[..., Ended]
MISH = ("--fn", "mish", "--dtype", "bfloat16")
TANH = ("--fn", "tanh", "--dtype", "float16")
CLOSED = ["relu", "sigmoid", "hardswish"]
FITS: dict[Any, Fit] = {}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("fitting.options.DATA", tmp_path / "none")  # what ships is looked at by tests of its own
    return tmp_path


@pytest.fixture
def invact(capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process: (status, stdout, stderr)."""

    def call(*words: str) -> Ended:
        try:
            status = command.run(list(words))
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return call


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was fitted before in this process is not fitted again: its fit takes seconds."""

    def fit(activation: Activation, dtype: str, **options: Any) -> Fit:
        options.pop("progress")
        asked = (activation.name, activation.expr, dtype, options["weight"].label, repr({**options, "weight": None}))
        if asked not in FITS:
            FITS[asked] = solve.fit(activation, dtype, **options)
        return FITS[asked]

    monkeypatch.setattr(command, "fit", fit)


@pytest.fixture
def hopeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that finds nothing, and is quick about it."""
    monkeypatch.setattr(proposals, "ENGINES", {name: lambda problem, settings: [] for name in ENGINES})


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only functions with closed forms in the sweep."""
    monkeypatch.setattr(sweeping, "names", lambda: CLOSED)


def environment(**changes: str) -> dict[str, str]:
    """For processes: this checkout first, and buffers as users have them."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONUNBUFFERED", "PYTHONIOENCODING")}
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


def process(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "fitting.invact", *words],
        **{"text": True, "stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment(), **options},
        check=False,
    )


def stored(path: str | Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(path).read_text("ascii"))
    return loaded


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*") if path.is_file())


def section(out: str, first: str) -> list[str]:
    """The lines of the paragraph that begins with a line in which `first` is."""
    parts = [part.splitlines() for part in out.split("\n\n")]
    (found,) = [part for part in parts if part[0].lstrip().startswith(first)]
    return found


# what is printed


def test_the_table(invact: Command) -> None:
    status, out, err = invact(*MISH)
    assert (status, err) == (0, "")
    path = "actfit/coefficients/mish/invact-bfloat16.v1.json"
    found = stored(path)
    solution, error = found["solution"], found["error"]
    assert out.isascii()
    table, _ = out.rstrip().rsplit("\n", 1)  # the last line is as long as the folder's name
    assert max(map(len, table.splitlines())) < 110
    assert out.startswith("mish: q(y) for f'(x) from y = f(x) in bfloat16, 1 bit; weight norm\n\n")
    branches = [line.split() for line in section(out, "branch")]
    assert branches[1] == ["left", "0", "-inf", "-1.192431215", "falling", "-0.308843413", "0"]
    assert branches[2] == ["right", "1", "-1.192431215", "inf", "rising", "-0.308843413", "inf"]
    assert f"\nbit     x >= T = {solution['border']!r}, f(T) = -0.308843413017250" in out
    facts = section(out, "price")
    assert facts[0].startswith(f"price   {solution['price']['instructions']} (")
    assert facts[1] == f"rule    {solution['rule']}"
    share = float(f"{100 * (error['rms'] / error['floor_rms'] - 1):.2g}")
    assert facts[2].startswith(f"rms     {error['rms']:.6g}, {share:g} % above the floor")
    assert facts[3].startswith(f"largest {error['linf']:.6g} at y = {error['linf_at']:.6g}, ")
    assert facts[3].endswith(" % above the floor")
    floor = section(out, "instructions")[-2].split()
    assert floor[:3] == ["floor", f"{error['floor_rms']:.4g}", f"{error['floor_linf']:.4g}"]
    for line, name, bound, sample in zip(facts[4:6], ("left", "right"), error["bound"], error["sampled"], strict=True):
        printed = re.search(rf"\|q - g\| <= (\S+) on the {name}, ", line)
        assert printed is not None
        assert bound <= float(printed[1]) <= bound * (1 + 1e-5)  # six digits, and it still holds
        assert f" % above {sample:.6g} at x = " in line
    assert facts[6:] == [f"file    wrote {Path(path).resolve()}"]
    assert invact(*MISH)[1].splitlines()[-1] == f"file    found the same in {Path(path).resolve()}"


@pytest.mark.slow
def test_formulas_and_constants_are_those_of_the_file(invact: Command) -> None:
    out = invact(*MISH)[1]
    branches = stored("actfit/coefficients/mish/invact-bfloat16.v1.json")["solution"]["branches"]
    text = re.sub(r"\s+", " ", out)
    for branch in branches:
        assert f"s = {branch['variable']} " in text
        assert f"q = {branch['expression']} " in text
        for name, value in branch["constants"].items():
            shown = [float(number) for number in re.findall(rf" {name} += +(\S+)", out)]
            assert np.float32(value) in np.float32(shown)


@pytest.mark.slow
def test_the_front_is_shown_near_the_choice(invact: Command) -> None:
    front = stored_front(invact)
    out = invact(*MISH)[1]
    rows = section(out, "instructions")
    shown = [line for line in rows[1:] if "minimax" in line or "template" in line]
    (chosen,) = [line for line in shown if line.startswith("  *")]
    assert len(shown) <= 8
    at = shown.index(chosen)
    assert len(shown) - at <= 3
    counts = [str(row["instructions"]) for row in front]
    first = counts.index(shown[0].split()[0].strip("*"))
    assert [line.strip(" *").split()[0] for line in shown] == counts[first : first + len(shown)]
    assert rows[-2].split()[0] == "floor"
    assert rows[-1] == f"{len(front) - len(shown)} more rows of the front by --front"
    whole = section(invact(*MISH, "--front")[1], "instructions")
    assert [line.strip(" *").split()[0] for line in whole[1:-1]] == counts
    assert "--front" not in whole[-1]


def stored_front(invact: Command) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(invact(*MISH, "--out", "-")[1])["solution"]["front"]
    return found


def test_one_branch_needs_no_bit_and_closed_forms_are_exact(invact: Command) -> None:
    status, out, err = invact(*TANH)
    assert (status, err) == (0, "")
    assert out.startswith("tanh: q(y) for f'(x) from y = f(x) in float16, no bit needed; weight norm\n")
    assert "\nbit " not in out
    assert "\nall     q = (1 - y)*(y + 1)\n" in out
    assert "\nexact   closed form; in float32 |q - g| <= 6e-08 at stored outputs\n" in out
    assert re.search(r"\nproof   \|q - g\| <= \S+e-16, no error to be resolved\n", out)
    out = invact("--fn", "hardswish", "--dtype", "float16")[1]
    assert "\nbit     x >= T = -1.5, f(T) = -0.375\n" in out
    assert "\nexact   closed forms; " in out
    out = invact("--fn", "relu", "--dtype", "float16")[1]
    assert "\nrms     0, at the floor\nlargest 0, at the floor\n" in out
    out = invact("--fn", "leaky_relu", "--dtype", "float16")[1]
    assert re.search(r"\nrms     \S+e-10, floor \S+; rounding f' to float16 costs \S+e-\d+\n", out)


@pytest.mark.slow
def test_the_paper_stands_in_the_front(invact: Command) -> None:
    # 16 bits so coarse that few instructions will do: the floor is what it is, the search ends soon.
    out = invact("--fn", "silu", "--dtype", "bfloat16", "--max-error", "0.2")[1]
    (paper,) = [line for line in section(out, "instructions") if line.endswith("  paper")]
    assert int(paper.split()[0]) > 20
    assert "rule    max |q - g| at most 0.2" in out
    assert stored(files()[0])["options"]["max_error"] == 0.2
    text = invact("--fn", "silu", "--dtype", "bfloat16", "--max-error", "0.2", "--format", "csv")[1]
    marks = [row["mark"] for row in csv.DictReader(io.StringIO(text))]
    assert (marks.count("*"), marks.count("paper")) == (1, 1)


@pytest.mark.slow
def test_the_paper_itself(invact: Command) -> None:
    out = invact("--fn", "silu", "--dtype", "bfloat16", "--engine", "published")[1]
    assert "\nrule    published; misses: RMS within 2%" in out
    assert [line.split()[-1] for line in section(out, "instructions")[1:-1]] == ["published"]
    assert files() == ["actfit/coefficients/silu/invact-bfloat16-published.v1.json"]
    assert invact("--all", "--dtype", "bfloat16", "--engine", "published", "--quiet") == (0, "", "")
    assert files() == [f"actfit/coefficients/{name}/invact-bfloat16-published.v1.json" for name in ("gelu", "silu")]


def test_csv_is_the_front_with_every_digit(invact: Command) -> None:
    table = list(csv.DictReader(io.StringIO(invact(*MISH, "--format", "csv")[1])))
    found = stored("actfit/coefficients/mish/invact-bfloat16.v1.json")
    front = found["solution"]["front"]
    for row, wanted in zip(table, front, strict=True):
        assert int(row["instructions"]) == wanted["instructions"]
        for key in ("rms", "linf", "pointwise"):
            assert float(row[key]) == pytest.approx(wanted[key], rel=1e-11)  # files have 12 digits
        assert row["engine"] == wanted["engine"]
    (chosen,) = [row for row in table if row["mark"]]
    price = found["solution"]["price"]
    assert {key: int(chosen[key]) for key in price} == price
    assert float(chosen["linf_at"]) == found["error"]["linf_at"]


def test_latex(invact: Command) -> None:
    lines = invact("--fn", "hardswish", "--dtype", "bfloat16", "--format", "latex")[1].splitlines()
    assert lines[0].startswith("% hardswish: ")
    assert lines.count(r"\end{tabular}") == 3  # the front, and the constants of two branches
    number = r"\$-?\d[\d.]*( \\times 10\^\{-?[1-9]\d*\})?\$"
    assert re.fullmatch(rf"  {number} & {number} & {number} & {number} & closed & \$\*\$ \\\\", lines[5])
    assert re.fullmatch(rf"  \$c_\{{0\}}\$ & {number} \\\\", lines[-3])


def test_json_is_the_file_and_good(invact: Command, capsys: pytest.CaptureFixture[str]) -> None:
    out = invact(*MISH, "--format", "json")[1]
    assert out == Path("actfit/coefficients/mish/invact-bfloat16.v1.json").read_text("ascii")
    before = files()
    assert invact(*MISH, "--out", "-", "--quiet") == (0, out, "")
    assert files() == before
    assert invact(*MISH, "--out", "x.json", "--quiet") == (0, "", "")
    assert Path("x.json").read_text("ascii") == out
    assert run_coefficients(["check", "x.json"]) == 0
    others = len(stored("x.json")["solution"]["front"]) - 1
    assert capsys.readouterr().out.splitlines() == [
        f"x.json: ok; not verified: {others} other rows of solution.front, as their formulas are not stored",
        "1 file, 0 bad, 1 verified in part",
    ]


def test_the_plot_is_told_of(invact: Command) -> None:
    assert invact(*TANH, "--plot", "./t.svg")[1].splitlines()[-1] == "plot    wrote ./t.svg"
    assert files() == ["actfit/coefficients/tanh/invact-float16.v1.json", "t.svg"]


def test_help_is_short_lines(invact: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = invact("--help")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert set(re.findall(r"--[a-z][a-z-]*", out)) == {
        *("--version", "--root"),
        *("--help", "--fn", "--expr", "--name", "--param", "--all", "--dtype", "--engine", "--max-error", "--weight"),
        *("--seed", "--budget", "--timeout", "--template", "--start", "--import-pysr", "--out", "--format"),
        *("--front", "--plot", "--quiet", "--jobs", "--scheduler"),
    }
    assert all(word in out for word in (*names(), *FORMATS))


# what is fitted


@pytest.mark.slow
def test_own_function_with_name_and_parameters(invact: Command) -> None:
    words = ["--expr", "log(1 + exp(a*x))", "--name", "soft", "--param", "a=2", "--dtype", "float16"]
    assert invact(*words)[0] == 0
    assert files() == ["actfit/coefficients/soft/invact-float16-a=2.0.v1.json"]
    found = stored(files()[0])
    assert found["function"] == {"name": "soft", "expr": "log(1 + exp(a*x))", "params": {"a": 2.0}}
    again = shlex.split(found["provenance"]["command"])[3:]
    before = Path(files()[0]).read_bytes()
    assert "found the same" in invact(*again)[1]
    assert Path(files()[0]).read_bytes() == before


def test_formulas_of_a_search_elsewhere(hopeless: None, invact: Command) -> None:
    Path("run").mkdir()
    Path("run/hall_of_fame.csv").write_text('Complexity,Loss,Equation\n3,0.1,"x1 * 0.5"\n5,0.1,"x1 * 0.5 + y"\n')
    found = json.loads(invact(*MISH, "--import-pysr", "run", "--max-error", "0.7", "--out", "-")[1])
    assert {branch["engine"] for branch in found["solution"]["branches"]} == {"pysr"}
    assert found["provenance"]["command"] is None  # no command line can name what was found elsewhere


def test_own_templates(invact: Command) -> None:
    words = ["--engine", "template", "--budget", "1", "--max-error", "0.6", "--out", "-"]
    own = ["--template", "a + b*s", "--start", "a=0.5", "--template", "a*s**2"]
    found = json.loads(invact(*MISH, *words, *own)[1])
    assert found["options"] == {
        **{"dtype": "bfloat16", "engine": "template", "weight": "norm"},
        **{"budget": 1, "max_error": 0.6},
    }
    # At most: y - t, max, min, root for s; a product and a sum a side; the choice between sides.
    assert found["solution"]["price"]["instructions"] <= 10


# what is refused

REFUSED: list[tuple[str, str]] = [
    ("--dtype float16", "say what to fit by one of --fn, --expr and --all, got none"),
    ("--fn gelu --all", "say what to fit by one of --fn, --expr and --all, got --fn and --all"),
    ("--fn gleu --dtype float16", "unknown function 'gleu'; did you mean gelu or"),
    ("--fn gelu", "say how y is stored by --dtype: bfloat16, float16, float32"),
    ("--fn gelu --dtype bf16", "dtype must be one of bfloat16, float16, float32, got 'bf16'; did you mean bfloat16"),
    ("--fn gelu --dtype ''", "dtype must be one of bfloat16, float16, float32, got ''"),
    ("--fn gelu --dtype float16 --engine magic", "engine must be one of minimax, template, operon, pysr, all"),
    ("--fn gelu --dtype float16 --engine ''", "engine must be one of minimax, template, operon, pysr, all"),
    ("--expr 'sin(x)' --dtype float16", "custom must be defined everywhere and have limits at -inf and +inf"),
    ("--expr 'sin(x)*exp(-x**2)' --dtype float16", "custom must have at most two monotone branches"),
    ("--expr x-x --dtype float16", "expression must be a function of x, got 'x-x'"),
    ("--expr '__import__(1)' --dtype float16", "expression: unknown function '__import__'"),
    ("--fn gelu --name mine --dtype float16", "--name goes with --expr"),
    ("--fn elu --param alhpa=1 --dtype float16", "unknown parameter 'alhpa'; elu has alpha"),
    *(
        (f"--fn gelu --dtype float16 --max-error {error}", f"max-error must be positive and finite, got {error}")
        for error in ("0", "-1", "nan", "inf")
    ),
    ("--fn gelu --dtype float16 --max-error ''", "max-error must be a number, got ''"),
    ("--fn gelu --dtype float16 --weight nrom", "unknown weight 'nrom': uniform, a distribution or a file; did you"),
    ("--fn gelu --dtype float16 --weight ''", "weight must be uniform, a distribution like norm(0,2) or a file, got"),
    ("--fn gelu --dtype float16 --seed 1.5", "seed must be a whole number, got '1.5'"),
    ("--fn gelu --dtype float16 --seed -1", "seed must be from 0 to 2147483647, got -1"),
    ("--fn gelu --dtype float16 --budget 0", "budget must be at least 1, got 0"),
    ("--fn gelu --dtype float16 --budget ''", "budget must be a whole number, got ''"),
    ("--fn gelu --dtype float16 --timeout 0", "timeout must be positive and finite, got 0"),
    ("--fn gelu --dtype float16 --timeout soon", "timeout must be a number, got 'soon'"),
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
    ("--fn gelu --dtype float16 --engine template --template 'a.b'", "expression"),
    ("--fn gelu --dtype float16 --engine template --template 'f(s)'", "unknown function 'f'"),
    ("--fn gelu --dtype float16 --engine template --template 'a*s' --start b=1", "got 'b'"),
    ("--fn gelu --dtype float16 --engine template --template 'a*s' --start a", "start must be NAME=VALUE, each name"),
    ("--fn gelu --dtype float16 --engine template --template 'a*s' --start a=x", "start a must be a number, got 'x'"),
    (
        "--fn gelu --dtype float16 --engine template --template 'a*s' --start a=nan",
        "start must give finite numb",
    ),
    ("--fn gelu --dtype float16 --start a=1", "--start goes with --template"),
    ("--fn gelu --dtype float16 --import-pysr missing", "--import-pysr must name a hall_of_fame.csv or a folder"),
    *(
        (f"--fn gelu --dtype float16 --engine published --{option} 1", f"--{option} goes with ")
        for option in ("max-error", "import-pysr", "seed", "budget", "template")
    ),
    ("--fn mish --dtype float16 --engine published", "engine published has formulas for gelu and silu, got mish"),
    *(
        (f"--expr {expr} --dtype {dtype}", f"custom must have finite outputs in {dtype}, and not one only: scale")
        for expr, dtype in (("1e308*x**2", "bfloat16"), ("1e300*x", "float16"), ("1e300*x", "float32"))
    ),
    (f"--expr x**2 --dtype float16 --name {'a' * 65}", "name must have at most 64 characters, got 65"),
    ("--fn gelu --dtype float16 --format xml", "format must be one of table, json, csv, latex, got 'xml'"),
    ("--fn gelu --dtype float16 --out - --format csv", "--out - prints the JSON file; leave it out to print csv"),
    ("--fn gelu --dtype float16 --front --format csv", "--front goes with --format table"),
    ("--fn gelu --dtype float16 --front --out -", "--front goes with --format table"),
    ("--fn gelu --dtype float16 --out no/such/x.json", "out must be in a folder that exists, got 'no/such/x.json'"),
    ("--fn gelu --dtype float16 --plot x.gif", "plot must end in one of .png, .svg, .pdf, got 'x.gif'"),
    ("--fn gelu --dtype float16 --plot no/such.png", "plot must be in a folder that exists, got 'no/such.png'"),
    ("--fn gelu --dtype float16 --jobs 1", "--jobs and --scheduler go with --all"),
    *(
        (f"--all --{option} {value}", f"--{option} goes with one function, not with --all")
        for option, value in [
            *(("out", "x"), ("plot", "x.png"), ("format", "csv"), ("param", "a=1"), ("front", "")),
            *(("template", "a*s"), ("start", "a=1"), ("import-pysr", ".")),
        ]
    ),
    ("--all --jobs 0", "jobs must be at least 1, or -1 for one a core, got 0"),
    ("--all --jobs 1 --scheduler tcp://x:1", "say who does the work by one of --jobs and --scheduler"),
    ("--all --dtype half", "dtype must be one of"),
    ("--all --max-error 0", "max-error must be positive and finite, got 0"),
    ("--all --weight nrom", "unknown weight 'nrom'"),
    ("--frobnicate", "unrecognized arguments: --frobnicate; see --help"),
    ("--fn", "argument --fn: expected one argument; see --help"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED, ids=[line for line, _ in REFUSED])
def test_bad_input_is_one_line(line: str, message: str, invact: Command) -> None:
    status, out, err = invact(*shlex.split(line))
    assert (status, out) == (2, "")
    assert err.startswith("invact: ")
    assert message in err
    assert err.count("\n") == 1
    assert files() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "columns must include Complexity, Loss, Equation"),
        ("Complexity,Loss,Equation\n", "must have at least one row below the header, got none"),
        ("Complexity,Loss,Equation\nmany,0.1,y\n", "row 2 column Complexity: must be a number, got 'many'"),
        ("Complexity,Loss,Equation\n1,0.1,\"__import__('os').system('touch evil')\"\n", "row 2 column Equation: "),
        ('Complexity,Loss,Equation\n1,0.1,"(lambda: y)()"\n', "row 2 column Equation: "),
        (f"Complexity,Loss,Equation\n1,0.1,{'(' * 5000}\n", "row 2 column Equation: "),
        ("Complexity,Loss,Equation\n1,0.1,9**9**9**9\n", "row 2 column Equation: "),
    ],
)
def test_hostile_halls_of_fame(text: str, message: str, invact: Command) -> None:
    Path("hall_of_fame.csv").write_text(text)
    status, out, err = invact(*MISH, "--import-pysr", "hall_of_fame.csv")
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert files() == ["hall_of_fame.csv"]


@pytest.mark.parametrize(("engine", "package"), [("pysr", "pysr"), ("operon", "pyoperon")])
def test_engines_that_are_not_installed(
    engine: str, package: str, invact: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"fitting.invact.symbolic.{engine}.find_spec", lambda name: None)
    status, out, err = invact(*MISH, "--engine", engine)
    assert (status, out) == (2, "")
    assert f"pip install {package}" in err
    assert err.count("\n") == 1
    assert files() == []


@pytest.mark.parametrize(
    ("error", "floor", "text"),
    [
        (1.0, 1.0, "at the floor"),
        (0.0, 0.0, "at the floor"),
        (1.01234, 1.0, "1.2 % above the floor"),
        (2.5, 1.0, "150 % above the floor"),
        (3.0, 1.0, "floor 1"),
        (1e-9, 0.0, "floor 0"),
    ],
)
def test_errors_beside_floors(error: float, floor: float, text: str) -> None:
    assert report.beside(error, floor) == text


def test_what_no_formula_reaches(hopeless: None, invact: Command) -> None:
    status, out, err = invact(*MISH, "--max-error", "1e-7")
    assert (status, out) == (2, "")
    assert err.startswith("invact: no formula found for mish reaches max |q - g| at most 1e-07: ")
    assert files() == []
    assert err.count("\n") == 1


# all functions


def test_what_ships() -> None:
    assert shipped() == [(name, dtype) for name in names() for dtype in FORMATS]
    assert shipped(("float16",)) == [(name, "float16") for name in names()]


@pytest.mark.slow
def test_all(few: None, invact: Command) -> None:
    status, out, err = invact("--all")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[:3] for line in lines[:-1]] == [
        [name, dtype, "closed"] for name in CLOSED for dtype in FORMATS
    ]
    assert len({line.index("actfit/coefficients") for line in lines[:-1]}) == 1
    assert max(len(line) for line in lines) < 170 + len(str(Path.cwd()))
    assert lines[-1] == "9 files: 9 written, 0 unchanged; 9 of them closed forms"
    before = {name: Path(name).read_bytes() for name in files()}
    assert len(before) == 9
    assert invact("--all", "--dtype", "float16")[1].splitlines()[-1].startswith("3 files: 0 written, 3 unchanged; ")
    assert invact("--all", "--quiet") == (0, "", "")
    assert {name: Path(name).read_bytes() for name in files()} == before


@pytest.mark.slow
def test_workers_make_the_same_files(few: None, invact: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--all", "--dtype", "float16")
    printed = invact(*words)[1]
    before = {name: Path(name).read_bytes() for name in files()}
    (folder / "two").mkdir()
    monkeypatch.chdir("two")
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "two"))
    assert invact(*words, "--jobs", "2") == (0, printed.replace(str(folder), str(folder / "two")), "")
    assert set(files()) == set(before)
    assert {name: Path(name).read_bytes() for name in files()} == before


def test_a_function_that_cannot_be_fitted_is_named(
    hopeless: None, invact: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "names", lambda: ["relu", "mish"])
    status, out, err = invact("--all", "--dtype", "bfloat16", "--max-error", "1e-7")
    assert (status, len(out.splitlines())) == (2, 1)
    assert err.startswith("invact: mish in bfloat16: no formula found for mish reaches ")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_the_list_shows_both_methods(
    invact: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fitting.fewbit import __main__ as fewbit

    invact(*MISH)
    invact(*TANH)
    assert fewbit.run(["--fn", "relu", "--bits", "1", "--quiet"]) == 0
    monkeypatch.setattr("coefficients.store.DATA", Path("actfit/coefficients").resolve())
    capsys.readouterr()
    assert run_coefficients(["list"]) == 0
    first, second = (part.splitlines() for part in capsys.readouterr().out.split("\n\n"))
    assert [line.split()[0] for line in first] == ["function", "relu"]
    header = ["function", "name", "version", "bits", "instructions", "rms", "floor_rms", "linf", "floor_linf", "bound"]
    assert second[0].split() == header
    found = stored("actfit/coefficients/mish/invact-bfloat16.v1.json")
    rows = [dict(zip(header, line.split(), strict=True)) for line in second[1:]]
    assert [(row["function"], row["name"], row["bits"]) for row in rows] == [
        ("mish", "invact-bfloat16", "1"),
        ("tanh", "invact-float16", "0"),
    ]
    for key in ("rms", "floor_rms", "linf", "floor_linf"):
        assert rows[0][key] == f"{found['error'][key]:.4g}"
    assert rows[0]["bound"] == f"{max(found['error']['bound']):.4g}"
    assert run_coefficients(["list", "tanh"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


# whole processes


@pytest.mark.slow
def test_the_same_command_makes_the_same_bytes(invact: Command) -> None:
    done = process(*MISH, "--out", "-")
    assert (done.returncode, done.stdout, done.stderr) == invact(*MISH, "--out", "-")
    documents.validate(json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="POSIX terminals")
@pytest.mark.parametrize("quiet", [[], ["--quiet"]], ids=["bar", "quiet"])
def test_the_progress_bar_is_for_terminals(quiet: list[str]) -> None:
    import fcntl
    import termios

    parent, child = os.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    done = process(*MISH, "--out", "x.json", *quiet, stderr=child)
    os.close(child)
    shown = b""
    try:
        while chunk := os.read(parent, 65536):
            shown += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
    finally:
        os.close(parent)
    assert done.returncode == 0
    assert "\r" not in done.stdout
    if quiet:
        assert (done.stdout, shown) == ("", b"")
    else:
        assert re.search(r"\d+/\d+ \[", shown.decode())


@pytest.mark.slow
@posix
def test_outputs_that_take_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = process(*TANH, stdout=writing)
    assert (done.returncode, done.stderr) == (141, "")
    os.close(writing)
    with open("/dev/full", "w") as full:
        done = process(*TANH, "--out", "-", stdout=full)
    assert (done.returncode, done.stderr) == (2, "invact: cannot write the output: No space left on device\n")


@pytest.mark.slow
@posix
@pytest.mark.parametrize(
    "words", [["--all", "--jobs", "2"], ["--fn", "silu", "--dtype", "float32"]], ids=["all", "one"]
)
@pytest.mark.parametrize("after", [0.2, 2.5])
def test_ctrl_c(words: list[str], after: float) -> None:
    """As a terminal sends it: to the command and all its children."""
    running = subprocess.Popen(
        [sys.executable, "-m", "fitting.invact", *words],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a shell's background
    )
    try:
        time.sleep(after)
        if running.poll() is not None:
            pytest.skip("it was done already")
        os.killpg(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
    assert running.returncode == 130
    assert err in ("interrupted\n", "invact: interrupted; files are whole or not there\n")
    assert all(documents.validate(stored(name)) for name in files())
