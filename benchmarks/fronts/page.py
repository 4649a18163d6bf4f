"""The section of `docs/eager.md` made from the rows of `benchmarks.fronts`."""

from collections.abc import Iterator

from benchmarks.fronts import errors
from benchmarks.fronts.nets import UNSEEN
from benchmarks.pages import Rows, by, place, read, spread, table

FEWER = "fewer than 2 bits"


def section() -> str:
    """A table and a summary for each device."""
    lines: list[str] = []
    for rows in read("fronts").values():
        lines += ["", *table(_head(), _cells(rows)), "", _note(rows), "", _summary(rows)]
    return "\n".join(lines[1:]) + "\n" if lines else "No rows yet.\n"


def _head() -> list[str]:
    columns = ("error", "÷ hook's, same bits", "bytes ÷ hook's", "error ÷ hook's, same bytes")
    return ["", "bits", *columns]


def _cells(rows: Rows) -> Iterator[list[str]]:
    for (name,), of_net in by(rows, "what").items():
        row_of = {(row["mode"], row["implementation"], row["unit"]): row for row in of_net}
        for bits in errors.BITS:
            way = errors.ours(bits)
            error = row_of[errors.EACH, way, errors.ERROR]
            at_bits = row_of[errors.SAME_BITS, way, errors.ERROR_RATIO]
            bytes = row_of[errors.SAME_BITS, way, errors.KEPT_RATIO]
            at_bytes = row_of.get((errors.SAME_BYTES, way, errors.ERROR_RATIO))
            own = f"{name}*" if name in UNSEEN else name
            last = spread(at_bytes) if at_bytes else FEWER
            yield [own, f"{bits}", f"{error['median']:.1e}", spread(at_bits), f"{bytes['median']:.2f}", last]


def _note(rows: Rows) -> str:
    runs = max(row["runs"] for row in rows)
    return (
        f"Medians of {runs} seeds, least and largest in brackets, on {place(rows[0])}, in float32. * Nothing was"
        f' tuned on these. "{FEWER}": compress keeps fewer bytes than the hook can.'
    )


def _summary(rows: Rows) -> str:
    at_bits = [row for row in rows if row["mode"] == errors.SAME_BITS and row["unit"] == errors.ERROR_RATIO]
    at_bytes = [row for row in rows if row["mode"] == errors.SAME_BYTES]
    worst = {name: max(row["median"] for row in of_net) for (name,), of_net in by(at_bits, "what").items()}
    named = ", ".join(f"{name} ({ratio:.2f} times at most)" for name, ratio in worst.items() if ratio > 1)
    count = sum(row["median"] > 1 for row in at_bits)
    larger = f"in {count} of {len(at_bits)}: {named}" if count else "nowhere"
    highest = max(row["quantiles"][1] for row in at_bytes)
    return (
        f"With the same bits, the error is larger than the hook's {larger}. In as many bytes it is at most"
        f" {highest:.2f} of the hook's, with the worst seed."
    )
