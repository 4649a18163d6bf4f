"""A card for each function: its picture, its fits with their errors, tables to copy, and its kernels."""

from functools import singledispatch
from pathlib import Path
from typing import Any

from markupsafe import Markup

from actfit.fitting.fewbit.report import KIND_NAMES
from actfit.fitting.words import counted
from notebooks.gallery.c_array import as_c, branch_names
from notebooks.gallery.curves import window
from notebooks.gallery.fits import MOST_BITS, Coded, FewBit, Fit, InvAct, Joint
from notebooks.gallery.latex import as_latex
from notebooks.gallery.markup import render
from notebooks.gallery.numbers import DOWN, MUCH, UP, percent, short
from notebooks.gallery.pictures import fit_picture, function_picture
from notebooks.gallery.shelves import Shelf

KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "generated"
TARGETS = ("triton", "torch")
WEIGHTS = {"norm": "x from N(0, 1)"}  # other weights are shown by name
Details = list[tuple[str, object]]
FIRST = 3  # bits of the table that a card first shows, unless one of fewer bits is exact


def card(shelf: Shelf) -> Markup:
    """The card of a function."""
    x_range = window(shelf.fits)
    tables = (
        i for i, fit in enumerate(shelf.fits) if isinstance(fit, FewBit) and (fit.error == 0 or fit.kept_bits == FIRST)
    )
    return render(
        "card.html",
        shelf=shelf,
        params=", ".join(f"{key} = {value:g}" for key, value in shelf.activation.params.items()),
        picture=function_picture(shelf, x_range),
        groups=_buttons(shelf),
        shown=next(tables, 0),
        panels=[_panel(fit, x_range) for fit in shelf.fits],
        kernels=_kernels(shelf),
    )


def _buttons(shelf: Shelf) -> dict[str, list[tuple[int, Fit, str]]]:
    """By group: number, fit, and the text of its button."""
    groups: dict[str, list[tuple[int, Fit, str]]] = {}
    for i, fit in enumerate(shelf.fits):
        words = ", ".join(filter(None, (fit.short_kind, fit.manner)))
        words += f", v{fit.entry.version}" * (fit.entry.version > 1)
        groups.setdefault(fit.group, []).append((i, fit, words))
    return groups


def _panel(fit: Fit, x_range: tuple[float, float]) -> dict[str, object]:
    """The values of the template for one fit."""
    return {
        "fit": fit,
        "picture": fit_picture(fit, x_range),
        "key": _key(fit),
        "branches": _branches(fit.document["solution"]) if isinstance(fit, InvAct) else (),
        "details": details(fit),
        "texts": _texts(fit),
    }


def _texts(fit: Fit) -> list[tuple[str, str, str]]:
    """The texts to copy: ending, name, text."""
    if isinstance(fit, Coded) and fit.kept_bits > MOST_BITS:
        return []
    return [("json", "JSON", fit.text), ("tex", "LaTeX", as_latex(fit)), ("c", "C array", as_c(fit))]


@singledispatch
def _key(fit: Fit) -> list[tuple[str, str]]:
    """The key to a fit's picture: class and meaning of each line."""
    raise NotImplementedError(type(fit))


@_key.register
def _few_bit_key(fit: FewBit) -> list[tuple[str, str]]:
    error = [("error", "f′ − q")] if fit.document["error"]["linf"] else []
    return [("exact", "f′"), ("fit", f"q, {fit.setting}"), *error]


@_key.register
def _joint_key(fit: Joint) -> list[tuple[str, str]]:
    return [("exact", "f′, f"), ("fit", f"q, y, {fit.setting}"), ("error", "f′ − q"), ("error f", "f − y")]


@_key.register
def _invact_key(fit: InvAct) -> list[tuple[str, str]]:
    if len(fit.document["solution"]["branches"]) == 2:
        return [("exact", "g = f′∘f⁻¹"), ("fit left", "q, left"), ("fit right", "q, right")]
    return [("exact", "g = f′∘f⁻¹"), ("fit", "q")]


@singledispatch
def details(fit: Fit) -> Details:
    """The list of details of a fit: term and description."""
    raise NotImplementedError(type(fit))


@details.register
def _few_bit_details(fit: FewBit) -> Details:
    error, solution = fit.document["error"], fit.document["solution"]
    levels = f"{counted(2**fit.kept_bits, 'level')} {KIND_NAMES[fit.document['options']['levels']]}"
    first: Details = [("∫(f′ − q)²w", short(fit.error, 4)), ("at least", _least(fit, levels))]
    if fit.printed:
        first.append(("paper", f"{fit.printed[0]} {fit.printed[1]}"))
    place = "" if error["linf_at"] is None else f" at x = {short(error['linf_at'], 4)}"
    return [
        *first,
        ("max |f′ − q|", short(error["linf"], 4) + place),
        ("keeps", f"{counted(fit.kept_bits, 'bit')} an element"),
        ("table", f"{counted(len(solution['levels']), 'level')}, {counted(len(solution['codes']), 'interval')}"),
        ("weight", _weight(fit)),
    ]


