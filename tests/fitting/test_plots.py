"""Pictures of fits: what they show, and that they are the same on every run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coefficients import load
from fitting.activations import from_expression, get
from fitting.approximation import Approximation, compare, few_bits, from_output
from fitting.errors import InputError
from fitting.fewbit.solve import Fit, fit
from fitting.invact import solve as invact
from fitting.invact.floor import information_floor, on_right
from fitting.plots import (
    bits_figure,
    check_path,
    error_figure,
    fewbit_figure,
    floor_figure,
    fronts_figure,
    invact_figure,
    memory_figure,
    overview_figure,
    root_figure,
    save,
)
from fitting.weights import from_samples, parse_weight

LOG = from_expression("log(x)")
MANY_AND_ONE = np.append(np.linspace(-1, 1, 999), 50)
MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def drawn(axes: Axes, label: str | None = None) -> tuple[Any, Any]:
    """The line of that label, or the longest one."""
    lines = [line for line in axes.lines if label in (None, line.get_label())]
    line = max(lines, key=lambda line: len(line.get_xdata()))
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def texts(figure: Figure) -> list[str]:
    above, below = figure.axes
    legend = above.get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    return [figure.get_suptitle(), *labels, below.get_xlabel(), below.get_ylabel()]


@pytest.fixture(scope="module")
def gelu() -> Fit:
    return fit(get("gelu"), 3)


def test_texts(gelu: Fit) -> None:
    assert texts(fewbit_figure(gelu)) == ["gelu′: 8 levels, ∫(f′−q)²w = 0.008094", "gelu′", "3 bits", "x", "f′ − q"]
    one = fit(from_expression("2*x", "a_name_of_more_than_thirty_letters"), 1, weight=parse_weight("norm(0,2)"))
    title, *labels = texts(fewbit_figure(one))
    assert title == "a_name_of_more_than_thirty_letters′: 1 level, ∫(f′−q)²w = 0, w = norm(0,2)"
    assert labels[:2] == ["f′", "1 bit"]


def test_curve_steps_and_error(gelu: Fit) -> None:
    above, below = fewbit_figure(gelu).axes
    x, slope = drawn(above, "gelu′")
    _, steps = drawn(above, "3 bits")
    at, error = drawn(below)
    assert np.array_equal(slope, gelu.activation.df(x))
    assert set(steps) == set(gelu.steps.levels)
    assert np.array_equal(at, x)
    assert np.array_equal(error, slope - steps)
    assert np.abs(error).max() == pytest.approx(gelu.error.linf, rel=1e-12)
    # Steps are upright: nowhere do two neighbours differ in level that are not within two floats of a border.
    rise = np.flatnonzero(np.diff(steps))
    assert len(rise) == len(gelu.steps.borders)
    assert (x[rise] < gelu.steps.borders).all()
    assert (gelu.steps.borders < x[rise + 1]).all()
    assert (x[rise + 1] - x[rise] < 1e-14).all()


@pytest.mark.parametrize("name", ["relu", "hardtanh", "relu6", "hardshrink", "threshold", "hardsigmoid"])
def test_a_step_function_shows_no_error(name: str) -> None:
    _, below = fewbit_figure(fit(get(name), 1)).axes
    _, error = drawn(below)
    assert not error.any()


def test_jumps_of_the_slope_are_upright_where_there_is_no_border() -> None:
    found = fit(from_expression("where(x < 0, 0, where(x < 0.33, x, 1.1*x - 0.033))"), 1)
    assert found.steps.borders.tolist() == [0]
    x, slope = drawn(fewbit_figure(found).axes[0], "custom′")
    rise = np.flatnonzero(np.diff(slope))
    assert len(rise) == 2
    assert (x[rise + 1] - x[rise] < 1e-14).all()


@pytest.mark.parametrize("kind", ["shared", "contiguous"])
def test_kinks_of_f_show_no_spike(kind: str) -> None:
    found = fit(get("selu"), 3, levels=kind)
    _, error = drawn(fewbit_figure(found).axes[1])
    assert np.abs(error).max() <= found.error.linf * (1 + 1e-12)


@pytest.mark.parametrize(
    ("make", "lo", "hi"),
    [
        (lambda: fit(get("gelu"), 3), (-4.5, -2.8), (2.8, 4.5)),  # the flat ends are left out
        (lambda: fit(get("relu"), 1), (-1, -1), (1, 1)),
        (lambda: fit(get("relu"), 1, domain=(-0.5, 7)), (-0.5, -0.5), (1, 1)),
        (lambda: fit(from_expression("x**2"), 2, domain=(1, 2)), (1, 1), (2, 2)),
        (lambda: fit(from_expression("5*x"), 2, domain=(1, 2)), (1, 1), (2, 2)),
        (lambda: fit(get("silu"), 2, weight=parse_weight("norm")), (-4, -2), (2, 4)),
        (lambda: fit(get("silu"), 2, weight=from_samples(MANY_AND_ONE)), (-1.5, -1), (1, 1.5)),
        (lambda: fit(get("silu"), 2, weight=from_samples(MANY_AND_ONE), domain=(0, 1)), (0, 0.01), (0.99, 1)),
        (lambda: fit(LOG, 1, weight=from_samples(np.arange(-5, 5)), domain=(1, 4)), (1, 1.5), (3.5, 4)),
        (lambda: fit(get("mish"), 1, weight=parse_weight("beta(0.5,0.5)")), (0, 1e-3), (0.9, 1)),
    ],
)
def test_what_matters_is_in_the_picture(make: Any, lo: tuple[float, float], hi: tuple[float, float]) -> None:
    found = make()
    left, right = fewbit_figure(found).axes[1].get_xlim()
    assert lo[0] <= left <= lo[1]
    assert hi[0] <= right <= hi[1]
    assert (left < found.steps.borders).all()
    assert (found.steps.borders < right).all()


@pytest.mark.parametrize("suffix", [*MAGIC, ".PNG"])
def test_files_are_the_same_on_every_run(suffix: str, gelu: Fit, tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        check_path(path)
        save(fewbit_figure(gelu), path)
    first, second = (path.read_bytes() for path in paths)
    assert first.startswith(MAGIC[suffix.lower()])
    assert first == second
    assert b"/CreationDate" not in first  # which has seconds, and both were made in one
    assert sorted(tmp_path.iterdir()) == paths  # and nothing else


@pytest.mark.parametrize("name", ["a.gif", "a", ".png", "a.png.txt", "a.jpg"])
def test_other_formats_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"^plot must end in one of \.png, \.svg, \.pdf, got "):
        check_path(Path(name))


def test_a_link_stays_a_link(gelu: Fit, tmp_path: Path) -> None:
    real, link = tmp_path / "real.svg", tmp_path / "link.svg"
    real.touch()
    link.symlink_to(real)
    save(fewbit_figure(gelu), link)
    assert link.is_symlink()
    assert real.read_bytes().startswith(MAGIC[".svg"])


def test_a_picture_is_whole_or_not_there(gelu: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: Figure, path: Path, **_: Any) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    path = tmp_path / "a.png"
    path.write_bytes(b"the one before")
    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(KeyboardInterrupt):
        save(fewbit_figure(gelu), path)
    assert [found.read_bytes() for found in tmp_path.iterdir()] == [b"the one before"]


def test_a_picture_that_cannot_be_written_is_called_as_it_was_asked_for(gelu: Fit, tmp_path: Path) -> None:
    path = tmp_path / "none" / "a.png"
    with pytest.raises(FileNotFoundError) as raised:
        save(fewbit_figure(gelu), path)
    assert raised.value.filename == str(path)


# formulas of the output


@pytest.fixture(scope="module")
def mish() -> invact.Fit:
    return invact.fit(get("mish"), "bfloat16")


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    return [text.get_text() for text in found.get_texts()] if found else []


def test_formulas_their_error_and_the_front(mish: invact.Fit) -> None:
    figure = invact_figure(mish)
    above, front, below = (figure.axes[i] for i in (0, 1, 2))
    count = mish.chosen.price.total
    assert figure.get_suptitle() == f"mish′ from y in bfloat16: {count} instructions, RMS error {mish.chosen.rms:.4g}"
    assert legend(above) == ["g", "q left", "q right"]
    assert legend(below) == ["bound left", "bound right"]
    assert legend(front) == ["front", "chosen", "floor"]
    for i, (formula, bound) in enumerate(zip(mish.chosen.candidates, mish.bounds, strict=True)):
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
    assert [float(part[0]) for part in drawn(front, "chosen")] == [count, mish.chosen.rms]
    assert below.get_yscale() == front.get_yscale() == "log"


def test_the_paper_is_marked() -> None:
    found = invact.fit(get("silu"), "bfloat16", max_error=0.2)
    front = invact_figure(found).axes[1]
    assert found.paper is not None
    assert legend(front) == ["front", "chosen", "paper"]
    assert [float(part[0]) for part in drawn(front, "paper")] == [found.paper.price.total, found.paper.pointwise]
    assert front.get_ylabel() == "largest |q − g| in float32"


@pytest.mark.parametrize(("name", "labels"), [("tanh", ["g", "q"]), ("hardswish", ["g", "q left", "q right"])])
def test_a_closed_form_shows_no_error(name: str, labels: list[str]) -> None:
    above, _, below = invact_figure(invact.fit(get(name), "float16")).axes
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


def test_pictures_of_formulas_are_the_same_on_every_run(mish: invact.Fit, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save(invact_figure(mish), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


# pictures of any approximation


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
    assert approximation.floor is not None
    right = on_right(approximation.floor.split, approximation.x)
    for axes in error_figure(approximation, log=True).axes[2:]:
        assert axes.get_yscale() == "log"
        ((_, floor),) = sides(axes, "0.35")
        error = np.empty_like(floor)
        error[~right], error[right] = (part[1] for part in sides(axes, "C3"))
        # At powers of two, tanh's 1, the analysis takes the wider spacing of the two on both sides.
        simple = np.abs(np.frexp(approximation.floor.format.round(get(name).f(approximation.x)))[0]) != 0.5
        known = np.flatnonzero(np.isfinite(floor) & (simple | (dtype == "bfloat16")))
        assert len(known) > 50
        for i in known[:: len(known) // 50]:
            slopes = slopes_of_one_output(approximation, i)
            assert floor[i] == pytest.approx(np.ptp(slopes) / 2, rel=1e-2, abs=1e-12)
            assert error[i] == pytest.approx(np.abs(slopes - approximation.q[i]).max(), rel=1e-2, abs=1e-12)
            assert error[i] <= approximation.linf * (1 + 1e-3)  # which float32 has from other samples


def slopes_of_one_output(approximation: Approximation, i: int) -> Any:
    """f' of the x that are stored as the y of x[i]: all of a 16-bit format, a dense sample of those of float32."""
    floor, activation, at = approximation.floor, approximation.activation, approximation.x[i]
    assert floor is not None
    away = np.geomspace(1e-10, 40, 20_000)
    x = floor.format.numbers() if floor.format.precision <= 16 else np.concatenate([at - away, [at], at + away])
    same = on_right(floor.split, x) == on_right(floor.split, np.array([at]))
    same &= floor.format.round(activation.f(x)) == floor.format.round(activation.f(np.array([at])))
    return activation.df(x[same])


