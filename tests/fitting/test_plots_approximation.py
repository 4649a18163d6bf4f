"""Pictures of approximations against x and y, of many functions, and of memory."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from actfit.fitting.activations import get
from actfit.fitting.approximation import compare, few_bits
from actfit.fitting.invact.error_floor import information_floor
from actfit.fitting.plots import bits_figure, error_figure, overview_figure
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