@details.register
def _joint_details(fit: Joint) -> Details:
    error, (derivative, output) = fit.document["error"], fit.shares
    parts = f"{short(error['derivative'], 4)} + {short(fit.output_weight)} · {short(error['output'], 4)}"
    return [
        ("RMS error", f"of f′ {short(derivative)}, of f {short(output)}, in parts of their own root mean squares"),
        ("sum", f"∫(f′ − q)²w + λ∫(f − y)²w = {parts} = {short(fit.error, 4)}"),
        ("at least", _least(fit, counted(2**fit.kept_bits, "interval"))),
        ("keeps", f"{counted(fit.kept_bits, 'bit')} an element, for f′ and f"),
        ("table", f"{counted(len(fit.document['solution']['outputs']), 'interval')}, a level of f′ and one of f each"),
        ("weight", _weight(fit)),
    ]


def _weight(fit: Coded) -> str:
    weight, (lo, hi) = fit.document["options"]["weight"], fit.document["options"]["domain"]
    return f"{WEIGHTS.get(weight, weight)} on [{short(lo)}, {short(hi)}]"


def _least(fit: Coded, levels: str) -> str:
    """The proven bound for tables of these levels, and how far this table is above it.

    Both are rounded so that they hold.
    """
    if fit.above is None:
        return "no bound above 0 found"
    if fit.error == 0:
        near = "exact"
    elif fit.above > MUCH:
        near = f"{percent(fit.above)} above that"
    else:
        near = f"at most {percent(fit.above, UP)} above" if fit.above else "the least"
    return f"{short(fit.least, 4, DOWN)} with {levels}, proven: this is {near}"


@details.register
def _invact_details(fit: InvAct) -> Details:
    error, solution = fit.document["error"], fit.document["solution"]
    price, weight = solution["price"], fit.document["options"]["weight"]
    parts = ", ".join(f"{price[key]} {key}" for key in ("fma", "other", "special", "division") if price[key])
    first: Details = [
        ("RMS error", f"{short(error['rms'])}; floor {short(error['floor_rms'], rounding=DOWN)}{_share(fit)}")
    ]
    if fit.paper is not None:
        first.append(("paper’s", f"{short(fit.paper)} RMS, by its formulas"))
    first.append(("largest", f"{short(error['linf'])}; floor {short(error['floor_linf'], rounding=DOWN)}"))
    return [
        *first,
        ("|q − g| at most", _bounds(error["bound"]) + ", in parts of max(1, |g|)" * fit.is_relative),
        ("price", f"{counted(price['instructions'], 'instruction')} an element: {parts}"),
        ("keeps", "the output" + f" and {counted(fit.kept_bits, 'bit')} an element" * bool(fit.kept_bits)),
        ("rule", solution["rule"]),
        ("weight", WEIGHTS.get(weight, weight)),
    ]


def _bounds(bounds: list[float | None]) -> str:
    """The proven bound of each branch, rounded up."""
    if None not in bounds:
        return f"{', '.join(short(bound, rounding=UP) for bound in bounds)}, proven"
    if not any(bound is not None for bound in bounds):
        return "no bound found"
    words = ["no bound found" if bound is None else f"{short(bound, rounding=UP)}, proven" for bound in bounds]
    return "; ".join(f"{name}: {word}" for name, word in zip(branch_names(bounds), words, strict=True))


def _share(fit: Fit) -> str:
    """How far the error is above the floor; empty if the floor consists of rounding errors only."""
    return "" if fit.above is None or fit.above > MUCH else f", {percent(fit.above, UP)} above it"


def _branches(solution: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Each branch after a title with its x."""
    titles = list(branch_names(solution["branches"]))
    if titles[0]:
        sign = "<" if solution["border_side"] == "right" else "≤"
        titles[0] += f", x {sign} {short(float(solution['border']), 5)}"
    return list(zip(titles, solution["branches"], strict=True))


def _kernels(shelf: Shelf) -> list[tuple[str, str, str]]:
    """The emitted modules: target, name of the file, text.

    The page contains them, so that it can be moved away from the repository.
    """
    paths = {target: KERNELS / f"{shelf.name}_{target}.py" for target in TARGETS if shelf.is_usual}
    return [(target, path.name, path.read_text(encoding="utf-8")) for target, path in paths.items() if path.is_file()]
