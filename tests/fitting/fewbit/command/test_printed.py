"""What actfit fewbit prints."""

import csv
import io
import re
from pathlib import Path

import pytest

from tests.fitting.commands import Command, files, stored


def test_the_table(fewbit: Command) -> None:
    status, out, err = fewbit("--fn", "gelu", "--bits", "2")
    assert (status, err) == (0, "")
    path = "actfit/coefficients/gelu/fewbit-2bit.v1.json"
    document = stored(path)
    borders = [f"{border:.10g}" for border in document["solution"]["borders"]]
    levels = [f"{level:.10g}" for level in document["solution"]["levels"]]
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
    error, bound, gap = (document["error"][key] for key in ("l2_squared", "lower_bound", "gap"))
    assert lines[8].startswith(f"error   ∫(f'-q)²w = {error:.6g}, max |f'-q| = {document['error']['linf']:.4g} at x = ")
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


@pytest.mark.parametrize(
    ("words", "paper"),
    [
        (["--fn", "tanh"], "0.0319 on |x|"),
        (["--fn", "tanh", "--weight", "norm", "--domain", "-10", "10"], None),
        (["--fn", "softplus"], "0.0541 in contiguous intervals"),
        (["--fn", "softplus", "--param", "beta=2"], None),
    ],
)
def test_the_paper_is_quoted_for_its_own_setting_only(words: list[str], paper: str | None, fewbit: Command) -> None:
    lines = [line for line in fewbit(*words, "--bits", "2")[1].splitlines() if line.startswith("paper")]
    assert lines == ([f"paper   {paper} (FewBit, Table 1)"] if paper else [])


def test_csv_holds_every_digit(fewbit: Command) -> None:
    out = fewbit("--fn", "silu", "--bits", "3", "--format", "csv")[1]
    table = list(csv.DictReader(io.StringIO(out)))
    solution = stored("actfit/coefficients/silu/fewbit-3bit.v1.json")["solution"]
    assert [float(row["from"]) for row in table] == [-10.0, *solution["borders"]]
    assert [float(row["to"]) for row in table] == [*solution["borders"], 10.0]
    assert [int(row["code"]) for row in table] == solution["codes"]
    assert [float(row["level"]) for row in table] == [solution["levels"][code] for code in solution["codes"]]


def test_several_bits_are_compared_and_none_is_stored(fewbit: Command) -> None:
    status, out, err = fewbit("--expr", "x*sigmoid(3*x)", "--bits", "1-3", "--plot", "bits.svg", "--name", "sharp")
    assert (status, err) == (0, "")
    *lines, plot = out.splitlines()
    assert [line.split()[:2] for line in lines] == [["sharp", "1"], ["sharp", "2"], ["sharp", "3"]]
    errors = [float(line.split()[3]) for line in lines]
    assert errors == sorted(errors, reverse=True)
    assert plot == "plot    wrote bits.svg"
    assert files() == ["bits.svg"]
