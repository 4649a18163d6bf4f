"""Pictures of formulas of the output: their error, the floor, the front."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from actfit.fitting.activations import get
from actfit.fitting.errors import InputError
from actfit.fitting.invact import solve as invact
from actfit.fitting.invact.error_floor import information_floor
from actfit.fitting.plots import (
    floor_figure,
    fronts_figure,
    invact_figure,
    root_figure,
    save,
)
from actfit.fitting.weights import parse_weight
from tests.fitting.drawings import drawn, legend


@pytest.fixture(scope="module")
def mish() -> invact.Fit:
    return invact.fit(get("mish"), "bfloat16")


@pytest.mark.slow
def test_formulas_their_error_and_the_front(mish: invact.Fit) -> None:
    figure = invact_figure(mish)
    above, front, below = (figure.axes[i] for i in (0, 1, 2))
    count = mish.best.price.total
    assert figure.get_suptitle() == f"mish′ from y in bfloat16: {count} instructions, RMS error {mish.best.rms:.4g}"
    assert legend(above) == ["g", "q left", "q right"]
    assert legend(below) == ["bound left", "bound right"]
    assert legend(front) == ["front", "chosen", "floor"]
    for i, (formula, bound) in enumerate(zip(mish.best.candidates, mish.bounds, strict=True)):
        y, q = drawn(above, ("q left", "q right")[i])
        assert np.array_equal(q, formula(y))
        (at, error), (ends, level) = (np.asarray(line.get_xydata()).T for line in below.lines[2 * i : 2 * i + 2])
        assert np.array_equal(level, [bound.upper] * 2)
        assert np.array_equal(ends, at[[0, -1]])
        assert np.array_equal(mish.activation.f(at), y)
        assert 0.5 * bound.sampled < np.nanmax(error) <= bound.upper
        assert error == pytest.approx(np.abs(q - mish.activation.df(at)), abs=1e-7)
    assert drawn(front, "front")[0].tolist() == [row.price.total for row in mish.front]
    assert drawn(front, "front")[1].tolist() == [row.rms for row in mish.front]
    assert [float(part[0]) for part in drawn(front, "chosen")] == [count, mish.best.rms]
    assert below.get_yscale() == front.get_yscale() == "log"


@pytest.mark.slow
def test_the_paper_is_marked() -> None:
    silu = invact.fit(get("silu"), "bfloat16", max_error=0.2)
    front = invact_figure(silu).axes[1]
    assert silu.paper is not None
    assert legend(front) == ["front", "chosen", "paper"]
    assert [float(part[0]) for part in drawn(front, "paper")] == [silu.paper.price.total, silu.paper.pointwise]
    assert front.get_ylabel() == "largest |q − g| in float32"


@pytest.mark.parametrize(("name", "labels"), [("tanh", ["g", "q"]), ("hardswish", ["g", "q left", "q right"])])
def test_a_closed_form_shows_no_error(name: str, labels: list[str]) -> None:
    above, _, below = invact_figure(invact.fit(get(name), "float32")).axes
    assert legend(above) == labels
    assert [text.get_text() for text in below.texts] == ["no error above 1e-15"]
    assert below.get_yscale() == "linear"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_floor(dtype: str) -> None:
    floor = information_floor(get("silu"), dtype, parse_weight("norm"))
    figure = floor_figure(floor)
    (axes,) = figure.axes
    assert figure.get_suptitle() == f"silu′ from y in {dtype}: the information floor"
    assert legend(axes) == ["left", "right", f"largest {floor.linf:.4g}", f"RMS {floor.rms:.4g}"]
    assert axes.get_yscale() == "log"
    for name, cells in zip(("left", "right"), floor.cells, strict=True):
        y, half = drawn(axes, name)
        assert set(y) <= set(cells.y)
        assert np.nanmax(half) <= floor.linf
    assert max(np.nanmax(drawn(axes, name)[1]) for name in ("left", "right")) == floor.linf


def test_a_floor_of_nothing() -> None:
    (axes,) = floor_figure(information_floor(get("relu"), "float16", parse_weight("norm"))).axes
    assert [text.get_text() for text in axes.texts] == ["0: every stored y tells f′"]


@pytest.mark.slow
def test_pictures_of_formulas_are_the_same_on_every_run(mish: invact.Fit, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save(invact_figure(mish), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_root_makes_it_smooth() -> None:
    against_y, against_s, errors = root_figure(get("silu")).axes
    for name in ("left", "right"):
        y, g = drawn(against_y, name)
        s, same = drawn(against_s, name)
        assert np.array_equal(g, same)
        assert y == pytest.approx(get("silu").minimum.value + s**2)
        in_y, in_s = (drawn(errors, f"{name}, in {variable}")[1] for variable in "ys")
        assert in_s[-1] < in_y[-1] / 10
    # Through the minimum g is one curve in s: its slope is the same on both sides.
    rise = [np.diff(drawn(against_s, name)[1])[0] / np.diff(drawn(against_s, name)[0])[0] for name in ("left", "right")]
    assert rise[0] == pytest.approx(rise[1], rel=1e-2)


@pytest.mark.parametrize("name", ["relu", "tanh", "hardswish"])
def test_no_smooth_minimum_no_root(name: str) -> None:
    if name == "hardswish":  # a parabola around its minimum, whose kinks are elsewhere
        assert len(root_figure(get(name)).axes) == 3
    else:
        with pytest.raises(InputError, match=f"^{name} has no smooth minimum, and so no root; try gelu, silu or mish$"):
            root_figure(get(name))


@pytest.mark.slow
def test_fronts_and_what_is_chosen_of_them(mish: invact.Fit) -> None:
    (axes,) = fronts_figure({"minimax and template": mish}).axes
    assert legend(axes) == ["minimax and template", "chosen", "floor"]
    assert drawn(axes, "minimax and template")[0].tolist() == [row.price.total for row in mish.front]
    assert [float(part[0]) for part in drawn(axes, "chosen")] == [mish.best.price.total, mish.best.rms]
    easier = replace(mish, rule=replace(mish.rule, text="easier"))
    assert legend(fronts_figure({"easier": easier}).axes[0]) == ["easier", "floor"]
