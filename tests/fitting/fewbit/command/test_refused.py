"""What actfit fewbit refuses, in one line; what both commands do is in tests/fitting/test_commands.py."""

import shlex
from pathlib import Path

import pytest

from tests.fitting.commands import Command, files

REFUSED: list[tuple[str, str]] = [
    ("--fn gelu", "one of --bits (1 to 8) and --max-error must say how fine, got neither"),
    ("--fn gelu --bits 3 --max-error 1", "one of --bits (1 to 8) and --max-error must say how fine, got both"),
    *(
        (f"{what} --bits '{bits}'", f"bits must be a whole number from 1 to 8, got {shown}")
        for what, bits, shown in [
            *(("--fn gelu", bits, bits) for bits in ("0", "9")),
            *(("--fn gelu", bits, f"'{bits}'") for bits in ("2.5", "")),
            *(("--fn gelu", 5000 * "3", f"'{60 * '3'}'..."), ("--all", "9", "9"), ("--all", "", "''")),
        ]
    ),
    *(
        (f"--fn gelu --bits '{bits}' {words}", message)
        for bits, words, message in [
            ("1-9", "", "bits must be a whole number from 1 to 8, got 9"),
            ("3-", "", "bits must be a whole number from 1 to 8, or two as 1-8, got ''"),
            ("4-4", "", "bits must be two numbers, the smaller first, as 1-8, got '4-4'"),
            ("1-8", "--out x.json", "--out goes with one number of bits, got 1-8"),
            ("1-8", "--joint", "--joint goes with one number of bits, got 1-8"),
            ("1-8", "--format csv", "--format goes with one number of bits, got 1-8"),
        ]
    ),
    *(
        (f"--fn gelu --max-error {error}", f"max-error must be finite and at least 0, got {error}")
        for error in ("nan", "-1.0")
    ),
    *(
        (f"--fn gelu {words}", f"got '{words.split()[-1]}'; write it in the digits 0 to 9")
        for words in ("--bits \uff13", "--max-error \u0663", "--bits 1 --domain 0 1_0")
    ),
    *(
        (f"{what} --domain {ends}", f"domain must be two finite numbers, the lower first, got {ends}")
        for what, ends in (*(("--fn gelu --bits 1", ends) for ends in ("1 1", "0 nan", "-inf inf")), ("--all", "1 0"))
    ),
    *(
        (
            f"--fn gelu --bits 1 --out x --record '{name}'",
            f"record must be module:function that gives model and inputs, got '{name}'",
        )
        for name in ("models", ":build")
    ),
    ("--fn gelu --bits 1 --record models:build", "--record needs a folder for its tables, as --out tables, got None"),
    *(
        (f"--record models:build --out x {words}", f"--{words.split()[0][2:]} goes without --record")
        for words in (
            "--expr x --bits 1",
            "--all",
            "--weight norm --fn gelu --bits 1",
            "--plot x.svg --fn gelu --bits 1",
            "--max-error 1 --fn gelu",
            "--format csv --fn gelu --bits 1",
        )
    ),
    ("--fn gelu --bits 1 --domain a 1", "domain must be a number, got 'a'"),
    ("--fn gelu --bits 1 --domain 1", "argument --domain: expected 2 arguments; see --help"),
    *(
        (f"{what} --levels many", "levels must be one of best, shared, contiguous, even, got 'many'")
        for what in ("--fn gelu --bits 1", "--all")
    ),
    ("--fn gelu --bits 1 --levels even", "levels even needs an even f', and that of gelu is not"),
    ("--fn tanh --bits 1 --levels even --domain -1 2", "levels even needs a domain symmetric about 0, got -1 2"),
    ("--fn gelu --bits 1 --weight norm --domain 100 200", "weight norm must not be zero on all of [100, 200]"),
    ("--expr '1/x' --bits 1", "at x = 0 a divisor of f is 0: leave it out by --domain"),
    ("--expr 'sin(1e8*x)' --bits 1", "f' must turn at most 1000 times on the domain, got at least"),
    ("--expr 'sqrt(abs(x))' --bits 1", "near x = 0; try --domain"),
    ("--all --max-error 0", "--max-error goes with one function, not with --all"),
    ("--all --levels even", "--levels even goes with one function, not with --all"),
    ("--fn gelu --max-error 1 --budget 1", "--budget goes with --bits: a search cut short does not know the fewest"),
    *(
        (f"--fn gelu --bits 1 --budget {budget}", f"budget must be a positive number of seconds, got {budget}")
        for budget in ("0", "nan")
    ),
    ("--fn gelu --bits 1 --budget soon", "budget must be a number, got 'soon'"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED, ids=[line for line, _ in REFUSED])
def test_bad_input_is_one_line(line: str, message: str, fewbit: Command) -> None:
    status, out, err = fewbit(*shlex.split(line))
    assert (status, out) == (2, "")
    assert err.startswith("fewbit: ")
    assert message in err
    assert err.count("\n") == 1
    assert files() == []


def test_a_bad_file_in_the_place_of_the_new_one(fewbit: Command) -> None:
    path = Path("actfit/coefficients/relu/fewbit-1bit.v1.json")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    status, out, err = fewbit("--fn", "relu", "--bits", "1")
    assert (status, out) == (2, "")
    assert err.startswith(f"fewbit: {path.resolve()}: must be JSON")
    assert err.count("\n") == 1
