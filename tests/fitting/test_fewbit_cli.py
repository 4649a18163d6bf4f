"""python -m fitting.fewbit: what it prints, what it refuses, and what it leaves behind."""

import contextlib
import csv
import io
import json
import os
import re
import shlex
import signal
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
from coefficients.document import dumps, seal
from fitting.activations import names
from fitting.fewbit import __main__ as command
from fitting.weights import from_samples

ROOT = Path(coefficients.__file__).parents[1]
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX pipes, devices and signals")

Ended = tuple[int, str, str]
Command = Callable[..., Ended]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("fitting.options.DATA", tmp_path / "none")  # what ships is looked at by tests of its own
    return tmp_path


@pytest.fixture
def fewbit(capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process: (status, stdout, stderr)."""

    def call(*words: str) -> Ended:
        try:
            status = command.run(list(words))
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return call


def environment(**changes: str) -> dict[str, str]:
    """For processes: this checkout first, and buffers as users have them."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONUNBUFFERED", "PYTHONIOENCODING")}
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


def process(*words: str, before: tuple[str, ...] = (), **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, "-W", "error", "-m", "fitting.fewbit", *words],
        **{"text": True, "stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment(), **options},
        check=False,
    )


def stored(path: str | Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(path).read_text("ascii"))
    return loaded


def files(below: str | Path = ".") -> list[str]:
    return sorted(str(path.relative_to(below)) for path in Path(below).rglob("*") if path.is_file())


# what is printed


def test_the_table(fewbit: Command) -> None:
    status, out, err = fewbit("--fn", "gelu", "--bits", "2")
    assert (status, err) == (0, "")
    path = "actfit/coefficients/gelu/fewbit-2bit.v1.json"
    found = stored(path)
    borders = [f"{border:.10g}" for border in found["solution"]["borders"]]
    levels = [f"{level:.10g}" for level in found["solution"]["levels"]]
    lines = out.splitlines()
    assert lines[0] == "gelu': 2 bits, 4 levels on 4 intervals; weight uniform, domain [-10, 10]"
    assert [line.split() for line in lines[1:8]] == [
        [],
        ["from", "to", "level", "code"],
        ["-inf", borders[0], levels[0], "00"],
        [borders[0], borders[1], levels[1], "01"],
        [borders[1], borders[2], levels[2], "10"],
        [borders[2], "+inf", levels[3], "11"],
        [],
    ]
    ends = {tuple(word.end() for word in re.finditer(r"\S+", line)) for line in lines[2:7]}
    assert len(ends) == 1  # every column is aligned to the right
    error, bound, gap = (found["error"][key] for key in ("l2_squared", "lower_bound", "gap"))
    assert lines[8].startswith(f"error   ∫(f'-q)²w = {error:.6g}, max |f'-q| = {found['error']['linf']:.4g} at x = ")
    assert lines[9].startswith("proof   ")
    assert f" {bound:.6g}" in lines[9]
    assert f" {float(f'{100 * gap:.2g}'):g} %" in lines[9]
    assert lines[10] == "paper   0.0406 in contiguous intervals (FewBit, Table 1)"
    assert lines[11:] == [f"file    wrote {Path(path).resolve()}"]
    assert (
        fewbit("--fn", "gelu", "--bits", "2")[1].splitlines()[-1] == f"file    found the same in {Path(path).resolve()}"
    )


@pytest.mark.parametrize(
    ("words", "title", "error"),
    [
        (
            ["--fn", "relu", "--bits", "1"],
            "relu': 1 bit, 2 levels on 2 intervals; weight uniform, domain [-10, 10]",
            "error   exactly 0: f' takes 2 values here, and each has its level",
        ),
        (
            ["--expr", "3*x", "--bits", "1", "--domain", "-1", "1"],
            "custom': 1 bit, 1 level on 1 interval; weight uniform, domain [-1, 1]",
            "error   exactly 0: f' takes 1 value here, and each has its level",
        ),
        (
            ["--fn", "leaky_relu", "--param", "negative_slope=0.25", "--bits", "2", "--domain", "-2e-3", "7"],
            "leaky_relu(negative_slope=0.25)': 2 bits, 2 levels on 2 intervals; weight uniform, domain [-0.002, 7]",
            "error   exactly 0: f' takes 2 values here, and each has its level",
        ),
    ],
)
def test_step_functions_are_exact_and_say_so(words: list[str], title: str, error: str, fewbit: Command) -> None:
    status, out, _ = fewbit(*words)
    lines = out.splitlines()
    assert (status, lines[0]) == (0, title)
    assert lines[-2] == error
    assert "proof" not in out


def test_exactly_zero_is_said_of_nothing_else(fewbit: Command) -> None:
    lines = fewbit("--fn", "gelu", "--bits", "1", "--weight", "norm", "--domain", "30", "40")[1].splitlines()
    assert stored(files()[0])["error"]["linf"] == 0
    assert lines[-2] == "error   0 to all the digits of float64"
    lines = fewbit("--fn", "elu", "--bits", "1", "--domain", "-0", "1")[
        1
    ].splitlines()  # 1 here, though no step function
    assert lines[0].endswith("domain [0, 1]")
    assert lines[-2].startswith("error   exactly 0: ")


