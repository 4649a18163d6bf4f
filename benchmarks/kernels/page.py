"""The tables of the kernels' times for docs/results/kernels.md."""

from benchmarks.pages import Rows, by, place, read, table

DTYPE = "bfloat16"


def section() -> str:
    """By device and size: both passes of each method over eager's time; on GPUs their share of a copy's GB/s, too."""
    lines: list[str] = []
    for rows in read("kernels-time").values():
        lines += [f"On {place(rows[0])}, {DTYPE}, medians of {rows[0]['runs']} rounds:", ""]
        both = [row for row in rows if (row["mode"], row["dtype"]) == ("both", DTYPE)]
        for (what,), of_what in by(both, "what").items():
            lines += [*_by_size(of_what, f"{what}: forward and backward, × eager", "ratio of times", " / eager"), ""]
            if "cuda" in rows[0]["versions"]:
                lines += [*_by_size(of_what, f"{what}: share of a copy's GB/s", "ratio of GB/s", " / copy"), ""]
    return "\n".join(lines[:-1]) + "\n"


def _by_size(rows: Rows, title: str, unit: str, rival: str) -> list[str]:
    """A line for each method, a column for each size."""
    medians = {
        (row["implementation"].removesuffix(rival), row["size"]["n"]): f"{row['median']:.2f}"
        for row in rows
        if row["unit"] == unit
    }
    sizes = sorted({n for _, n in medians})
    methods = dict.fromkeys(name for name, _ in medians)
    cells = ([name, *(medians.get((name, n), "–") for n in sizes)] for name in methods)
    return table([title, *(f"2^{n.bit_length() - 1}" for n in sizes)], cells)
