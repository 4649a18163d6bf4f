"""A fit as text: tables and formulas for people, the front as CSV and LaTeX for papers. All in ASCII."""

import re
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np

from actfit.coefficients.schema import Document
from actfit.fitting.invact.formula import Candidate, spell
from actfit.fitting.invact.front import Row
from actfit.fitting.invact.proof import Bound
from actfit.fitting.invact.solve import Fit
from actfit.fitting.invact.variable import Y
from actfit.fitting.words import counted, percent, ten_digits, upwards

BEFORE, AFTER = 5, 2  # rows of the front shown around the best row
WIDTH = 108  # of lines with formulas
CONSTANTS_A_LINE = 3
BEST, PAPER = "*", "paper"
COLUMNS = ("", "instructions", "rms", "largest", "at y", "|q - g|", "engine")
CSV = "instructions,fma,other,special,division,rms,linf,linf_at,pointwise,engine,mark"
DIRECTIONS = {-1: "falling", 0: "flat", 1: "rising"}


def marked_rows(fit: Fit) -> list[tuple[Row, str]]:
    """The front, the best row and the paper's, cheapest first, each with its mark: "*", "paper" or nothing."""
    rows = [(row, BEST if row is fit.best else "") for row in fit.listed]
    if fit.paper is not None and fit.paper is not fit.best:
        rows.append((fit.paper, PAPER))
    return sorted(rows, key=lambda marked: marked[0].price.total)


def as_table(fit: Fit, whole: bool = False) -> str:
    """Branches, front, best formulas, errors and proof; `whole` shows all of the front."""
    blocks = [_branches(fit), _front(fit, whole), *_formulas(fit), _price_and_errors(fit)]
    return "\n\n".join([_title(fit), *map("\n".join, blocks)])


def as_csv(fit: Fit) -> str:
    """The front and the paper's formulas with every digit; the best row is marked *."""
    lines = [CSV]
    for row, mark in marked_rows(fit):
        price, errors = row.price, (row.rms, row.linf, row.linf_at, row.pointwise)
        counts = (price.total, price.fma, price.other, price.special, price.divisions)
        lines.append(",".join([*map(str, counts), *map(repr, errors), row.engine, mark]))
    return "\n".join(lines)


def as_latex(fit: Fit) -> str:
    """Plain tabulars: the front, and the constants of the best formulas, which are comments."""
    lines = [f"% {_title(fit)}", "\\begin{tabular}{rrrrll}", "  \\hline"]
    lines += ["  instructions & rms & largest & $|q - g|$ & engine & \\\\", "  \\hline"]
    for row, mark in marked_rows(fit):
        cells = [f"${row.price.total}$", *map(_math, (row.rms, row.linf, row.pointwise)), row.engine]
        lines.append(f"  {' & '.join(cells)} & {'$*$' if mark == BEST else mark} \\\\")
    lines += ["  \\hline", "\\end{tabular}"]
    for name, candidate in zip(branch_names(fit), fit.best.candidates, strict=True):
        lines += [f"% {name}: {line}" for line in spelled(candidate)]
        if candidate.constants:
            lines += ["\\begin{tabular}{lr}", "  \\hline"]
            lines += [
                f"  ${_subscript(key)}$ & {_math_text(shortest(value))} \\\\"
                for key, value in candidate.constants.items()
            ]
            lines += ["  \\hline", "\\end{tabular}"]
    return "\n".join(lines)


def as_line(document: Document, path: str) -> str:
    """One line of a sweep."""
    error, options, solution = document["error"], document["options"], document["solution"]
    engines = "+".join(dict.fromkeys(branch["engine"] for branch in solution["branches"]))
    count = solution["price"]["instructions"]
    bound = upwards(max(np.inf if bound is None else bound for bound in error["bound"]), 3)
    return (
        f"{document['function']['name']:12} {options['dtype']:8}  {engines:16} {counted(count, 'instruction'):15} "
        f"rms {error['rms']:<8.3g} {beside(error['rms'], error['floor_rms']):21} |q - g| <= {bound:8} {path}"
    )


def beside(error: float, error_floor: float) -> str:
    """How an error compares with its floor: as a percentage above it, if that is below 200 %."""
    if error <= error_floor:
        return "at the floor"
    return (
        f"{percent(error / error_floor - 1)} above the floor" if error < 3 * error_floor else f"floor {error_floor:.3g}"
    )


