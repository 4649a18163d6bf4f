"""`check --prove` of joint codes: moments in balls, bounds proven from the file alone, and bounds refused."""

import copy
import math
import re
from pathlib import Path
from typing import Any

import flint
import numpy as np
import pytest

from actfit.coefficients import load
from actfit.coefficients.__main__ import run
from actfit.coefficients.document import dumps, seal
from actfit.coefficients.store import DATA
from actfit.fitting.activations import from_expression, get
from actfit.fitting.fewbit.curve import Curve
from actfit.fitting.joint import document
from actfit.fitting.joint.exact import ExactPlane
from actfit.fitting.joint.plane import Plane
from actfit.fitting.joint.prove import _bound, prove
from actfit.fitting.joint.solve import fit_joint
from actfit.fitting.weights import from_samples, named
from tests.coefficients.documents import changed
from tests.tiers import in_ci

FILES = sorted(path.relative_to(DATA).as_posix() for path in DATA.glob("*/joint-*.json"))
NAMES = ["gelu", "selu", "hardswish", "threshold"]
WEIGHTS = ["norm", "norm(0.5,2)", "norm(loc=-1,scale=0.25)", "uniform"]
PRECISION = 200  # bits of the balls that are compared with
BOUND = ("error", "lower_bound")  # where a document has it


def silent(_: str) -> None:
    pass


def exact_plane(name: str, weight: str = "norm", output_weight: float = 2.0) -> ExactPlane:
    parsed = named(weight)
    return ExactPlane(Plane(get(name), output_weight, parsed, parsed.domain), output_weight)


def density(weight: str, x: Any) -> Any:
    """w written out again, as balls."""
    if weight == "uniform":
        return flint.acb(1)
    mean, deviation = {"norm": (0, 1), "norm(0.5,2)": (0.5, 2), "norm(loc=-1,scale=0.25)": (-1, 0.25)}[weight]
    return (-((x - mean) ** 2) / (2 * deviation**2)).exp() / (2 * flint.arb.pi() * deviation**2).sqrt()


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("name", NAMES)
def test_moments_are_within_their_bounds(name: str, weight: str) -> None:
    """Against integrals of more bits, on a few cells of each run: μ, m, the mass W h and the spread W L² h³ / 12."""
    exact = exact_plane(name, weight)
    cells = exact.cells(1e-3 * exact.size)
    rng = np.random.default_rng(1)
    for index, part in enumerate(exact.curve.runs):
        mass, radius, first, error = exact._on_run(index, cells)
        inside = np.flatnonzero((part.lo <= cells.lo) & (cells.hi <= part.hi))
        for place in rng.choice(inside.size, min(6, inside.size), replace=False).tolist():
            cell = inside[place]
            lo, hi = cells.lo[cell], cells.hi[cell]
            with flint.ctx.workprec(PRECISION):
                parts = (part.piece.d1.acb, lambda z, part=part: flint.arb(2).sqrt() * part.piece.f.acb(z))

                def integral(of: Any, lo: float = lo, hi: float = hi) -> Any:
                    return flint.acb.integral(lambda z, _: of(z) * density(weight, z), lo, hi).real

                whole = integral(lambda z: flint.acb(1))
                off = [integral(lambda z, g=g, c=c: g(z) - c) for g, c in zip(parts, exact.centre, strict=True)]
                means = [integral(g) / whole for g in parts]
                spread = sum(
                    integral(lambda z, g=g, mean=mean: (g(z) - mean) ** 2) for g, mean in zip(parts, means, strict=True)
                )
                assert abs(whole - mass[place]) <= radius[place]
                assert sum(abs(ball - m) for ball, m in zip(off, first[place], strict=True)) <= error[place]
                # Not above, as balls: where f' and f are constant the spread is 0, to 1e-100.
                assert not spread > cells.spread[cell]
                assert not abs(whole * spread) > cells.spare[cell] ** 2


@pytest.mark.parametrize("name", NAMES)
def test_length_and_box_hold_the_curve(name: str) -> None:
    exact = exact_plane(name)
    proven = exact.of(exact.cells(1e-3 * exact.size))
    x = np.linspace(*named("norm").domain, 100_001)
    runs = Curve(get(name), *named("norm").domain).run_at(x)
    points = np.stack([exact.curve.derivatives(x, runs), math.sqrt(2) * exact.curve.values(x, runs)], axis=-1)
    chords = np.hypot(*np.diff(points, axis=0).T).sum()
    assert chords <= proven.length <= 1.3 * chords  # cells are coarse
    assert np.hypot(*np.ptp(points, axis=0)) <= proven.diameter * (1 + 1e-12)  # a float64's rounding of both


