"""Pictures of formulas of the output: their error, the floor, the front."""

import numpy as np
import pytest

from actfit.fitting.activations import get
from actfit.fitting.errors import InputError
from actfit.fitting.invact import solve as invact
from actfit.fitting.invact.error_floor import information_floor
from actfit.fitting.plots import floor_figure, invact_figure, root_figure
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
