"""A fit as text: an aligned table for people, CSV and LaTeX for papers."""

import re
import sys
from collections.abc import Sequence

from actfit.fitting.activations import Activation
from actfit.fitting.activations.catalogue import CATALOGUE
from actfit.fitting.fewbit.curve import Curve
from actfit.fitting.fewbit.solve import BOUND_DIGITS, Fit
from actfit.fitting.fewbit.table1 import EVEN, printed
from actfit.fitting.words import counted, percent, ten_digits

KIND_NAMES = {
    "best": "shared between intervals",
    "shared": "shared between intervals",
    "contiguous": "in contiguous intervals",
    "even": "in contiguous intervals of |x|",
}


def rows(fit: Fit) -> list[tuple[float, float, float, int]]:
    """(from, to, level, code) for each interval; it holds from < x <= to."""
    lo, hi = fit.domain
    edges = [lo, *fit.steps.borders.tolist(), hi]
    levels = fit.steps.levels.tolist()
    return [(a, b, levels[code], code) for a, b, code in zip(edges, edges[1:], fit.steps.codes.tolist(), strict=False)]


def as_table(fit: Fit) -> str:
    """Title, intervals, errors, certificate and the paper's value where it has one."""
    lines = [_title(fit), ""]
    cells = [("from", "to", "level", "code")] + [
        (ten_digits(a), ten_digits(b), ten_digits(level), f"{code:0{fit.bits}b}") for a, b, level, code in rows(fit)
    ]
    return "\n".join([*lines, *aligned(cells), "", *_error_lines(fit)])


def aligned(cells: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of columns, from and to first, under a row of names; the outermost intervals go on to infinity.

    The codes serve every x, though fitted on the domain.
    """
    cells = [cells[0], ("-inf", *cells[1][1:]), *cells[2:]]
    cells[-1] = (cells[-1][0], "+inf", *cells[-1][2:])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  " + "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in cells]


def display_name(activation: Activation) -> str:
    """The function's name, with its parameters."""
    params = ", ".join(f"{key}={value:g}" for key, value in activation.params.items())
    return f"{activation.name}({params})" if params else activation.name


def _title(fit: Fit) -> str:
    name = display_name(fit.activation)
    lo, hi = fit.domain
    levels, intervals = counted(len(fit.steps.levels), "level"), counted(len(fit.steps.codes), "interval")
    return (
        f"{name}': {counted(fit.bits, 'bit')}, {levels} on {intervals}; "
        f"weight {fit.weight.label}, domain [{lo:g}, {hi:g}]"
    )


def _error_lines(fit: Fit) -> list[str]:
    error = fit.error
    if all(run.flat for run in Curve(fit.activation, *fit.domain).runs) and error.linf == 0:
        return [f"error   exactly 0: f' takes {counted(len(fit.steps.levels), 'value')} here, and each has its level"]
    if error.linf == 0:
        return ["error   0 to all the digits of float64"]
    kind = KIND_NAMES[fit.levels]
    lines = [
        f"error   ∫(f'-q)²w = {error.l2_squared:.6g}, max |f'-q| = {error.linf:.4g} at x = {error.linf_at:.6g}",
        f"proof   no function of {2**fit.bits} levels {kind} has an error below {error.lower_bound:.{BOUND_DIGITS}g}, "
        f"{percent(error.gap)} less than this one",
    ]
    if fit.budget is not None:
        lines.append(
            f"budget  the search was cut short after {fit.budget:g} s; given more, it can prove or find better"
        )
    row = CATALOGUE.get(fit.activation.name)
    paper = printed(fit.activation.name, fit.bits)
    default = row is not None and fit.activation.params == dict(row.params) and fit.weight.label == "uniform"
    if paper and default and fit.domain == (-10.0, 10.0):
        intervals = "on |x|" if fit.activation.name in EVEN else "in contiguous intervals"
        lines.append(f"paper   {paper} {intervals} (FewBit, Table 1)")
    return lines


def as_csv(fit: Fit) -> str:
    """from,to,level,code with every digit."""
    return "\n".join(["from,to,level,code", *(f"{a!r},{b!r},{level!r},{code}" for a, b, level, code in rows(fit))])


def as_latex(fit: Fit) -> str:
    """A booktabs-free tabular: one line per interval."""
    body = [f"  {as_math(a)} & {as_math(b)} & {as_math(level)} & {code} \\\\" for a, b, level, code in rows(fit)]
    head = ["\\begin{tabular}{rrrr}", "  \\hline", "  from & to & level & code \\\\", "  \\hline"]
    return "\n".join([f"% {_title(fit)}", *head, *body, "  \\hline", "\\end{tabular}"])


def as_line(fit: Fit, path: str) -> str:
    """One line of a sweep."""
    bits = f"{fit.bits} bit{' ' if fit.bits == 1 else 's'}"
    return f"{fit.activation.name:12} {bits}  {fit.error.l2_squared:<12.6g} gap {percent(fit.error.gap):>9}  {path}"


def as_math(value: float) -> str:
    """As ten_digits, in LaTeX's mathematics: with a true minus sign and powers of ten."""
    return "$" + re.sub(r"e\+?(-?)0*(\d+)", r" \\times 10^{\1\2}", ten_digits(value)) + "$"


def encodable(text: str) -> str:
    """The table in words where stdout cannot take its signs."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return text.replace("∫", "integral of ").replace("²", "^2 ")
    return text
