"""The tables that `benchmarks.report` makes of the rows of `benchmarks.fewbit`."""

from typing import Any

from benchmarks.pages import Rows, read, table


def search_section() -> str:
    """Our search beside the published one, for each device."""
    return "\n".join(_search(rows, device) for device, rows in read("fewbit").items())


def _search(rows: Rows, folder: str) -> str:
    def median(what: str, implementation: str, unit: str, mode: str = "contiguous", n: int | None = None) -> float:
        key_of = (what, implementation, unit, mode, n)
        keys = ((row["what"], row["implementation"], row["unit"], row["mode"], row["size"].get("n")) for row in rows)
        return float(next(row["median"] for row, key in zip(rows, keys, strict=True) if key == key_of))

    def search(unit: str, mode: str = "contiguous", n: int = 4096) -> float:
        return median("fewbit search", "actfit partition", unit, mode, n)

    published, fit = "published (dense numpy)", "actfit fit with certificate"
    ratio = median("fewbit search", "published / actfit", "ratio", n=4096)
    slow = median("fewbit search", published, "s", n=4096)
    errors = [median("fewbit error", name, "l2_squared") for name in (published, fit)]
    shared = f"{search('s', 'shared', 1_000_000):.0f} s and {search('MB', 'shared', 1_000_000):.0f} MB"
    contiguous = f"{search('s', n=100_000):.1f} s and {search('MB', n=100_000):.0f} MB"
    lines = [
        f"GELU' in 32 contiguous levels, on {rows[0]['device']}:",
        "",
        "| | time | error |",
        "|---|---|---|",
        f"| the paper's algorithm, dense in NumPy, 4096 cells | {slow:.2f} s | {errors[0]:.6g} |",
        f"| our search on the same cells: **{ratio:.0f}× faster** | {1000 * search('s'):.1f} ms | the same |",
        f"| our whole fit, refined and certified | {median('fewbit fit', fit, 's'):.2f} s | {errors[1]:.6g} |",
        "",
        f"With 256 levels the search takes {shared} for a million cells (shared levels),",
        f"{contiguous} for a hundred thousand (contiguous):",
        "",
        f"![Time and memory against the number of cells](../benchmarks/results/{folder}/fewbit-growth.png)",
    ]
    return "\n".join(lines) + "\n"


def catalogue_section() -> str:
    """Time, memory and bytes of the tables of all functions, by bits."""
    lines: list[str] = []
    for device, rows in read("fewbit").items():
        medians = {
            (row["unit"], row["size"]["bits"]): row["median"] for row in rows if row["what"] == "fewbit catalogue"
        }
        widths = sorted({bits for _, bits in medians})
        functions = next(row["size"]["functions"] for row in rows if row["what"] == "fewbit catalogue")
        seconds = sum(medians["s", bits] for bits in widths)
        peak, size = max(medians["MB", bits] for bits in widths), sum(medians["B", bits] for bits in widths)
        lines += [
            "",
            f"All {functions} functions, {len(widths) * functions} tables in {seconds:.0f} s and at most {peak:.0f} MB,"
            f" on one core of {device}; the files take {size / 1e6:.1f} MB:",
            "",
            *table(
                ["bits", *map(str, widths)],
                [
                    ["seconds", *(f"{medians['s', bits]:.0f}" for bits in widths)],
                    ["peak memory, MB", *(f"{medians['MB', bits]:.0f}" for bits in widths)],
                    ["files, kB", *(f"{medians['B', bits] / 1000:.0f}" for bits in widths)],
                    ["largest gap", *(f"{medians['gap', bits]:.1e}" for bits in widths)],
                ],
            ),
        ]
    return "\n".join(lines[1:]) + "\n"


def joint_section() -> str:
    """The search for joint codes, with two numbers in a cell, beside that for f' alone."""
    lines: list[str] = []
    for device, rows in read("fewbit").items():
        searches = [row for row in rows if row["what"] == "joint search"]
        cells = [_of_size(searches, n, k) for n, k in dict.fromkeys(_size(row) for row in searches)]
        head = ["cells, codes", "f' alone", "f' and f", "times", "memory"]
        lines += ["", f"The search itself, for GELU on {device}:", "", *table(head, cells)]
    return "\n".join(lines[1:]) + "\n"


def _size(row: dict[str, Any]) -> tuple[int, int]:
    return row["size"]["n"], row["size"]["levels"]


def _of_size(rows: Rows, n: int, k: int) -> list[str]:
    medians = {(row["mode"], row["unit"]): row["median"] for row in rows if _size(row) == (n, k)}
    alone, both = medians["contiguous", "s"], medians["joint", "s"]
    memory = " and ".join(f"{medians[mode, 'MB']:.1f} MB" for mode in ("contiguous", "joint"))
    return [f"{n:,}, {k}", f"{alone:.3g} s", f"{both:.3g} s", f"{both / alone:.1f}", memory]
