"""What actfit fewbit fits: levels, samples, a user's own function, budgets and bounds of the error."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from actfit.coefficients.__main__ import run as run_coefficients
from actfit.fitting.fewbit import __main__ as command
from actfit.fitting.weights import from_samples
from tests.fitting.commands import Command, files, stored


@pytest.mark.parametrize(("error", "bits"), [("0.05", 2), ("0.0475", 3), ("1e9", 1)])
def test_max_error_takes_the_fewest_bits(error: str, bits: int, fewbit: Command) -> None:
    document = json.loads(fewbit("--fn", "silu", "--max-error", error, "--out", "-")[1])
    assert document["options"]["bits"] == bits
    assert document["error"]["l2_squared"] <= float(error)


def test_max_error_0_is_for_step_functions(fewbit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(fewbit("--fn", "hardshrink", "--max-error", "0", "--out", "-")[1])
    assert (document["options"]["bits"], document["error"]["l2_squared"]) == (1, 0)
    three = "Piecewise((-x, x < -1), (0, x < 1), (x, True))"
    assert json.loads(fewbit("--expr", three, "--max-error", "0", "--out", "-")[1])["options"]["bits"] == 2
    monkeypatch.setattr(sys.modules["actfit.fitting.fewbit.solve"], "MAX_BITS", 2)
    status, out, err = fewbit("--expr", "x**2", "--domain", "0", "1", "--max-error", "0")
    assert (status, out) == (2, "")
    least = re.fullmatch(r"fewbit: max-error must be at least (\S+), what 2 bits reach, got 0\n", err)
    assert least is not None
    # f' = 2x by 4 equal steps, rounded up to three digits of what the first grid gives: at most 0.5 % and 0.5 %.
    assert 1 <= float(least[1]) / (4 * 2**2 * (1 / 4) ** 3 / 12) <= 1.01
    assert fewbit("--expr", "x**2", "--domain", "0", "1", "--max-error", least[1])[0] == 0  # the advice is true


# what takes long

LONG = ("--expr", "x*sin(3*x)", "--domain", "-3", "3", "--bits", "5")


@pytest.mark.slow
def test_a_budget_cuts_the_search_short_and_says_so(fewbit: Command) -> None:
    status, out, err = fewbit(*LONG, "--budget", "1e-9")
    unwritten = "not written: time cut it short; --out PATH writes it"
    assert (status, err, files()) == (0, f"fewbit: {unwritten}\n", [])
    lines = out.splitlines()
    assert lines[-2] == "budget  the search was cut short after 1e-09 s; given more, it can prove or find better"
    assert lines[-1] == f"file    {unwritten}"
    assert fewbit(*LONG, "--budget", "1e-9", "--quiet") == (0, "", err)
    assert fewbit(*LONG, "--budget", "1e-9", "--out", "x.json", "--quiet") == (0, "", "")
    document = stored("x.json")
    assert document["provenance"]["command"].endswith("--bits 5 --domain -3.0 3.0 --budget 1e-09")
    assert document["error"]["gap"] > 1e-3  # claims no more than what the round proved
    assert 0 <= document["error"]["lower_bound"] <= document["error"]["l2_squared"]
    whole = json.loads(fewbit(*LONG, "--out", "-")[1])["error"]
    assert document["error"]["lower_bound"] <= whole["l2_squared"] <= document["error"]["l2_squared"] * (1 + 1e-9)
    assert run_coefficients(["check", "x.json"]) == 0


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


def test_levels(fewbit: Command) -> None:
    documents = {
        kind: json.loads(fewbit("--fn", "tanh", "--bits", "2", "--levels", kind, "--out", "-")[1])
        for kind in ("best", "shared", "contiguous", "even")
    }
    assert [each["options"]["levels"] for each in documents.values()] == list(documents)
    errors = {kind: each["error"]["l2_squared"] for kind, each in documents.items()}
    assert errors["best"] == errors["shared"] <= errors["even"] < errors["contiguous"]
    assert f"{errors['even']:.4f}" == "0.0319"
    assert len(documents["contiguous"]["solution"]["codes"]) == 4
    borders = documents["even"]["solution"]["borders"]
    assert [-border for border in reversed(borders)] == borders


def test_samples(fewbit: Command) -> None:
    """Other kinds of files, without the command, are in tests/fitting/fewbit/test_weights.py."""
    samples = np.random.default_rng(3).normal(size=200)
    path = "pre activations.npy"
    np.save(path, samples.reshape(2, 100).astype(np.float32))
    status, out, _ = fewbit("--fn", "gelu", "--bits", "2", "--weight", path)
    assert status == 0
    (written,) = (name for name in files() if name.endswith(".json"))
    document = stored(written)
    assert re.fullmatch(r"samples:[0-9a-f]{16}", document["options"]["weight"])
    # The same numbers have the same label, whatever the file that holds them.
    assert document["options"]["weight"] == from_samples(samples.astype(np.float32)).label
    assert document["options"]["domain"] == [samples.astype(np.float32).min(), samples.astype(np.float32).max()]
    assert document["provenance"]["command"] == f"python -m fitting.fewbit --fn gelu --bits 2 --weight '{path}'"
    assert document["options"]["weight"] in out.splitlines()[0]


def test_own_function_with_name_and_parameters(fewbit: Command) -> None:
    words = ["--expr", " -x*2 + a*x**2 ", "--name", "square_2", "--param", "a=-1e-1", "--bits", "2"]
    assert fewbit(*words)[0] == 0
    assert files() == ["actfit/coefficients/square_2/fewbit-2bit-a=-0.1.v1.json"]
    function = stored(files()[0])["function"]
    assert function == {"name": "square_2", "expr": "-x*2 + a*x**2", "params": {"a": -0.1}}


def test_an_alias_is_its_function(fewbit: Command) -> None:
    assert fewbit("--fn", "swish", "--bits", "1", "--quiet") == (0, "", "")
    assert files() == ["actfit/coefficients/silu/fewbit-1bit.v1.json"]
