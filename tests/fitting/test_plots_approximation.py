"""Pictures of approximations against x and y, of many functions, and of memory."""

from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from actfit.fitting.activations import get
from actfit.fitting.approximation import Approximation, compare, few_bits, from_output
from actfit.fitting.invact.error_floor import information_floor
from actfit.fitting.invact.inputs import on_right
from actfit.fitting.plots import (
    bits_figure,
    error_figure,
    memory_figure,
    overview_figure,
)
from actfit.fitting.weights import parse_weight
from tests.fitting.drawings import drawn, legend


def test_errors_against_x_and_y() -> None:
    approximation = few_bits(get("gelu"), 3)
    floor = information_floor(get("gelu"), "bfloat16", parse_weight("uniform"))
    figure = error_figure(approximation, floor)
    curves, at_y, errors, errors_at_y = figure.axes
    x, q = (np.concatenate(parts) for parts in zip(*(sides(curves, "C0")), strict=True))
    assert np.array_equal(x, approximation.x)
    assert np.array_equal(q, approximation.q)
    y, same = (np.concatenate(parts) for parts in zip(*(sides(at_y, "C0")), strict=True))
    assert np.array_equal(y, get("gelu").f(x))
    assert np.array_equal(same, q)
    for axes in (errors, errors_at_y):
        drawn_errors = np.concatenate([part[1] for part in sides(axes, "C3")])
        assert np.array_equal(drawn_errors, get("gelu").df(x) - q)
    assert errors.get_yscale() == "linear"
    assert legend(errors_at_y) == ["error", "floor of y in bfloat16"]
    left, right = errors.get_xlim()
    assert -5 < left < -3
    assert 3 < right < 5


def sides(axes: Axes, color: str) -> list[tuple[Any, Any]]:
    return [(line.get_xdata(), line.get_ydata()) for line in axes.lines if line.get_color() == color]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", ["gelu", "tanh", "mish"])
def test_error_and_floor_are_those_of_all_x_that_share_a_stored_y(name: str, dtype: str) -> None:
    approximation = from_output(get(name), dtype)
    assert approximation.error_floor is not None
    right = on_right(approximation.error_floor.split, approximation.x)
    for axes in error_figure(approximation, log=True).axes[2:]:
        assert axes.get_yscale() == "log"
        ((_, floor),) = sides(axes, "0.35")
        error = np.empty_like(floor)
        error[~right], error[right] = (part[1] for part in sides(axes, "C3"))
        # At powers of two, tanh's 1, the analysis takes the wider spacing of the two on both sides.
        simple = np.abs(np.frexp(approximation.error_floor.format.round(get(name).f(approximation.x)))[0]) != 0.5
        known = np.flatnonzero(np.isfinite(floor) & (simple | (dtype == "bfloat16")))
        assert len(known) > 50
        for i in known[:: len(known) // 50]:
            derivatives = slopes_of_one_output(approximation, i)
            assert floor[i] == pytest.approx(np.ptp(derivatives) / 2, rel=1e-2, abs=1e-12)
            assert error[i] == pytest.approx(np.abs(derivatives - approximation.q[i]).max(), rel=1e-2, abs=1e-12)
            assert error[i] <= approximation.linf * (1 + 1e-3)  # which float32 has from other samples


def slopes_of_one_output(approximation: Approximation, i: int) -> Any:
    """f' of the x that are stored as the y of x[i]: all of a 16-bit format, a dense sample of those of float32."""
    floor, activation, at = approximation.error_floor, approximation.activation, approximation.x[i]
    assert floor is not None
    away = np.geomspace(1e-10, 40, 20_000)
    x = floor.format.numbers() if floor.format.precision <= 16 else np.concatenate([at - away, [at], at + away])
    same = on_right(floor.split, x) == on_right(floor.split, np.array([at]))
    same &= floor.format.round(activation.f(x)) == floor.format.round(activation.f(np.array([at])))
    return activation.df(x[same])


@pytest.mark.parametrize("domain", [(1.0, 4.0), (-4.0, -2.0)])
def test_a_domain_on_one_side(domain: tuple[float, float]) -> None:
    figure = error_figure(from_output(get("silu"), "float16", domain=domain))
    assert legend(figure.axes[3]) == ["error", "floor of y in float16"]
    figure.canvas.draw()


def test_no_floor_where_nothing_finite_is_stored() -> None:
    approximation = few_bits(get("relu2"), 3, domain=(-300.0, 300.0))  # 256² is beyond float16
    floor = information_floor(get("relu2"), "float16", parse_weight("uniform"))
    axes = error_figure(approximation, floor).axes[2]
    ends = np.concatenate([path.vertices[:, 0] for part in axes.collections for path in part.get_paths()])
    assert 255 < ends.max() < 256


def test_no_error_has_no_logarithm() -> None:
    figure = error_figure(few_bits(get("relu"), 1), log=True)
    assert [text.get_text() for axes in figure.axes[2:] for text in axes.texts] == ["no error above 1e-15"] * 2


def test_bits_against_error() -> None:
    comparison = compare(get("gelu"), range(1, 4), ["bfloat16", "float32"])
    (axes,) = bits_figure(comparison).axes
    errors: dict[int, float]
    for label, errors in (
        ("FewBit, contiguous", comparison.contiguous),
        ("FewBit, shared levels", comparison.shared),
        ("FewBit paper, Table 1", {1: 0.1410, 2: 0.0406, 3: 0.0119}),
    ):
        assert [part.tolist() for part in drawn(axes, label)] == [[1, 2, 3], list(errors.values())]
    assert [float(part[0]) for part in drawn(axes, "InvAct, y in float32")] == [1, comparison.outputs["float32"][1]]
    assert float(drawn(axes, "InvAct paper, y in float32")[1][0]) == comparison.paper["float32"][1]
    assert legend(axes)[3:] == [
        f"{who}, y in {d}" for who in ("InvAct", "InvAct paper") for d in ("bfloat16", "float32")
    ]


def test_many_functions_share_a_scale() -> None:
    names = ["sigmoid", "tanh", "softplus", "elu", "relu2"]
    figure = overview_figure([compare(get(name), [1, 2]) for name in names])
    assert [axes.get_title() for axes in figure.axes] == [*(f"{name}′" for name in names), "", "", ""]
    assert len({axes.get_ylim() for axes in figure.axes[:5]}) == 1
    assert [axes.axison for axes in figure.axes] == [True] * 5 + [False] * 3
    (labels,) = (figure_legend.get_texts() for figure_legend in figure.legends)
    assert len(labels) == 4  # each once


def test_memory_of_each_way() -> None:
    figure = memory_figure({"a": 16 * 2**20, "b": 4 * 2**20}, {"a": 2**20, "b": 2**19}, "a title")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
    assert axes.get_xlabel() == "MiB"
    widths = [[bar.get_width() for bar in bars] for bars in axes.containers]
    assert widths == [[16, 4], [1, 0.5]]
    assert figure.get_suptitle() == "a title"
