"""The tables that `benchmarks.report` makes of the rows of `benchmarks.gpu`."""

from benchmarks.pages import Rows, by, on_gpus, place, table


def speed_section() -> str:
    """Times of kernels beside eager and a copy, by size."""
    lines: list[str] = []
    for rows in on_gpus("kernels-time").values():
        alone = [row for row in rows if "n" in row["size"]]
        lines += ["", f"On {place(rows[0])}, medians of {alone[0]['runs']} rounds.", ""]
        for (what, dtype), of_what in by(alone, "what", "dtype").items():
            lines += [
                *_by_size(
                    of_what, f"{what}, {dtype}: forward and backward, × eager", "both", "ratio of times", " / eager"
                )
            ]
            lines += [
                "",
                *_by_size(of_what, f"{what}, {dtype}: share of the copy's GB/s", "both", "ratio of GB/s", " / copy"),
                "",
            ]
    return "\n".join(lines).strip("\n") + "\n" if lines else "No rows of a GPU yet.\n"


def _by_size(rows: Rows, title: str, mode: str, unit: str, rival: str) -> list[str]:
    """A line for each method, a column for each size."""
    medians = {
        (row["implementation"].removesuffix(rival), row["size"]["n"]): row["median"]
        for row in rows
        if (row["mode"], row["unit"]) == (mode, unit) and row["implementation"].endswith(rival)
    }
    sizes = sorted({n for _, n in medians})
    cells = (
        [name, *(_cell(medians.get((name, n))) for n in sizes)] for name in dict.fromkeys(name for name, _ in medians)
    )
    return table([title, *(f"2^{n.bit_length() - 1}" for n in sizes)], cells)


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
