"""What python -m fitting.fewbit refuses, in one line."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fitting.fewbit.command.running import Command, files

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
