"""What actfit invact prints."""

import csv
import io
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from actfit.coefficients.__main__ import run as run_coefficients
from actfit.fitting.activations import get
from actfit.fitting.invact import report
from actfit.fitting.invact.proof import Bound
from actfit.fitting.invact.solve import fit
from tests.fitting.commands import Command, files, stored
from tests.fitting.invact.command.words import MISH, TANH


def section(out: str, first: str) -> list[str]:
    """The lines of the paragraph that begins with a line in which `first` is."""
    parts = [part.splitlines() for part in out.split("\n\n")]
    (paragraph,) = [part for part in parts if part[0].lstrip().startswith(first)]
    return paragraph


def test_the_table(invact: Command) -> None:
    status, out, err = invact(*MISH)
    assert (status, err) == (0, "")
    path = "actfit/coefficients/mish/invact-bfloat16.v1.json"
    document = stored(path)
    solution, error = document["solution"], document["error"]
    assert out.isascii()
    table, _ = out.rstrip().rsplit("\n", 1)  # the last line is as long as the folder's name
    assert max(map(len, table.splitlines())) < 110
    assert out.startswith("mish: q(y) for f'(x) from y = f(x) in bfloat16, 1 bit; weight norm\n\n")
    branches = [line.split() for line in section(out, "branch")]
    assert branches[1] == ["left", "0", "-inf", "-1.192431215", "falling", "-0.308843413", "0"]
    assert branches[2] == ["right", "1", "-1.192431215", "inf", "rising", "-0.308843413", "inf"]
    assert f"\nbit     x >= T = {solution['border']!r}, f(T) = -0.308843413017250" in out
    lines = section(out, "price")
    assert lines[0].startswith(f"price   {solution['price']['instructions']} (")
    assert lines[1] == f"rule    {solution['rule']}"
    share = float(f"{100 * (error['rms'] / error['floor_rms'] - 1):.2g}")
    assert lines[2].startswith(f"rms     {error['rms']:.6g}, {share:g} % above the floor")
    assert lines[3].startswith(f"largest {error['linf']:.6g} at y = {error['linf_at']:.6g}, ")
    assert lines[3].endswith(" % above the floor")
    floor = section(out, "instructions")[-2].split()
    assert floor[:3] == ["floor", f"{error['floor_rms']:.4g}", f"{error['floor_linf']:.4g}"]
    for line, name, bound, sample in zip(lines[4:6], ("left", "right"), error["bound"], error["sampled"], strict=True):
        printed = re.search(rf"\|q - g\| <= (\S+) on the {name}, ", line)
        assert printed is not None
        assert bound <= float(printed[1]) <= bound * (1 + 1e-5)  # six digits, and it still holds
        assert f" % above {sample:.6g} at x = " in line
    assert lines[6:] == [f"file    wrote {Path(path).resolve()}"]
    assert invact(*MISH)[1].splitlines()[-1] == f"file    found the same in {Path(path).resolve()}"


@pytest.mark.slow
def test_one_branch_needs_no_bit_and_closed_forms_are_exact(invact: Command) -> None:
    status, out, err = invact(*TANH)
    assert (status, err) == (0, "")
    assert out.startswith("tanh: q(y) for f'(x) from y = f(x) in float16, no bit needed; weight norm\n")
    assert "\nbit " not in out
    assert "\nall     q = (1 - y)*(y + 1)\n" in out
    assert "\nexact   closed form; in float32 |q - g| <= 6e-08 at stored outputs\n" in out
    assert re.search(r"\nproof   \|q - g\| <= \S+e-16, no error to be resolved\n", out)
    out = invact("--fn", "hardswish", "--dtype", "float32")[1]
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


def test_csv_is_the_front_with_every_digit(invact: Command) -> None:
    table = list(csv.DictReader(io.StringIO(invact(*MISH, "--format", "csv")[1])))
    document = stored("actfit/coefficients/mish/invact-bfloat16.v1.json")
    front = document["solution"]["front"]
    for row, stored_row in zip(table, front, strict=True):
        assert int(row["instructions"]) == stored_row["instructions"]
        for key in ("rms", "linf", "pointwise"):
            assert float(row[key]) == pytest.approx(stored_row[key], rel=1e-11)  # files have 12 digits
        assert row["engine"] == stored_row["engine"]
    (best,) = [row for row in table if row["mark"]]
    price = document["solution"]["price"]
    assert {key: int(best[key]) for key in price} == price
    assert float(best["linf_at"]) == document["error"]["linf_at"]


def test_the_list(invact: Command, capsys: pytest.CaptureFixture[str]) -> None:
    invact(*MISH)
    assert run_coefficients(["list", "--root", "actfit/coefficients"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    row = dict(zip(header.split(), line.split(), strict=True))
    assert (row["function"], row["name"], row["bits"]) == ("mish", "invact-bfloat16", "1")
    error = stored("actfit/coefficients/mish/invact-bfloat16.v1.json")["error"]
    for key in ("rms", "floor_rms", "linf", "floor_linf"):
        assert row[key] == f"{error[key]:.4g}"
    assert row["bound"] == f"{max(error['bound']):.4g}"


@pytest.mark.parametrize(
    ("sampled", "at", "said"),
    [(0.0, math.nan, "no error at the x that were tried"), (0.25, -3.0, "0.25 at x = -3")],
)
def test_where_no_bound_was_found(sampled: float, at: float, said: str) -> None:
    """exp(x) = y has no bound far out, and no error: there is no x of the largest."""
    fitted = fit(get("tanh"), "bfloat16")
    proof = report.as_table(replace(fitted, bounds=(Bound(math.inf, sampled, at),))).splitlines()[-1]
    assert proof == f"proof   |q - g| <= inf, no bound was found; {said}"
