"""A fit as a document: its file's name, the command that makes it again, and what makes a new version."""

import shlex
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actfit.coefficients import load
from actfit.coefficients.document import seal
from actfit.fitting import provenance
from actfit.fitting.activations import from_expression, get
from actfit.fitting.fewbit import document
from actfit.fitting.fewbit.solve import Fit, fit
from actfit.fitting.weights import from_callable, from_samples, parse_weight

ROOT = Path(__file__).parents[3]


def relu(weight: str = "uniform", **options: Any) -> Fit:
    return fit(get("relu"), options.pop("bits", 1), weight=parse_weight(weight), **options)


CASES = {
    "plain": (lambda: relu(bits=2), "fewbit-2bit", "--fn relu --bits 2"),
    "levels": (lambda: relu(levels="contiguous"), "fewbit-1bit-contiguous", "--fn relu --bits 1 --levels contiguous"),
    "domain": (
        lambda: relu(domain=(-1e-5, 1000)),
        "fewbit-1bit-domain=-1e-05_1000.0",
        "--fn relu --bits 1 --domain -1e-05 1000.0",
    ),
    "default domain": (lambda: relu(domain=(-10, 10)), "fewbit-1bit", "--fn relu --bits 1"),
    "distribution": (
        lambda: relu("norm(0.5, scale=2)"),
        "fewbit-1bit-norm_0.5_scale=2",
        "--fn relu --bits 1 --weight 'norm(0.5,scale=2)'",
    ),
    "parameters": (
        lambda: fit(get("hardtanh", min_val=-2, max_val=1), 1),
        "fewbit-1bit-min_val=-2.0",
        "--fn hardtanh --param min_val=-2.0 --bits 1",
    ),
    "expression": (
        lambda: fit(from_expression("where(x < 0, a*x, b*x)", "knee", {"b": 2, "a": 1e-9}), 1),
        "fewbit-1bit-a=1e-09-b=2.0",
        "--expr 'where(x < 0, a*x, b*x)' --name knee --param b=2.0 --param a=1e-09 --bits 1",
    ),
    "two minuses": (lambda: fit(from_expression("--x", "same"), 1), "fewbit-1bit", "--expr=--x --name same --bits 1"),
}


@pytest.mark.parametrize("case", CASES)
def test_name_and_command(case: str) -> None:
    make, name, options = CASES[case]
    made = make()
    assert document.file_name(made) == name
    assert document.command(made) == f"python -m fitting.fewbit {options}"
    assert shlex.join(shlex.split(options)) == options


def test_what_no_command_line_names() -> None:
    """Samples of no file, a file whose name is no text, and a Python function."""
    samples = from_samples(np.array([-1.0, 0.5, 2.0]))
    made = fit(get("relu"), 1, weight=samples)
    assert document.file_name(made) == f"fewbit-1bit-{samples.label.replace(':', '_')}"
    for weight in (samples, replace(samples, spelling="\udcff.npy"), from_callable(lambda x: np.exp(-x * x))):
        made = fit(get("relu"), 1, weight=weight)
        assert document.command(made) is None
        assert seal(document.to_document(made), 1)["provenance"]["command"] is None


def test_a_new_version_only_for_new_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = document.store(relu(), tmp_path)
    assert (first.path, first.written) == (tmp_path / "relu" / "fewbit-1bit.v1.json", True)
    text = first.path.read_bytes()
    monkeypatch.setattr(provenance, "versions", lambda libraries: {"actfit": "9.9.9"})
    again = document.store(relu(), tmp_path)
    assert (again.path, again.written) == (first.path, False)
    monkeypatch.setattr(document, "command", lambda fit: "another")
    second = document.store(relu(), tmp_path)
    assert (second.path.name, second.written) == ("fewbit-1bit.v2.json", True)
    assert load(second.path)["provenance"]["versions"] == {"actfit": "9.9.9"}
    assert first.path.read_bytes() == text


def test_versions_are_the_packages_own() -> None:
    versions = provenance.versions(document.LIBRARIES)
    assert versions["actfit"] == tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert versions["numpy"] == np.__version__
