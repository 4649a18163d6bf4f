"""The table that `benchmarks.report` makes of the kernels' times, for docs/kernels.md."""

from benchmarks.pages import Rows, by, read, table

EAGER = "eager"
DTYPE = "bfloat16"


def section() -> str:
    """Forward and backward of each method, as a multiple of eager's time: by themselves, and between two Linears."""
    lines: list[str] = []
    for device, rows in read("kernels-time").items():
        ratios = [row for row in rows if row["unit"] == "ratio of times" and row["mode"] == "both"]
        shown = [row for row in ratios if row["dtype"] == DTYPE]
        subjects = {what: _largest(them) for (what,), them in by(shown, "what").items()}
        names = list(dict.fromkeys(row["implementation"] for row in shown))
        found = {(row["what"], row["implementation"]): row["median"] for them in subjects.values() for row in them}
        cells = [
            [name.removesuffix(f" / {EAGER}"), *(_cell(found.get((what, name))) for what in subjects)] for name in names
        ]
        sizes = [f"{what}, {_size(them[0]['size'])}" for what, them in subjects.items()]
        versions = rows[0]["versions"]
        threads = " and one thread" if versions.get("threads") == "1" else ""
        values = sorted(row["median"] for them in by(ratios, "what", "dtype").values() for row in _largest(them))
        lines += [
            "",
            f"On {device} with torch {versions['torch']}{threads}, forward and backward together in {DTYPE}, as a "
            f"multiple of {EAGER}'s time:",
            "",
            *table(["", *sizes], cells),
            "",
            f"In all dtypes, {values[0]:.2f} to {values[-1]:.1f}. Medians of {rows[0]['runs']} rounds.",
        ]
    return "\n".join(lines[1:]) + "\n"


def _largest(rows: Rows) -> Rows:
    most = max(_elements(row["size"]) for row in rows)
    return [row for row in rows if _elements(row["size"]) == most]


def _elements(size: dict[str, int]) -> int:
    return size["n"] if "n" in size else size["tokens"] * size["width"]


def _size(size: dict[str, int]) -> str:
    return " × ".join(str(one) for one in size.values())


def _cell(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"