@pytest.mark.parametrize(
    ("words", "paper"),
    [
        (["--fn", "tanh"], "0.0319 on |x|"),
        (["--fn", "tanh", "--weight", "norm", "--domain", "-10", "10"], None),
        (["--fn", "tanh", "--domain", "-10", "9"], None),
        (["--fn", "softplus"], "0.0541 in contiguous intervals"),
        (["--fn", "softplus", "--param", "beta=2"], None),
        (["--fn", "mish"], None),
    ],
)
def test_the_paper_is_quoted_for_its_own_setting_only(words: list[str], paper: str | None, fewbit: Command) -> None:
    lines = [line for line in fewbit(*words, "--bits", "2")[1].splitlines() if line.startswith("paper")]
    assert lines == ([f"paper   {paper} (FewBit, Table 1)"] if paper else [])


def test_csv_holds_every_digit(fewbit: Command) -> None:
    out = fewbit("--fn", "silu", "--bits", "3", "--format", "csv")[1]
    table = list(csv.DictReader(io.StringIO(out)))
    found = stored("actfit/coefficients/silu/fewbit-3bit.v1.json")["solution"]
    assert [float(row["from"]) for row in table] == [-10.0, *found["borders"]]
    assert [float(row["to"]) for row in table] == [*found["borders"], 10.0]
    assert [int(row["code"]) for row in table] == found["codes"]
    assert [float(row["level"]) for row in table] == [found["levels"][code] for code in found["codes"]]


def test_latex(fewbit: Command) -> None:
    lines = fewbit("--fn", "tanh", "--bits", "1", "--domain", "-1e-6", "1e15", "--format", "latex")[1].splitlines()
    assert lines[0] == "% tanh': 1 bit, 2 levels on 2 intervals; weight uniform, domain [-1e-06, 1e+15]"
    assert lines[1:5] == [r"\begin{tabular}{rrrr}", r"  \hline", r"  from & to & level & code \\", r"  \hline"]
    assert lines[-2:] == [r"  \hline", r"\end{tabular}"]
    number = r"\$-?\d[\d.]*( \\times 10\^\{-?[1-9]\d*\})?\$"
    for line in lines[5:-2]:
        assert re.fullmatch(rf"  {number} & {number} & {number} & \d \\\\", line)
    assert lines[5].startswith(r"  $-1 \times 10^{-6}$ & ")
    assert r" & $1 \times 10^{15}$ & " in lines[6]


def test_json_is_the_file(fewbit: Command) -> None:
    words = ("--fn", "elu", "--bits", "2")
    out = fewbit(*words, "--format", "json")[1]
    path = Path("actfit/coefficients/elu/fewbit-2bit.v1.json")
    assert out == path.read_text("ascii")
    before = files()
    assert fewbit(*words, "--out", "-") == (0, out, "")
    assert fewbit(*words, "--out", "-", "--quiet", "--format", "json") == (0, out, "")
    assert files() == before
    assert fewbit(*words, "--out", "x.json", "--format", "json") == (0, out, "")
    assert Path("x.json").read_text("ascii") == out


def test_json_is_the_file_of_whatever_version(fewbit: Command) -> None:
    fewbit("--expr", "x**2", "--bits", "1")
    out = fewbit("--expr", "x**3", "--bits", "1", "--format", "json")[1]
    assert out == Path("actfit/coefficients/custom/fewbit-1bit.v2.json").read_text("ascii")
    assert json.loads(out)["version"] == 2


def test_quiet(fewbit: Command) -> None:
    assert fewbit("--fn", "relu", "--bits", "1", "--quiet") == (0, "", "")
    assert fewbit("--fn", "relu", "--bits", "2", "--quiet", "--format", "csv", "--out", "r.json") == (0, "", "")
    assert files() == ["actfit/coefficients/relu/fewbit-1bit.v1.json", "r.json"]