def _title(fit: Fit) -> str:
    params = ", ".join(f"{key}={value:g}" for key, value in fit.activation.params.items())
    name = f"{fit.activation.name}({params})" if params else fit.activation.name
    bits = fit.error_floor.bits
    bit = "no bit needed" if len(fit.error_floor.split.branches) == 1 else f"{bits} bit{'s' * (bits > 1)}"
    return f"{name}: q(y) for f'(x) from y = f(x) in {fit.dtype}, {bit}; weight {fit.weight.label}"


def _branches(fit: Fit) -> list[str]:
    split, names = fit.error_floor.split, branch_names(fit)
    rows: list[tuple[str, ...]] = [("branch", "bit", "x from", "to", "f", "y from", "to")]
    for bit, (name, branch) in enumerate(zip(names, split.branches, strict=True)):
        ends = (ten_digits(branch.lo), ten_digits(branch.hi)), tuple(map(ten_digits, branch.range))
        shown = str(bit) if len(names) == 2 else "-"
        rows.append((name, shown, *ends[0], DIRECTIONS[branch.direction], *ends[1]))
    lines = _aligned(rows, "<^>><>>")
    if split.border is not None:
        sign = ">" if split.border_is_left else ">="
        at_border = split.branches[0].arcs[-1].y[1] if split.border_is_left else split.branches[1].arcs[0].y[0]
        lines += ["", f"bit     x {sign} T = {split.border!r}, f(T) = {at_border!r}"]
    if fit.error_floor.bits == 2:
        lines.append("bit     y was rounded away from 0; q(y) is of y moved back or on by a quarter of its spacing")
        if (cut := fit.error_floor.cut) is not None:
            output, border, inner, outer = (f"{number:.8g}" for number in cut)
            instead = f"f(x) is nearer to 0 than {border}; q(y) is of {inner} if so, else {outer}"
            lines.append(f"        at y = {output}: {instead}")
    return lines


def _front(fit: Fit, whole: bool) -> list[str]:
    rows = marked_rows(fit)
    at = next(i for i, (_, mark) in enumerate(rows) if mark == BEST)
    near = range(len(rows)) if whole else range(max(0, at - BEFORE), min(len(rows), at + AFTER + 1))
    shown = [i for i, (_, mark) in enumerate(rows) if mark or i in near]
    cells: list[tuple[str, ...]] = [COLUMNS]
    for row, mark in (rows[i] for i in shown):
        errors = (f"{value:.4g}" for value in (row.rms, row.linf, row.linf_at, row.pointwise))
        sign, engine = (mark, row.engine) if mark != PAPER else ("", PAPER)
        cells.append((sign, str(row.price.total), *errors, engine))
    error_floor = fit.error_floor
    cells.append(
        ("", "floor", f"{error_floor.rms:.4g}", f"{error_floor.linf:.4g}", f"{error_floor.linf_at:.4g}", "", "")
    )
    lines = _aligned(cells, "<>>>>><")
    hidden = len(rows) - len(shown)
    if hidden:
        lines.append(f"{hidden} more row{'s' * (hidden > 1)} of the front by --front")
    return lines


def _price_and_errors(fit: Fit) -> list[str]:
    row, error_floor = fit.best, fit.error_floor
    lines = [f"price   {row.price} instructions", f"rule    {fit.rule.text}"]
    if fit.exact:
        forms = "closed form" if len(row.candidates) == 1 else "closed forms"
        lines.append(f"exact   {forms}; in float32 |q - g| <= {upwards(row.pointwise)} at stored outputs")
    at = f" at y = {row.linf_at:.6g}" if row.linf else ""
    dtype = error_floor.format.name
    lines += [
        f"rms     {row.rms:.6g}, {_compared(row.rms, error_floor.rms, error_floor.rounding_rms, dtype)}",
        f"largest {row.linf:.6g}{at}, {_compared(row.linf, error_floor.linf, error_floor.rounding_linf, dtype)}",
    ]
    for i, (name, bound) in enumerate(zip(branch_names(fit), fit.bounds, strict=True)):
        where = f" on the {name}" if len(fit.bounds) == 2 else ""
        proof = f"<= {upwards(bound.upper, 6)}{where}, {_sampled(bound)}"
        lines.append(f"{'' if i else 'proof':8}|q - g| {proof if bound.upper else f'= 0{where}, a closed form'}")
    return lines


