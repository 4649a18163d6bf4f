"""actfit fewbit --joint: what it prints, writes and refuses, and how `coefficients` judges its files."""

import json
from pathlib import Path

import pytest

from actfit.coefficients import load
from actfit.coefficients.document import read_unsealed
from actfit.coefficients.naming import file_name
from actfit.coefficients.reference import check_numbers
from actfit.coefficients.schema import CoefficientError
from actfit.coefficients.store import publish
from actfit.fitting.activations import get
from actfit.fitting.joint.document import to_document
from actfit.fitting.joint.solve import fit_joint
from actfit.fitting.joint.verify import verify
from actfit.fitting.weights import from_samples
from tests.fitting.commands import Command, stored


def test_the_table(fewbit: Command) -> None:
    status, out, err = fewbit("--fn", "silu", "--bits", "2", "--joint", "--lambda", "2")
    assert (status, err) == (0, "")
    path = "actfit/coefficients/silu/joint-2bit-lambda_2.0.v1.json".replace("lambda_", "lambda=")
    document = stored(path)
    lines = out.splitlines()
    assert lines[0] == (
        "silu and its derivative: 2 bits, 4 intervals; lambda 2, weight norm, domain [-7.03448, 7.03448]"
    )
    assert lines[2].split() == ["from", "to", "f'", "f", "code"]
    levels = zip(document["solution"]["derivatives"], document["solution"]["outputs"], strict=True)
    assert [line.split()[2:] for line in lines[3:7]] == [
        [f"{derivative:.10g}", f"{output:.10g}", f"{code:02b}"] for code, (derivative, output) in enumerate(levels)
    ]
    error = document["error"]
    assert lines[8].startswith(f"error   of f' {error['derivative_share']:.4g}, of f {error['output_share']:.4g} ")
    assert lines[9].endswith(f" = {error['derivative']:.6g} + 2 * {error['output']:.6g} = {error['total']:.6g}")
    assert lines[10].startswith(f"proof   no code of 4 intervals has a sum below {error['lower_bound']:.6g}, ")
    assert lines[11:] == [f"file    wrote {Path(path).resolve()}"]
    assert document["provenance"]["command"] == "python -m fitting.fewbit --fn silu --bits 2 --joint --lambda 2.0"
    assert verify(document) == ([], [])


def test_a_packaged_code_is_what_is_found_again() -> None:
    table, again = load("gelu", "joint-4bit")["solution"], fit_joint(get("gelu"), 4).table
    for key in table:  # 12 digits are stored, of which processors' own exp may change the last
        assert table[key] == pytest.approx(vars(again)[key], abs=1e-10)


def test_json_and_a_plot(fewbit: Command, tmp_path: Path) -> None:
    picture = tmp_path / "joint.svg"
    status, out, _ = fewbit("--fn", "gelu", "--bits", "2", "--joint", "--out", "-", "--plot", str(picture))
    assert status == 0
    assert json.loads(out)["method"] == "joint"
    assert picture.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--bits 3 --lambda 2", "--lambda goes with --joint"),
        ("--bits 3 --joint --lambda 0", "lambda must be from 1e-12 to 1e+12, got 0; 1 counts both alike"),
        ("--bits 3 --joint --lambda x", "lambda must be a number, got 'x'"),
        ("--bits 3 --joint --levels shared", "--levels goes without --joint, whose codes are of successive intervals"),
        ("--max-error 1 --joint", "--max-error goes without --joint"),
        ("--bits 3 --joint --budget 1", "--budget goes without --joint"),
    ],
)
def test_refused(fewbit: Command, words: str, said: str) -> None:
    assert fewbit("--fn", "gelu", *words.split()) == (2, "", f"fewbit: {said}\n")


def test_all_of_one_width(fewbit: Command, tmp_path: Path) -> None:
    status, out, _ = fewbit("--all", "--joint", "--bits", "1", "--root", str(tmp_path))
    lines = out.splitlines()
    assert status == 0
    assert lines[-1].startswith(f"{len(lines) - 1} codes: {len(lines) - 1} written, 0 unchanged; largest gap ")
    assert all(verify(read_unsealed(path)) == ([], []) for path in sorted(tmp_path.rglob("gelu/*.json")))


def test_a_file_of_samples_is_verified_in_part(tmp_path: Path) -> None:
    weight = from_samples([-1.0, 0.0, 0.5, 2.0, 3.0])
    document = to_document(fit_joint(get("gelu"), 2, weight=weight))
    path = publish(document, file_name(document), tmp_path).path
    assert verify(read_unsealed(path)) == ([], ["errors, as the weight is not in the file (samples: --weight FILE)"])
    assert verify(read_unsealed(path), [weight]) == ([], [])


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("solution", "borders"), [0.5, 0.25, 1.0], r"solution.borders\[1\] must be greater than the border before"),
        (("solution", "outputs"), [0.0], r"solution.outputs must have len\(borders\) \+ 1 = 4 members, got 1"),
        (("error", "total"), 1.0, "error.total must be derivative [+] lambda output = "),
        (("error", "gap"), 0.5, r"error.gap must be \(total - lower_bound\) / total = "),
        (("options", "bits"), 1, "solution.borders must be fewer than 2[*][*]bits = 2, got 3"),
        (("options", "lambda"), 0.0, "options.lambda must be at least 1e-12, got 0.0"),
    ],
)
def test_spoilt_documents_are_refused(path: tuple[str, str], value: object, said: str, tmp_path: Path) -> None:
    document = to_document(fit_joint(get("silu"), 2))
    document[path[0]][path[1]] = value
    with pytest.raises(CoefficientError, match=said):
        publish(document, "mine", tmp_path)
    assert list(tmp_path.rglob("*.json")) == []


def test_wrong_numbers_are_found() -> None:
    document = to_document(fit_joint(get("silu"), 2))
    error = document["error"]
    worse = {**document, "error": {**error, "output": error["output"] * 1.001}}
    assert verify(worse)[0] != []
    absurd = to_document(fit_joint(get("silu"), 2))
    absurd["solution"]["outputs"][0] = 1e300
    assert verify(absurd)[0] != []
    other = fit_joint(get("silu"), 2, output_weight=9.0).error  # not the best for 1, so that a bound may be too high
    total = other.derivative + other.output
    assert total > 1.01 * error["total"]
    table = to_document(fit_joint(get("silu"), 2, output_weight=9.0))["solution"]
    bold = {**vars(other), "total": total, "lower_bound": 0.999 * total, "gap": (total - 0.999 * total) / total}
    problems, _ = verify({**document, "solution": table, "error": bold})
    assert problems
    assert all(problem.startswith("error.lower_bound must be at most ") for problem in problems)


def test_levels_must_be_values_of_the_derivative() -> None:
    document = to_document(fit_joint(get("silu"), 2))
    check_numbers(document)
    document["solution"]["derivatives"][0] = 9.0
    with pytest.raises(
        CoefficientError, match=r"solution.derivatives\[0\] must be a value that the derivative of silu"
    ):
        check_numbers(document)