def test_help_is_short_lines(fewbit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = fewbit("--help")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert set(re.findall(r"--[a-z][a-z-]*", out)) == {
        *("--help", "--version", "--root", "--fn", "--expr", "--name", "--param", "--all", "--bits", "--max-error"),
        *("--levels", "--weight", "--domain", "--budget", "--out", "--format", "--plot", "--quiet", "--jobs"),
        "--scheduler",
    }
    assert all(name in out for name in names())


# what is fitted


@pytest.mark.parametrize(
    ("error", "bits"), [("0.22", 1), ("0.05", 2), ("0.0475", 3), ("0.0123", 3), ("0.012", 4), ("1e9", 1)]
)
def test_max_error_takes_the_fewest_bits(error: str, bits: int, fewbit: Command) -> None:
    found = json.loads(fewbit("--fn", "silu", "--max-error", error, "--out", "-")[1])
    assert found["options"]["bits"] == bits
    assert found["error"]["l2_squared"] <= float(error)


def test_max_error_0_is_for_step_functions(fewbit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(fewbit("--fn", "hardshrink", "--max-error", "0", "--out", "-")[1])
    assert (found["options"]["bits"], found["error"]["l2_squared"]) == (1, 0)
    three = "Piecewise((-x, x < -1), (0, x < 1), (x, True))"
    assert json.loads(fewbit("--expr", three, "--max-error", "0", "--out", "-")[1])["options"]["bits"] == 2
    monkeypatch.setattr(sys.modules["fitting.fewbit.solve"], "MAX_BITS", 2)
    status, out, err = fewbit("--expr", "x**2", "--domain", "0", "1", "--max-error", "0")
    assert (status, out) == (2, "")
    least = re.fullmatch(r"fewbit: max-error must be at least (\S+), what 2 bits reach, got 0\n", err)
    assert least is not None
    # f' = 2x by 4 equal steps, rounded up to three digits of what the first grid gives: at most 0.5 % and 0.5 %.
    assert 1 <= float(least[1]) / (4 * 2**2 * (1 / 4) ** 3 / 12) <= 1.01
    assert fewbit("--expr", "x**2", "--domain", "0", "1", "--max-error", least[1])[0] == 0  # the advice is true


def test_what_is_out_of_reach_is_refused_before_anything_is_fitted(
    fewbit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a lower bound on coarse cells, for each number of bits: it took 20 seconds, of eight whole fits."""

    def too_much(*_: object) -> None:
        raise AssertionError("a bound on coarse cells is enough")

    monkeypatch.setattr(sys.modules["fitting.fewbit.solve"], "polish", too_much)
    monkeypatch.setattr(sys.modules["fitting.fewbit.solve"], "_judged", too_much)
    status, out, err = fewbit("--fn", "gelu", "--max-error", "1e-9")
    assert (status, out) == (2, "")
    least = re.fullmatch(r"fewbit: max-error must be at least (\S+), what 8 bits reach, got 1e-09\n", err)
    assert least is not None
    monkeypatch.undo()
    shipped = coefficients.load("gelu", "fewbit-8bit")["error"]["l2_squared"]
    assert shipped <= float(least[1]) <= 1.01 * shipped


# what takes long

LONG = ("--expr", "x*sin(3*x)", "--bits", "6")


def test_a_budget_cuts_the_search_short_and_says_so(fewbit: Command) -> None:
    status, out, err = fewbit(*LONG, "--budget", "1e-9")
    unwritten = "not written: time cut it short; --out PATH writes it"
    assert (status, err, files()) == (0, f"fewbit: {unwritten}\n", [])
    lines = out.splitlines()
    assert lines[-2] == "budget  the search was cut short after 1e-09 s; given more, it can prove or find better"
    assert lines[-1] == f"file    {unwritten}"
    assert fewbit(*LONG, "--budget", "1e-9", "--quiet") == (0, "", err)
    for name in ("json", "csv", "latex"):
        assert fewbit(*LONG, "--budget", "1e-9", "--format", name)[2] == err
    assert fewbit(*LONG, "--budget", "1e-9", "--out", "x.json", "--quiet") == (0, "", "")
    found = stored("x.json")
    assert found["provenance"]["command"].endswith("--bits 6 --budget 1e-09")
    assert json.loads(fewbit(*LONG, "--budget", "1e-9", "--format", "json")[1])["error"] == found["error"]
    assert found["error"]["gap"] > 1e-3  # what one round proves, and no more is claimed
    assert 0 <= found["error"]["lower_bound"] <= found["error"]["l2_squared"]
    whole = json.loads(fewbit(*LONG, "--out", "-")[1])["error"]
    assert found["error"]["lower_bound"] <= whole["l2_squared"] <= found["error"]["l2_squared"] * (1 + 1e-9)
    assert run_coefficients(["check", "x.json"]) == 0


def test_a_budget_that_is_not_used_up_changes_nothing(fewbit: Command) -> None:
    words = ("--fn", "gelu", "--bits", "2", "--out", "-")
    assert fewbit(*words, "--budget", "1e6") == fewbit(*words)


def test_the_whole_catalogue_on_a_budget(fewbit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "names", lambda: ("relu", "gelu"))
    status, out, err = fewbit("--all", "--bits", "6", "--budget", "1e-9")
    lines = out.splitlines()
    path = "actfit/coefficients/relu/fewbit-6bit.v1.json"
    assert (status, err) == (0, "")
    assert lines[0].endswith(f"  {Path(path).resolve()}")
    assert lines[1].endswith("  not written: time cut it short")
    assert lines[2].startswith("2 tables: 1 written, 0 unchanged, 1 cut short and not written; largest gap")
    assert files() == [path]
    quiet = fewbit("--all", "--bits", "6", "--budget", "1e-9", "--quiet")
    assert quiet == (0, "", "fewbit: 1 of 2 tables not written: time cut it short\n")


def test_a_terminal_is_told_what_takes_long(
    fewbit: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = sys.modules["fitting.progress"]
    monkeypatch.setattr(progress, "PATIENCE", 1e-3)
    monkeypatch.setattr(progress, "PERIOD", 1e-3)
    assert fewbit(*LONG, "--out", "x.json")[2] == ""  # stderr is no terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    err = fewbit(*LONG, "--out", "x.json")[2]
    assert re.search(r"\r6 bits: round \d+ on \d+ cells, gap [\d.]+ % \(\d+ s\) *\r", err)
    assert err.endswith(" \r")  # nothing is left of it
    assert fewbit(*LONG, "--out", "x.json", "--quiet")[2] == ""


def test_levels(fewbit: Command) -> None:
    found = {
        kind: json.loads(fewbit("--fn", "tanh", "--bits", "2", "--levels", kind, "--out", "-")[1])
        for kind in ("best", "shared", "contiguous", "even")
    }
    assert [each["options"]["levels"] for each in found.values()] == list(found)
    errors = {kind: each["error"]["l2_squared"] for kind, each in found.items()}
    assert errors["best"] == errors["shared"] <= errors["even"] < errors["contiguous"]
    assert f"{errors['even']:.4f}" == "0.0319"
    assert len(found["contiguous"]["solution"]["codes"]) == 4
    borders = found["even"]["solution"]["borders"]
    assert [-border for border in reversed(borders)] == borders


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".txt"])
def test_samples(suffix: str, fewbit: Command) -> None:
    samples = np.random.default_rng(3).normal(size=200)
    path = f"pre activations{suffix}"
    if suffix == ".npy":
        np.save(path, samples.reshape(2, 100).astype(np.float32))
    elif suffix == ".npz":
        np.savez(path, samples=samples.astype(np.float32))
    else:
        np.savetxt(path, samples.astype(np.float32))
    status, out, _ = fewbit("--fn", "gelu", "--bits", "2", "--weight", path)
    assert status == 0
    (written,) = (name for name in files() if name.endswith(".json"))
    found = stored(written)
    assert re.fullmatch(r"samples:[0-9a-f]{16}", found["options"]["weight"])
    # The same numbers have the same label, whatever the file that holds them.
    assert found["options"]["weight"] == from_samples(samples.astype(np.float32)).label
    assert found["options"]["domain"] == [samples.astype(np.float32).min(), samples.astype(np.float32).max()]
    assert found["provenance"]["command"] == f"python -m fitting.fewbit --fn gelu --bits 2 --weight '{path}'"
    assert found["options"]["weight"] in out.splitlines()[0]


def test_own_function_with_name_and_parameters(fewbit: Command) -> None:
    words = ["--expr", " -x*2 + a*x**2 ", "--name", "square_2", "--param", "a=-1e-1", "--bits", "2"]
    assert fewbit(*words)[0] == 0
    assert files() == ["actfit/coefficients/square_2/fewbit-2bit-a=-0.1.v1.json"]
    found = stored(files()[0])["function"]
    assert found == {"name": "square_2", "expr": "-x*2 + a*x**2", "params": {"a": -0.1}}


def test_an_alias_is_its_function(fewbit: Command) -> None:
    assert fewbit("--fn", "swish", "--bits", "1", "--quiet") == (0, "", "")
    assert files() == ["actfit/coefficients/silu/fewbit-1bit.v1.json"]


# what is refused

REFUSED: list[tuple[str, str]] = [
    ("--bits 3", "say what to fit by one of --fn, --expr and --all, got none"),
    ("--fn gelu --expr x --bits 3", "say what to fit by one of --fn, --expr and --all, got --fn and --expr"),
    ("--fn gelu --all", "say what to fit by one of --fn, --expr and --all, got --fn and --all"),
    ("--fn '' --bits 3", "unknown function ''"),
    ("--fn gleu --bits 3", "unknown function 'gleu'; did you mean gelu or"),
    ("--fn GELU --bits 3", "unknown function 'GELU'; did you mean gelu or"),
    ("--fn gelu", "one of --bits (1 to 8) and --max-error must say how fine, got neither"),
    ("--fn gelu --bits 3 --max-error 1", "one of --bits (1 to 8) and --max-error must say how fine, got both"),
    *(
        (f"--fn gelu --bits '{bits}'", f"bits must be a whole number from 1 to 8, got {shown}")
        for bits, shown in [
            *(("0", "0"), ("9", "9"), ("-1", "-1"), ("2.5", "'2.5'"), ("nan", "'nan'")),
            *(("", "''"), ("1e3", "'1e3'")),
        ]
    ),
    *(
        (f"--fn gelu --max-error {error}", f"max-error must be finite and at least 0, got {error}")
        for error in ("nan", "inf", "-1.0")
    ),
    ("--fn gelu --max-error ''", "max-error must be a number, got ''"),
    *(
        (f"--fn gelu {words}", f"got '{words.split()[-1]}'; write it in the digits 0 to 9")
        for words in ("--bits \uff13", "--bits 0_3", "--max-error \u0663", "--max-error 1_0", "--bits 1 --domain 0 1_0")
    ),
    ("--fn gelu --bits " + 5000 * "3", f"bits must be a whole number from 1 to 8, got '{60 * '3'}'..."),
    *(
        (f"--fn gelu --bits 1 --domain {ends}", f"domain must be two finite numbers, the lower first, got {ends}")
        for ends in ("1 -1", "1 1", "nan 1", "0 nan", "-inf inf", "0 inf")
    ),
    ("--fn gelu --bits 1 --domain 0 ''", "domain must be a number, got ''"),
    ("--fn gelu --bits 1 --domain a 1", "domain must be a number, got 'a'"),
    ("--fn gelu --bits 1 --domain 1", "argument --domain: expected 2 arguments; see --help"),
    ("--fn gelu --bits 1 --domain '-1e3 5'", "argument --domain: expected 2 arguments; see --help"),
    ("--fn gelu --bits 1 --levels many", "levels must be one of best, shared, contiguous, even, got 'many'"),
    ("--fn gelu --bits 1 --levels even", "levels even needs an even f', and that of gelu is not"),
    ("--fn tanh --bits 1 --levels even --domain -1 2", "levels even needs a domain symmetric about 0, got -1 2"),
    ("--fn gelu --bits 1 --weight nrom", "unknown weight 'nrom': uniform, a distribution or a file; did you mean"),
    ("--fn gelu --bits 1 --weight ''", "weight must be uniform, a distribution like norm(0,2) or a file, got ''"),
    ("--fn gelu --bits 1 --weight -1", "weight must be uniform, a distribution like norm(0,2) or a file, got '-1'"),
    ("--fn gelu --bits 1 --weight 'poisson(3)'", "poisson is discrete: only continuous distributions, or a file of"),
    ("--fn gelu --bits 1 --weight 'norm(0,-1)'", "weight norm(0,-1)"),
    ("--fn gelu --bits 1 --weight norm --domain 100 200", "weight norm must not be zero on all of [100, 200]"),
    ("--fn gelu --bits 1 --weight missing.npy", "sample file must exist, got 'missing.npy'"),
    ("--fn gelu --bits 1 --weight ./", "sample file must exist"),
    ("--fn gelu --bits 1 --param alpha=1", "unknown parameter 'alpha'; gelu has none"),
    ("--fn elu --bits 1 --param alhpa=1", "unknown parameter 'alhpa'; elu has alpha"),
    ("--fn elu --bits 1 --param alpha", "param must be NAME=VALUE, each name once, got 'alpha'"),
    ("--fn elu --bits 1 --param alpha=1 --param 'alpha =2'", "param must be NAME=VALUE, each name once, got"),
    ("--fn elu --bits 1 --param alpha=", "param alpha must be a number, got ''"),
    ("--fn elu --bits 1 --param alpha=nan", "parameter alpha must be finite, got nan"),
    ("--fn elu --bits 1 --param name=1", "unknown parameter 'name'; elu has alpha"),
    ("--fn celu --bits 1 --param alpha=-1", "alpha must be positive, got alpha=-1"),
    ("--expr '' --bits 1", "expression"),
    ("--expr 3 --bits 1", "expression must be a function of x, got '3'"),
    ("--expr x-x --bits 1", "expression must be a function of x, got 'x-x'"),
    ("--expr 'x+' --bits 1", "expression is malformed at position"),
    ("--expr 'x*y' --bits 1", "unknown name 'y'"),
    ("--expr '__import__(1)' --bits 1", "expression: unknown function '__import__'"),
    ("--expr '1/x' --bits 1", "at x = 0 a divisor of f is 0: leave it out by --domain"),
    ("--expr 'sqrt(abs(x))' --bits 1", "near x = 0; try --domain"),
    ("--expr 'log(x)' --bits 1", "try --domain"),
    ("--fn gelu --name mine --bits 1", "--name goes with --expr"),
    *((f"--expr x**3 --bits 1 --name '{name}'", f"got '{name}'") for name in ("../evil", "a/b", "", "é", "1a")),
    ("--expr x**3 --bits 1 --name _a", "name must begin with a letter, got '_a'"),
    *((f"--expr x**3 --bits 1 --name {name}", "name must not be one of the cat") for name in ("gelu", "swish")),
    ("--fn gelu --bits 1 --format xml", "format must be one of table, json, csv, latex, got 'xml'"),
    ("--fn gelu --bits 1 --format ''", "format must be one of table, json, csv, latex, got ''"),
    ("--fn gelu --bits 1 --out - --format csv", "--out - prints the JSON file; leave it out to print csv"),
    ("--fn gelu --bits 1 --out ''", "out must be a file, got ''"),
    ("--fn gelu --bits 1 --out no/such/x.json", "out must be in a folder that exists, got 'no/such/x.json'"),
    ("--fn gelu --bits 1 --out .", "out must be a file, got the folder '.'"),
    ("--fn gelu --bits 1 --plot ''", "plot must be a file, got ''"),
    ("--fn gelu --bits 1 --plot no/such.png", "plot must be in a folder that exists, got 'no/such.png'"),
    ("--fn gelu --bits 1 --plot x.gif", "plot must end in one of .png, .svg, .pdf, got 'x.gif'"),
    ("--fn gelu --bits 1 --plot x", "plot must end in one of .png, .svg, .pdf, got 'x'"),
    ("--fn gelu --bits 1 --jobs 1", "--jobs and --scheduler go with --all"),
    ("--fn gelu --bits 1 --scheduler ''", "--jobs and --scheduler go with --all"),
    *(
        (f"--all --{option} {value}", f"--{option} goes with one function, not with --all")
        for option, value in [
            *(("out", "x"), ("out", "''"), ("plot", "x.png"), ("plot", "''"), ("format", "csv")),
            *(("max-error", "0"), ("param", "a=1"), ("levels even", "")),
        ]
    ),
    ("--fn gelu --max-error 1 --budget 1", "--budget goes with --bits: a search cut short does not know the fewest"),
    *(
        (f"--fn gelu --bits 1 --budget {budget}", f"budget must be a positive number of seconds, got {budget}")
        for budget in ("0", "-1", "nan", "inf")
    ),
    ("--fn gelu --bits 1 --budget soon", "budget must be a number, got 'soon'"),
    ("--all --name mine", "--name goes with --expr"),
    *((f"--all --jobs {jobs}", f"jobs must be at least 1, or -1 for one a core, got {jobs}") for jobs in (0, -2)),
    ("--all --jobs 1.5", "jobs must be a whole number, got '1.5'"),
    ("--all --jobs 1 --scheduler tcp://x:1", "say who does the work by one of --jobs and --scheduler"),
    ("--all --bits 9", "bits must be a whole number from 1 to 8, got 9"),
    ("--all --bits ''", "bits must be a whole number from 1 to 8, got ''"),
    ("--all --levels many", "levels must be one of best, shared, contiguous, even, got 'many'"),
    ("--all --domain 1 0", "domain must be two finite numbers, the lower first, got 1 0"),
    ("--all --weight nrom", "unknown weight 'nrom'"),
    ("--frobnicate", "unrecognized arguments: --frobnicate; see --help"),
    ("-x", "unrecognized arguments: -x; see --help"),
    ("--fn gelu --bits 3 more", "unrecognized arguments: more; see --help"),
    ("--fn", "argument --fn: expected one argument; see --help"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED, ids=[line for line, _ in REFUSED])
def test_bad_input_is_one_line(line: str, message: str, fewbit: Command) -> None:
    status, out, err = fewbit(*shlex.split(line))
    assert (status, out) == (2, "")
    assert err.startswith("fewbit: ")
    assert message in err
    assert err.count("\n") == 1
    assert files() == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", np.array([]), "samples must hold at least one number, got none"),
        ("a.npy", np.array([1, np.nan]), "samples must be finite, got 1 NaN or infinite"),
        ("a.npy", np.array(["x"]), "samples must be real numbers"),
        ("a.npy", np.array([1j]), "samples must be real numbers"),
        ("a.npy", np.array([{}], dtype=object), "sample file a.npy cannot be read: "),
        ("a.npy", b"hello", "sample file a.npy cannot be read: "),
        ("a.npy", b"", "sample file a.npy cannot be read: "),
        ("a.npz", {"a": np.ones(2), "b": np.ones(2)}, "sample file a.npz must hold one array, got 2"),
        ("a.npz", {}, "sample file a.npz must hold one array, got 0"),
        ("a.npz", b"hello", "sample file a.npz cannot be read: "),
        ("a.txt", b"", "samples must hold at least one number, got none"),
        ("a.txt", b"1 2 three", "sample file a.txt cannot be read: could not convert string to float: 'three'"),
        ("a.txt", b"1 inf", "samples must be finite, got 1 NaN or infinite"),
        ("a.txt", b"\xff\xfe", "sample file a.txt cannot be read: "),
    ],
)
def test_bad_samples(name: str, content: Any, message: str, fewbit: Command) -> None:
    if isinstance(content, bytes):
        Path(name).write_bytes(content)
    elif isinstance(content, dict):
        np.savez(name, **content)
    else:
        np.save(name, content, allow_pickle=True)
    status, out, err = fewbit("--fn", "gelu", "--bits", "1", "--weight", name)
    assert (status, out) == (2, "")
    assert err.startswith(f"fewbit: {message}")
    assert err.count("\n") == 1
    assert files() == [name]


def test_samples_outside_the_domain(fewbit: Command) -> None:
    Path("a.txt").write_text("1 2 3")
    status, _, err = fewbit("--fn", "gelu", "--bits", "1", "--weight", "a.txt", "--domain", "4", "5")
    assert status == 2
    assert err.startswith("fewbit: samples must lie in the domain, got none in [4, 5]")


def test_a_bad_file_in_the_place_of_the_new_one(fewbit: Command) -> None:
    path = Path("actfit/coefficients/relu/fewbit-1bit.v1.json")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    status, out, err = fewbit("--fn", "relu", "--bits", "1")
    assert (status, out) == (2, "")
    assert err.startswith(f"fewbit: {path.resolve()}: must be JSON")
    assert err.count("\n") == 1


# where it is written


@posix
def test_out_through_a_link_and_into_a_pipe(fewbit: Command) -> None:
    words = ("--fn", "relu", "--bits", "1", "--quiet", "--out")
    Path("real.json").touch()
    Path("link.json").symlink_to("real.json")
    assert fewbit(*words, "link.json") == (0, "", "")
    assert Path("link.json").is_symlink()
    text = fewbit("--fn", "relu", "--bits", "1", "--out", "-")[1]
    assert Path("real.json").read_text() == text
    reading, writing = os.pipe()
    # By a link of our own: if that were replaced, the machine's devices would be none the worse.
    Path("pipe").symlink_to(f"/dev/fd/{writing}")
    assert fewbit(*words, "pipe") == (0, "", "")
    os.close(writing)
    with open(reading, encoding="ascii") as pipe:
        assert pipe.read() == text


@posix
def test_folders_that_one_may_not_write_to(fewbit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # for root, too
    for option in ("--out=x.json", "--plot=x.png"):
        status, out, err = fewbit("--fn", "relu", "--bits", "1", option)
        assert (status, out) == (2, "")
        name, path = option[2:].split("=")
        assert err == f"fewbit: {name} must be where you may write, got '{path}'\n"
    assert files() == []


def test_a_plot_that_fails_leaves_no_table(fewbit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    def full(self: Figure, path: Path, **_: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    status, out, err = fewbit("--fn", "relu", "--bits", "1", "--plot", "x.png")
    assert (status, out, err) == (2, "", "fewbit: cannot write x.png: No space left on device\n")
    assert files() == []


def test_a_full_disk_leaves_no_half_file(fewbit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    published = Path("actfit/coefficients/relu/fewbit-1bit.v1.json").resolve()
    for words, path in (((), published), (("--out", "x.json"), Path("x.json").resolve())):
        status, out, err = fewbit("--fn", "relu", "--bits", "1", *words)
        assert (status, out, err) == (2, "", f"fewbit: cannot write {path}: No space left on device\n")
        assert files() == []


def test_the_plot_is_told_of(fewbit: Command) -> None:
    lines = fewbit("--fn", "relu", "--bits", "1", "--plot", "./r.svg")[1].splitlines()
    assert lines[-1] == "plot    wrote ./r.svg"
    assert files() == ["actfit/coefficients/relu/fewbit-1bit.v1.json", "r.svg"]


# whole processes


@pytest.fixture(scope="module")
def imported() -> set[str]:
    """What a run imports that had better be imported by those who need it."""
    code = (
        "import sys\nfrom fitting.fewbit.__main__ import main\nmain(['--fn', 'gelu', '--bits', '1', '--out', '-'])\n"
        "print({'torch', 'triton', 'matplotlib', 'scipy.stats', 'dask', 'distributed', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    return set(re.findall(r"'([\w.]+)'", done.stdout.splitlines()[-1]))


def test_a_uniform_fit_imports_no_more_than_it_needs(imported: set[str]) -> None:
    assert imported == {"numpy"}


AGAIN = [
    ["--fn", "softplus", "--param", "beta=1.2345678901234567", "--max-error", "0.1"],
    ["--fn", "hardtanh", "--param", "min_val=-1e-7", "--bits", "1", "--domain", "-1e3", "0.1"],
    ["--fn", "gelu", "--bits", "1", "--weight", " norm( 0.1, scale=2 )", "--domain", "-3", "1e-3"],
    ["--fn", "tanh", "--bits", "2", "--levels", "even", "--weight", "my samples.npy"],
    ["--expr", "-x * where(x > 0, b, 2)", "--param", "b=-1e-7", "--bits", "1"],
    ["--expr=--x**2", "--name", "double_minus", "--bits", "1"],
]


@posix
@pytest.mark.parametrize("words", AGAIN, ids=" ".join)
def test_the_stored_command_makes_the_file_again(
    words: list[str], fewbit: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save("my samples.npy", np.random.default_rng(0).normal(size=50))
    assert fewbit(*words, "--out", "first.json")[0] == 0
    spelled = stored("first.json")["provenance"]["command"]
    again = folder / "again"
    again.mkdir()
    np.save(again / "my samples.npy", np.random.default_rng(0).normal(size=50))
    if words in AGAIN[3:5]:  # what is hardest to quote goes through a real shell
        line = spelled.replace("python", shlex.quote(sys.executable), 1)
        elsewhere = environment(XDG_DATA_HOME=str(again))
        subprocess.run(line, shell=True, cwd=again, env=elsewhere, check=True, stdout=subprocess.DEVNULL)
    else:
        monkeypatch.chdir(again)
        monkeypatch.setenv("XDG_DATA_HOME", str(again))
        assert shlex.split(spelled)[:3] == ["python", "-m", "fitting.fewbit"]
        assert fewbit(*shlex.split(spelled)[3:])[0] == 0
    (made,) = again.rglob("*.json")
    assert made.read_bytes() == (folder / "first.json").read_bytes()


def test_freshly_made_files_are_good(
    fewbit: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fewbit("--fn", "relu", "--bits", "1")
    fewbit("--fn", "silu", "--bits", "2", "--domain", "-3", "4.5")
    fewbit("--fn", "tanh", "--bits", "2", "--levels", "even")
    fewbit("--fn", "gelu", "--bits", "2", "--weight", "norm(0,2)")
    fewbit("--expr", "x**3/a", "--param", "a=0.3", "--name", "cube", "--bits", "1")
    monkeypatch.setattr("coefficients.store.DATA", Path("actfit/coefficients").resolve())
    assert run_coefficients(["check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "5 files, 0 bad"
    assert all(line.endswith(": ok") for line in lines[:-1])
    assert run_coefficients(["list"]) == 0
    rows = [line.split()[:5] for line in capsys.readouterr().out.splitlines()]
    assert rows[1:] == [
        ["cube", "fewbit-1bit-a=0.3", "1", "1", "2"],
        ["gelu", "fewbit-2bit-norm_0_2", "1", "2", "4"],
        ["relu", "fewbit-1bit", "1", "1", "2"],
        ["silu", "fewbit-2bit-domain=-3.0_4.5", "1", "2", "4"],
        ["tanh", "fewbit-2bit-even", "1", "2", "4"],
    ]
    # The judge looks at the numbers: a file that is whole and sealed, but wrong, is found out.
    path = Path("actfit/coefficients/silu/fewbit-2bit-domain=-3.0_4.5.v1.json")
    wrong = stored(path)
    wrong["solution"]["levels"][2] += 1e-9
    unsealed = {key: value for key, value in wrong.items() if key not in ("schema_version", "version", "sha256")}
    path.write_text(dumps(seal(unsealed, 1)), "ascii")
    assert documents.validate(stored(path))
    assert run_coefficients(["check"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "5 files, 1 bad"


@posix
def test_outputs_that_take_nothing(folder: Path) -> None:
    words = ("--fn", "relu", "--bits", "1")
    reading, writing = os.pipe()
    os.close(reading)
    done = process(*words, stdout=writing)
    assert (done.returncode, done.stderr) == (141, "")
    done = process("--help", stdout=writing)
    assert (done.returncode, done.stderr) == (141, "")
    os.close(writing)
    with open("/dev/full", "w") as full:
        done = process(*words, "--out", "-", stdout=full)
    assert (done.returncode, done.stderr) == (2, "fewbit: cannot write the output: No space left on device\n")
    for closed, status in ((">&-", 0), (">&- 2>&-", 0)):
        done = process(*words, "--out", "-", before=("sh", "-c", f'exec "$@" {closed}', "sh"))
        assert (done.returncode, done.stderr) == (status, "")
    done = process(*words, "--bits", "0", before=("sh", "-c", 'exec "$@" 2>&-', "sh"))
    assert (done.returncode, done.stdout) == (2, "")


def test_a_stdout_of_plain_ascii(folder: Path) -> None:
    done = process("--fn", "silu", "--bits", "1", "--plot", "é.png", env=environment(PYTHONIOENCODING="ascii"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nerror   integral of (f'-q)^2 w = 0.21" in done.stdout
    assert done.stdout.endswith("plot    wrote \\xe9.png\n")


@posix
@pytest.mark.parametrize(
    "words", [["--all", "--jobs", "2"], ["--fn", "gelu", "--max-error", "1e-9"]], ids=["sweep", "fit"]
)
@pytest.mark.parametrize("after", [0.2, 2.0])
def test_ctrl_c(words: list[str], after: float, folder: Path) -> None:
    """As a terminal sends it: to the command and all its children."""
    running = subprocess.Popen(
        [sys.executable, "-m", "fitting.fewbit", *words],
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
        assert not left_over(running.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
    assert running.returncode == 130
    assert err in ("interrupted\n", "fewbit: interrupted; files are whole or not there\n")
    made = files()
    assert not [name for name in made if not re.fullmatch(r"actfit/coefficients/\w+/fewbit-\dbit\.v1\.json", name)]
    assert all(documents.validate(stored(name)) for name in made)


def left_over(group: int) -> bool:
    """Whether processes of the group live on, after a moment to end."""
    for _ in range(50):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True