def _compared(error: float, error_floor: float, rounding: float, dtype: str) -> str:
    """The error beside its floor, and beside the cost of rounding f' if that is more and so part of the rule."""
    text = beside(error, error_floor)
    return f"{text}; rounding f' to {dtype} costs {rounding:.3g}" if error > error_floor < rounding else text


def _sampled(bound: Bound) -> str:
    if bound.slack == 0:
        return "no error to be resolved"
    if not np.isfinite(bound.upper):
        largest = f"{bound.sampled:.6g} at x = {bound.at:.6g}" if bound.sampled else "no error at the x that were tried"
        return f"no bound was found; {largest}"
    return f"{percent(bound.slack)} above {bound.sampled:.6g} at x = {bound.at:.6g}"


def _aligned(rows: Sequence[Sequence[str]], alignments: str) -> list[str]:
    """Columns two blanks apart; `alignments` has <, ^ or > for each."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    formats = [f"{alignment}{width}" for alignment, width in zip(alignments, widths, strict=True)]
    return ["  ".join(["", *map(format, row, formats)]).rstrip() for row in rows]


def _math(value: float) -> str:
    return _math_text(f"{value:.4g}")


def _math_text(text: str) -> str:
    """A number in LaTeX's math mode, with powers of ten."""
    return "$" + re.sub(r"e\+?(-?)0*(\d+)", r" \\times 10^{\1\2}", text) + "$"


def _subscript(name: str) -> str:
    """c12 as c_{12}, t_low as t_{\\mathrm{low}}."""
    if match := re.fullmatch(r"([a-z])_?(\d+)", name):
        return f"{match[1]}_{{{match[2]}}}"
    head, _, tail = name.partition("_")
    shown = head if len(head) == 1 else f"\\mathrm{{{head}}}"
    return f"{shown}_{{\\mathrm{{{tail}}}}}" if tail else shown


def branch_names(fit: Fit) -> tuple[str, ...]:
    """The names of the branches."""
    return ("left", "right") if len(fit.error_floor.split.branches) == 2 else ("all",)


def _formulas(fit: Fit) -> list[list[str]]:
    """The formulas and constants of each branch; common ones are printed once."""
    texts = [spelled(candidate) for candidate in fit.best.candidates]
    numbers = [candidate.constants for candidate in fit.best.candidates]
    shared = len(texts) == 2 and texts[0][-1] == texts[1][-1] and numbers[0] == numbers[1]
    if not shared:
        return list(map(_block, branch_names(fit), texts, numbers))
    if texts[0] == texts[1]:
        return [_block("both", texts[0], numbers[0])]
    apart = [_block(name, text[:-1], {}) for name, text in zip(branch_names(fit), texts, strict=True)]
    return [[*apart[0], *apart[1], *_block("both", texts[0][-1:], numbers[0])]]


def spelled(candidate: Candidate) -> list[str]:
    """The lines "s = ...", if the formula needs s, and "q = ..."."""
    s = candidate.variable.symbolic
    return [*([] if s == Y else [f"s = {spell(s)}"]), f"q = {spell(candidate.form.expression)}"]


def shortest(value: float) -> str:
    """The fewest digits that tell the number from others: from other float32 numbers if it is one."""
    short = np.float32(value)
    return str(short) if float(short) == value else repr(value)


def _block(name: str, texts: Sequence[str], numbers: Mapping[str, float]) -> list[str]:
    lines = [line for i, text in enumerate(texts) for line in _wrapped(f"{'' if i else name:8}{text}")]
    return [*lines, *_listed([(key, shortest(value)) for key, value in numbers.items()])]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False)


def _listed(items: Sequence[tuple[str, str]]) -> list[str]:
    """Lines of "name = value", to be read column by column."""
    height = -(-len(items) // CONSTANTS_A_LINE) or 1
    columns = []
    for at in range(0, len(items), height):
        part = items[at : at + height]
        width = max(len(key) for key, _ in part)
        cells = [f"{key:{width}} = {'' if value.startswith('-') else ' '}{value}" for key, value in part]
        longest = max(map(len, cells))
        columns.append([cell.ljust(longest) for cell in cells] + [""] * (height - len(cells)))
    return [("          " + "    ".join(row)).rstrip() for row in zip(*columns, strict=True)]
