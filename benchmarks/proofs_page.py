"""The tables of proven bounds in docs/fewbit.md and docs/joint.md: of the files that ship, and of earlier ones."""

from collections.abc import Sequence

from benchmarks.pages import of_any, table
from coefficients import load
from coefficients.functions import names
from coefficients.store import available
from fitting.words import upwards

NAME = "proofs"  # of the file of earlier gaps, and the rows' mode
FEW, GOALS = 4, ("1.0e-05", "1.0e-04")  # the gaps asked for: with at most so many bits, and with more
JOINT_GOAL = "1.0e-03"
EXACT = "exact"
Gaps = dict[tuple[str, int], tuple[float, float]]  # by function and bits: the error, and how far its bound is below it


def tables_section() -> str:
    """The largest gaps of few-bit tables by bits, earlier and now; errors and gaps of each function."""
    stored = _stored("fewbit", "l2_squared")
    earlier = {(row["what"], row["size"]["bits"]): row["median"] for row in of_any(NAME)}
    widths = _widths(stored)
    were = [[gap for (_, bits), gap in earlier.items() if bits == width] for width in widths]
    lines = [
        ["tables at first", *(str(len(gaps)) for gaps in were)],
        ["largest gap at first", *(_at_most(max(gaps)) for gaps in were)],
        ["tables now", *(str(sum(bits == width for _, bits in stored)) for width in widths)],
        ["largest gap now", *_largest(stored)],
        ["asked for", *(GOALS[width > FEW] for width in widths)],
    ]
    return "\n".join([*table(["bits", *map(str, widths)], lines), "", *_by_function(stored)]) + "\n"


def joint_section() -> str:
    """The same of joint codes, now."""
    stored = _stored("joint", "total")
    lines = [["largest gap", *_largest(stored)], ["asked for", *[JOINT_GOAL] * len(_widths(stored))]]
    return "\n".join([*table(["bits", *map(str, _widths(stored))], lines), "", *_by_function(stored)]) + "\n"


def _stored(method: str, error_key: str) -> Gaps:
    """Errors and gaps of the files that ship."""
    kinds = {(entry.function, entry.name) for entry in available() if entry.name.startswith(f"{method}-")}
    errors = {(name, fit["options"]["bits"]): fit["error"] for name, kind in kinds for fit in (load(name, kind),)}
    return {key: (error[error_key], error["gap"]) for key, error in errors.items()}


def _widths(stored: Gaps) -> Sequence[int]:
    return sorted({bits for _, bits in stored})


def _largest(stored: Gaps) -> list[str]:
    """By bits, the largest gap."""
    return [_at_most(max(gap for (_, bits), (_, gap) in stored.items() if bits == width)) for width in _widths(stored)]


def _by_function(stored: Gaps) -> list[str]:
    """A table of errors and one of gaps, by function and bits, of those that are not exact at every width."""
    widths, functions = _widths(stored), [name for name in names() if (name, _widths(stored)[0]) in stored]
    rest = [name for name in functions if any(stored[name, bits][0] for bits in widths)]
    errors = ([name, *(f"{stored[name, bits][0]:.3g}" for bits in widths)] for name in rest)
    gaps = ([name, *(_gap(*stored[name, bits]) for bits in widths)] for name in rest)
    lines = ["Errors:", "", *table(["", *map(str, widths)], errors), ""]
    lines += ["Gaps, in parts of the error:", "", *table(["", *map(str, widths)], gaps)]
    exact = [name for name in functions if name not in rest]
    return [*lines, *(["", f"Without error at every width: {', '.join(exact)}."] if exact else [])]


def _gap(error: float, gap: float) -> str:
    return _at_most(gap) if error else EXACT


def _at_most(gap: float) -> str:
    """Two digits, rounded up, so that it holds."""
    return f"{float(upwards(gap)):.1e}"
