"""A joint code as text: an aligned table for people, CSV and LaTeX for papers."""

from actfit.fitting.fewbit.report import aligned, as_math, display_name
from actfit.fitting.joint.solve import JointFit
from actfit.fitting.words import counted, percent, ten_digits

EXACT = 1e-10  # relative: a smaller error is rounding, as levels have 12 digits


def rows(fit: JointFit) -> list[tuple[float, float, float, float, int]]:
    """(from, to, level of f', level of f, code) for each interval; it holds from < x <= to."""
    lo, hi = fit.domain
    edges = [lo, *fit.table.borders.tolist(), hi]
    derivatives, outputs = fit.table.derivatives.tolist(), fit.table.outputs.tolist()
    return [(edges[i], edges[i + 1], derivatives[i], outputs[i], i) for i in range(len(outputs))]


def as_table(fit: JointFit) -> str:
    """Title, intervals, errors and certificate."""
    cells = [("from", "to", "f'", "f", "code")] + [
        (*map(ten_digits, numbers), f"{code:0{fit.bits}b}") for *numbers, code in rows(fit)
    ]
    return "\n".join([_title(fit), "", *aligned(cells), "", *_error_lines(fit)])


def _title(fit: JointFit) -> str:
    lo, hi = fit.domain
    intervals = counted(len(fit.table.outputs), "interval")
    return (
        f"{display_name(fit.activation)} and its derivative: {counted(fit.bits, 'bit')}, {intervals}; "
        f"lambda {fit.output_weight:g}, weight {fit.weight.label}, domain [{lo:g}, {hi:g}]"
    )


def _error_lines(fit: JointFit) -> list[str]:
    error = fit.error
    if error.total == 0 or (error.lower_bound == 0 and max(error.derivative_share, error.output_share) < EXACT):
        return ["error   0 to the digits of the levels"]
    return [
        f"error   of f' {error.derivative_share:.4g}, of f {error.output_share:.4g} (root mean squares, relative)",
        f"sum     ∫(f'-q)²w + lambda ∫(f-y)²w = {error.derivative:.6g} + {fit.output_weight:g} * {error.output:.6g} = "
        f"{error.total:.6g}",
        f"proof   no code of {counted(2**fit.bits, 'interval')} has a sum below {error.lower_bound:.6g}, "
        f"{percent(error.gap)} less than this one",
    ]


def as_csv(fit: JointFit) -> str:
    """from,to,derivative,output,code with every digit."""
    lines = [f"{a!r},{b!r},{derivative!r},{output!r},{code}" for a, b, derivative, output, code in rows(fit)]
    return "\n".join(["from,to,derivative,output,code", *lines])


def as_latex(fit: JointFit) -> str:
    """A booktabs-free tabular: one line per interval."""
    body = [f"  {' & '.join(map(as_math, numbers))} & {code} \\\\" for *numbers, code in rows(fit)]
    head = ["\\begin{tabular}{rrrrr}", "  \\hline", "  from & to & $f'$ & $f$ & code \\\\", "  \\hline"]
    return "\n".join([f"% {_title(fit)}", *head, *body, "  \\hline", "\\end{tabular}"])


def as_line(fit: JointFit, path: str) -> str:
    """One line of a sweep."""
    error, bits = fit.error, f"{fit.bits} bit{' ' if fit.bits == 1 else 's'}"
    shares = f"f' {error.derivative_share:<8.3g} f {error.output_share:<8.3g}"
    return f"{fit.activation.name:12} {bits}  {shares} gap {percent(error.gap):>8}  {path}"
