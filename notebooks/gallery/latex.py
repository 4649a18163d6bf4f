r"""A fit as LaTeX, for an article with amsmath: tables of intervals and levels, or formulas and their constants."""

import re
from collections.abc import Iterable, Sequence
from functools import singledispatch

from sympy import Expr, Symbol
from sympy.printing.latex import LatexPrinter

from actfit.fitting.invact.formula import read
from actfit.fitting.words import counted
from notebooks.gallery.c_array import branch_names, second_bit, setting
from notebooks.gallery.fits import Coded, FewBit, Fit, InvAct, Joint

ROWS = 45  # of a table; a longer one would not fit on a page
DIGITS = 10  # of borders and levels, as the command prints them
EXACT = 17  # of constants: as few digits as identify the number, at most these


def as_latex(fit: Fit) -> str:
    """The fit as LaTeX."""
    lines = [f"% {fit.place}, sha256 {fit.document['sha256'][:16]}"]
    return "\n".join([*lines, *_lines(fit)]) + "\n"


@singledispatch
def _lines(fit: Fit) -> list[str]:
    raise NotImplementedError(type(fit))


@_lines.register
def _few_bit(fit: FewBit) -> list[str]:
    solution = fit.document["solution"]
    codes, levels = solution["codes"], solution["levels"]
    table = f"{counted(len(levels), 'level')} on {counted(len(codes), 'interval')}"
    return [
        f"% {fit.entry.function}' by {fit.setting}: {table}; each holds from < x <= to",
        *_intervals(fit, codes, {"level": [levels[code] for code in codes]}),
    ]


@_lines.register
def _joint(fit: Joint) -> list[str]:
    solution, function = fit.document["solution"], fit.entry.function
    derivatives, outputs = solution["derivatives"], solution["outputs"]
    return [
        f"% {function}' and {function} by one code, {fit.setting}: {counted(len(outputs), 'interval')}, "
        f"lambda {fit.output_weight:g}; each holds from < x <= to",
        *_intervals(fit, range(len(outputs)), {"$f'$": derivatives, "$f$": outputs}),
    ]


def _intervals(fit: Coded, codes: Sequence[int], levels: dict[str, list[float]]) -> list[str]:
    """A row for each interval: its ends, its levels by heading, and its code; in tables of at most ROWS rows."""
    borders = (number(border, DIGITS) for border in fit.document["solution"]["borders"])
    edges = [r"-\infty", *borders, r"\infty"]
    rows = []
    for lo, hi, code, *values in zip(edges, edges[1:], codes, *levels.values(), strict=False):
        cells = (lo, hi, *(number(value, DIGITS) for value in values))
        rows.append(f"  {' & '.join(f'${cell}$' for cell in cells)} & {code:0{fit.kept_bits}b} \\\\")
    head, lines = f"from & to & {' & '.join(levels)} & code", []
    for first in range(0, len(rows), ROWS):
        lines += _tabular("r" * (3 + len(levels)), head, rows[first : first + ROWS])
    return lines


@_lines.register
def _formulas(fit: InvAct) -> list[str]:
    solution = fit.document["solution"]
    branches = solution["branches"]
    lines = [f"% {fit.entry.function}' from y, for {setting(fit)}"]
    if solution["border"] is not None:
        sign = "<" if solution["border_side"] == "right" else "<="
        lines.append(f"% the left side is x {sign} {solution['border']!r}")
        lines += [f"% {line}" for line in second_bit(solution)]
    for name, branch in zip(branch_names(branches), branches, strict=True):  # each branch has its own s and constants
        variable, constants = branch["variable"], branch["constants"]
        rows = [] if variable is None else [f"  s &= {_maths(variable, constants)}"]
        mark = rf"_{{\text{{{name}}}}}" if name else ""
        rows.append(f"  q{mark} &= {_maths(branch['expression'], constants)}")
        lines += [r"\begin{align*}", " \\\\\n".join(rows), r"\end{align*}"]
        if constants:
            values = [f"  ${_symbol(key)}$ & ${number(value)}$ \\\\" for key, value in constants.items()]
            lines += _tabular("lr", f"constant & {name or 'value'}", values)
    return lines


def number(value: float, digits: int = EXACT) -> str:
    """A number as LaTeX mathematics, with powers of ten; in as few digits as identify it, or in `digits`."""
    plain = repr(value) if digits == EXACT else f"{value:.{digits}g}"
    return re.sub(r"e\+?(-?)0*(\d+)", r" \\times 10^{\1\2}", plain)


class _Printer(LatexPrinter):
    """sympy's printer, with the grammar's functions and the names of constants upright."""

    def _print_maximum(self, expression: Expr) -> str:
        return self._named(r"\max", expression.args)

    def _print_minimum(self, expression: Expr) -> str:
        return self._named(r"\min", expression.args)

    def _print_expm1(self, expression: Expr) -> str:
        return self._named(r"\operatorname{expm1}", expression.args)

    def _print_Symbol(self, expression: Symbol, style: str = "plain") -> str:
        return _symbol(expression.name)

    def _named(self, name: str, arguments: Iterable[Expr]) -> str:
        return rf"{name}\left({', '.join(map(self._print, arguments))}\right)"


def _maths(text: str, constants: dict[str, float]) -> str:
    return str(_Printer().doprint(read(text, constants)))


def _symbol(name: str) -> str:
    """A constant's name as LaTeX: c10 as a letter with an index, words upright."""
    letters, _, index = name.partition("_")
    match = re.fullmatch(r"([a-z])(\d*)", letters)
    base, digits = match.groups() if match else (rf"\mathrm{{{letters}}}", "")
    index = digits or (rf"\mathrm{{{index}}}" if index else "")
    return f"{base}_{{{index}}}" if index else base


def _tabular(columns: str, head: str, rows: list[str]) -> list[str]:
    start = [rf"\begin{{tabular}}{{{columns}}}", r"  \hline", rf"  {head} \\", r"  \hline"]
    return ["", *start, *rows, r"  \hline", r"\end{tabular}"]
