"""Pictures of few-bit tables: their content, and that files are reproducible and complete."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from actfit.fitting.activations import get
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.solve import Fit, fit
from actfit.fitting.plots import check_path, fewbit_figure, save, widths_figure
from tests.fitting.drawings import drawn

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.fixture(scope="module")
def gelu() -> Fit:
    return fit(get("gelu"), 3)


def test_curve_steps_and_error(gelu: Fit) -> None:
    above, below = fewbit_figure(gelu).axes
    x, derivative = drawn(above, "gelu′")
    _, steps = drawn(above, "3 bits")
    at, error = drawn(below)
    assert np.array_equal(derivative, gelu.activation.df(x))
    assert set(steps) == set(gelu.steps.levels)
    assert np.array_equal(at, x)
    assert np.array_equal(error, derivative - steps)
    assert np.abs(error).max() == pytest.approx(gelu.error.linf, rel=1e-12)
    # Steps are upright: neighbours with different levels lie within two floats of a border.
    rise = np.flatnonzero(np.diff(steps))
    assert len(rise) == len(gelu.steps.borders)
    assert (x[rise] < gelu.steps.borders).all()
    assert (gelu.steps.borders < x[rise + 1]).all()
    assert (x[rise + 1] - x[rise] < 1e-14).all()


@pytest.mark.parametrize("suffix", [*MAGIC, ".PNG"])
def test_files_are_the_same_on_every_run(suffix: str, gelu: Fit, tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        check_path(path)
        save(fewbit_figure(gelu), path)
    first, second = (path.read_bytes() for path in paths)
    assert first.startswith(MAGIC[suffix.lower()])
    assert first == second
    assert b"/CreationDate" not in first  # the date is to the second, and both files may be of the same second
    assert sorted(tmp_path.iterdir()) == paths  # and nothing else


@pytest.mark.parametrize("name", ["a.gif", "a", ".png"])
def test_other_formats_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"^plot must end in one of \.png, \.svg, \.pdf, got "):
        check_path(Path(name))


def test_a_picture_is_whole_or_not_there(gelu: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: Figure, path: Path, **_: Any) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    path = tmp_path / "a.png"
    path.write_bytes(b"the one before")
    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(KeyboardInterrupt):
        save(fewbit_figure(gelu), path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"the one before"]


def test_error_against_bits() -> None:
    """relu2 has a kink and a slope; threshold's derivative has two values, which every table has."""
    fits = [fit(get("relu2"), bits) for bits in (1, 2, 3)]
    [axes] = widths_figure(fits).axes
    bits, errors = drawn(axes)
    assert bits.tolist() == [1, 2, 3]
    assert errors.tolist() == [one.error.l2_squared for one in fits]
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "∫(f′−q)²w on [-10, 10]")
    [without] = widths_figure([fit(get("threshold"), bits) for bits in (1, 2)]).axes
    assert without.texts[0].get_text() == "no error"
