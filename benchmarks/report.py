"""python -m benchmarks.report: put the committed measurements into README, between its markers.

No number there is typed by hand; a test holds that README says what the rows say.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.rows import RESULTS

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- benchmarks:begin -->\n", "<!-- benchmarks:end -->\n"


def section(rows: Iterable[dict[str, Any]], folder: str) -> str:
    """The Markdown between the markers."""
    found = {(row["what"], row["implementation"], row["mode"], row["size"].get("n"), row["unit"]): row for row in rows}

    def median(*key: object) -> float:
        return float(found[key]["median"])

    search, published, ours, fit = "fewbit search", "published (dense numpy)", "actfit partition", "actfit fit with certificate"
    ratio = median(search, "published / actfit", "contiguous", 4096, "ratio")
    lines = [
        f"GELU', contiguous, 32 levels, on one core of {found[search, ours, 'contiguous', 4096, 's']['device']}:",
        "",
        "| | time | error |",
        "|---|---|---|",
        f"| the paper's algorithm, 4096 cells (NumPy, dense) | {median(search, published, 'contiguous', 4096, 's'):.2f} s "
        f"| {median('fewbit error', published, 'contiguous', None, 'l2_squared'):.6g} |",
        f"| our search, the same cells: **{ratio:.0f}× faster** | {1000 * median(search, ours, 'contiguous', 4096, 's'):.1f} ms "
        "| the same |",
        f"| our whole fit, with refinement and certificate | {median('fewbit fit', fit, 'contiguous', None, 's'):.2f} s "
        f"| {median('fewbit error', fit, 'contiguous', None, 'l2_squared'):.6g} |",
        "",
        "The search alone with 256 levels "
        f"takes {median(search, ours, 'shared', 1_000_000, 's'):.0f} s and {median(search, ours, 'shared', 1_000_000, 'MB'):.0f} MB "
        "for a million cells (shared levels), "
        f"{median(search, ours, 'contiguous', 100_000, 's'):.1f} s and {median(search, ours, 'contiguous', 100_000, 'MB'):.0f} MB "
        "for a hundred thousand (contiguous):",
        "",
        f"![Time and memory against the number of cells](benchmarks/results/{folder}/fewbit-growth.png)",
    ]
    return "\n".join(lines) + "\n"


def rendered(readme: str) -> str:
    """`readme` with its section made from the newest committed rows."""
    path = sorted(RESULTS.glob("*/fewbit.jsonl"))[0]
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{section(rows, path.parent.name)}{END}{after}"


if __name__ == "__main__":
    README.write_text(rendered(README.read_text(encoding="utf-8")), encoding="utf-8")