@pytest.mark.parametrize("bits", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_the_bound_holds_on_cells_of_all_sizes_and_comes_near(name: str, bits: int) -> None:
    reached = fit_joint(get(name), bits, output_weight=2.0).error.total
    exact = exact_plane(name)
    bounds = []
    for spare in (1e-2, 1e-4, 1e-6):
        proven = exact.of(exact.cells(spare * exact.size))
        bound, gain = _bound(proven, 2**bits)
        assert bound <= reached
        assert bound >= reached * (1 - 1e-3) - gain  # the fit's own gap is below 1e-3
        bounds.append(bound)
    assert bounds == sorted(bounds)
    assert gain < 0.1 * reached


# The time grows with the number of levels, to a minute for 8 bits. GELU shows them up to 5, the others the fewest.
@pytest.mark.slow
@pytest.mark.parametrize("name", in_ci(FILES, re.compile(r"gelu/joint-[2-5]|\w+/joint-[23]").match))
def test_every_shipped_bound_is_proven(name: str) -> None:
    assert prove(load(DATA / name), silent) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gelu/joint-2bit.v1.json", "mish/joint-3bit.v1.json"])
def test_no_bound_above_the_best_error_is_proven(name: str) -> None:
    """Not the error itself; the bound that is proven instead, as for any larger one, is below it, and near."""
    good = load(DATA / name)
    assert prove(good, silent) == ([], [])
    error = good["error"]["total"]
    assert prove(changed(good, BOUND, error * (1 - 1e-9)), silent) == (
        [],
        ["error.lower_bound in ball arithmetic, as proofs go no further than a gap of 1e-05"],
    )
    [problem], unproven = prove(changed(good, BOUND, error), silent)
    assert unproven == []
    assert problem.startswith("error.lower_bound must be at most 0.0")
    assert problem.endswith(f"which is proven in ball arithmetic, got {error!r}")
    assert error * (1 - 1e-4) < float(problem.split()[5].rstrip(",")) < error


@pytest.mark.parametrize(
    ("name", "weight", "output_weight"),
    [("selu", "norm(0.5,2)", 1.0), ("hardswish", "uniform", 0.25), ("threshold", "norm", 4.0)],
)
def test_other_weights_and_functions(name: str, weight: str, output_weight: float) -> None:
    made = document.to_document(fit_joint(get(name), 2, output_weight=output_weight, weight=named(weight)))
    assert prove(made, silent) == ([], [])


def test_any_code_may_have_the_bound() -> None:
    """The bound depends on the function, not on the code: it is proven even if the stored code is not the best."""
    bad = copy.deepcopy(load("gelu", "joint-2bit"))
    bad["solution"].update(borders=[-1.0, 0.0, 3.0], derivatives=[0.0, 0.1, 0.2, 0.3], outputs=[0.0, 1.0, 2.0, 3.0])
    assert prove(bad, silent) == ([], [])


def test_what_cannot_be_proven_is_said() -> None:
    laplace = fit_joint(get("gelu"), 1, weight=named("laplace"))
    samples = fit_joint(get("gelu"), 1, weight=from_samples(np.linspace(-2, 3, 50)))
    root = fit_joint(from_expression("x**2.5", "root"), 1, weight=named("uniform"), domain=(0.0, 5.0))
    for fit, why in (
        (laplace, "as the weight is neither uniform nor normal"),
        (samples, "as the weight is not in the file"),
        (root, "as f or f' has none at some points of the domain"),
    ):
        assert prove(document.to_document(fit), silent) == ([], [f"error.lower_bound in ball arithmetic, {why}"])


def test_a_bound_of_zero_needs_no_proof() -> None:
    assert prove(changed(load("gelu", "joint-8bit"), BOUND, 0.0), silent) == ([], [])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A good file, and the same with the error for its bound."""
    good = document.to_document(fit_joint(get("mish"), 2))
    path = tmp_path / "mine.json"
    path.write_text(dumps(seal(good, 1)))
    assert run(["check", "--prove", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{path}: ok", "1 file, 0 bad, 1 bound proven"]
    error = good["error"]["total"]
    tampered = changed(good, BOUND, error)
    tampered["error"]["gap"] = 0.0
    path.write_text(dumps(seal(tampered, 1)))
    assert run(["check", "--prove", str(path)]) == 1
    assert f"{path}: error.lower_bound must be at most 0.0" in capsys.readouterr().out