def test_each_side_has_its_own_floor_against_y() -> None:
    approximation = few_bits(get("silu"), 3)
    floor = information_floor(get("silu"), "bfloat16", parse_weight("uniform"))
    for axes in error_figure(approximation, floor).axes[2:]:
        assert len(axes.collections) == 2
        for collection in axes.collections:
            (path,) = (path for path in collection.get_paths())
            x = path.vertices[:, 0]
            turns = np.flatnonzero(np.diff(np.sign(np.diff(x)[np.diff(x) != 0])))
            assert len(turns) == 1  # there and back again: no zigzag


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


def test_the_title_has_the_largest_error() -> None:
    approximation = from_output(get("mish"), "float32")
    stored = load("mish", "invact-float32")["error"]["linf"]
    assert f"max |f′−q| = {stored:.3g}, " in error_figure(approximation).get_suptitle()


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
    (labels,) = (one.get_texts() for one in figure.legends)
    assert len(labels) == 4  # each once


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


def test_fronts_and_what_is_chosen_of_them(mish: invact.Fit) -> None:
    (axes,) = fronts_figure({"minimax and template": mish}).axes
    assert legend(axes) == ["minimax and template", "chosen", "floor"]
    assert drawn(axes, "minimax and template")[0].tolist() == [row.price.total for row in mish.front]
    assert [float(part[0]) for part in drawn(axes, "chosen")] == [mish.chosen.price.total, mish.chosen.rms]
    easier = replace(mish, rule=replace(mish.rule, text="easier"))
    assert legend(fronts_figure({"easier": easier}).axes[0]) == ["easier", "floor"]


def test_memory_before_and_after() -> None:
    before, after = {"a": 6 * 2**20, "b": 4 * 2**20, "c": 2**20, "d": 0}, {"a": 2**20, "b": 4 * 2**20, "e": 2**19}
    figure = memory_figure(before, after, "a title", rows=2)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b", "3 more", "all"]
    assert axes.get_xlabel() == "MiB kept for backward"
    widths = [[bar.get_width() for bar in bars] for bars in axes.containers]
    assert widths == [[6, 4, 1, 11], [1, 4, 0.5, 5.5]]
    assert figure.get_suptitle() == "a title"


def test_long_names_keep_their_ends() -> None:
    (axes,) = memory_figure({"x" * 60 + ".end": 3000}, {}, "").axes
    label = axes.get_yticklabels()[0].get_text()
    assert (label[0], label[-4:], len(label)) == ("…", ".end", 48)
    assert axes.get_xlabel() == "B kept for backward"
