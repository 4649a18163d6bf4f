"""The table of the kernels' times for docs/results/kernels.md."""

from benchmarks.kernels.table import LAYERS
from benchmarks.pages import Rows, by, largest, place, read, table

EAGER = "eager"
DTYPE = "bfloat16"


def section() -> str:
    """Forward and backward of each method over eager's time: of an activation alone, and with linear layers."""
    lines: list[str] = []
    for rows in read("kernels-time").values():
        ratios = [row for row in rows if row["unit"] == "ratio of times" and row["mode"] == "both"]
        ratios = [row for of_what in by(ratios, "what", "dtype").values() for row in largest(of_what)]
        shown = [row for row in ratios if row["dtype"] == DTYPE]
        subjects = {what: of_what[0]["size"] for (what,), of_what in by(shown, "what").items()}
        names = list(dict.fromkeys(row["implementation"] for row in shown))
        cells_of = {(row["what"], row["implementation"]): f"{row['median']:.2f}" for row in shown}
        of_each = ([cells_of.get((what, name), "–") for what in subjects] for name in names)
        cells = [[name.removesuffix(f" / {EAGER}"), *values] for name, values in zip(names, of_each, strict=True)]
        head = [f"{what}, {' × '.join(str(length) for length in size.values())}" for what, size in subjects.items()]
        layers = [row for row in ratios if row["what"].split()[-1] in LAYERS]
        alone = [row for row in ratios if row not in layers]
        lines += [
            "",
            f"On {place(rows[0])}, forward and backward together in {DTYPE}, as a multiple of {EAGER}'s time, medians"
            f" of {rows[0]['runs']} rounds:",
            "",
            *table(["", *head], cells),
            "",
            f"In all dtypes: {_range(alone)} for an activation alone, {_range(layers)} with linear layers around it.",
        ]
    return "\n".join(lines[1:]) + "\n"


def _range(rows: Rows) -> str:
    values = sorted(row["median"] for row in rows)
    return f"{values[0]:.1f} to {values[-1]:.1f}"
