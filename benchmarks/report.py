"""python -m benchmarks.report: put the committed measurements into README and docs, between markers, and draw README's.

No number there is typed by hand; a test holds that the pages say what the rows say.
"""

from actfit.coefficients import command
from benchmarks import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("report", lambda: parsers.plain("report", __doc__).parse_args())

import re
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from actfit.codegen.inspect import DIRECTIONS, kernel
from actfit.codegen.machine import GPUS
from actfit.coefficients import load
from actfit.coefficients.files import write_text
from actfit.fitting.words import upwards
from actfit.kernels.memory.saved import size
from actfit.kernels.methods.few_bit import FewBit
from actfit.kernels.methods.forward_derivative import ForwardDerivative
from actfit.kernels.methods.from_output import FromOutput
from benchmarks.accuracy import page as accuracy
from benchmarks.compression import page as compression
from benchmarks.gpu import models_page
from benchmarks.kernels import page as kernel_times
from benchmarks.memory import MODELS, STOCK, WAYS
from benchmarks.pages import line, of_any, read, table
from benchmarks.rivals import page as rivals
from benchmarks.training import page as training

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

INVACT_FILES = ("bfloat16-published", "bfloat16", "bfloat16-2bit", "float16", "float16-2bit", "float32")


def invact_section() -> str:
    """The shipped formulas for GELU and SiLU, and the paper's."""
    lines = [
        "| | instructions | RMS above the floor | \\|q − g\\| at most (proven) |",
        "|---|---|---|---|",
    ]
    for name, title in (("gelu", "GELU"), ("silu", "SiLU")):
        for dtype in INVACT_FILES:
            fit = load(name, f"invact-{dtype}")
            error, instructions = fit["error"], fit["solution"]["price"]["instructions"]
            published, above = dtype.endswith("published"), error["rms"] / error["floor_rms"] - 1
            what = "the paper's formulas in bfloat16" if published else dtype.replace("-2bit", ", two bits")
            share = "–" if dtype.startswith("float32") else f"{100 * above:.1f} %"
            lines.append(f"| {title}, {what} | {instructions} | {share} | {upwards(max(error['bound']))} |")
    return "\n".join(lines) + "\n"


def kernels_section() -> str:
    """Instructions an element of GELU's and SiLU's kernels, and their share of the time that memory takes."""
    lines = ["| | forward: instructions | H100 | H200 | backward: instructions | H100 | H200 |", "|---" * 7 + "|"]
    counts = {}
    for row in read("kernels")["sm_90"]:
        counts[row["implementation"], row["mode"], row["size"]["bits"], row["dtype"]] = row["median"]
    for name, title in (("gelu", "GELU"), ("silu", "SiLU")):
        for method in (FromOutput(), FewBit(3), ForwardDerivative()):
            cells, bits = [f"{title}, {method}"], method.arguments().get("bits", 0)
            for direction in DIRECTIONS:
                count = counts[name, f"{method.name} {direction}", bits, "bfloat16"]
                moved = kernel(name, method, "bfloat16").moved_bytes(direction, "bfloat16")
                # Issue slots only; docs/results/slack.md has each unit.
                gpus = (gpu for gpu in GPUS if gpu.name in ("H100", "H200"))
                shares = [count / gpu.lanes["issue"] / (moved / gpu.bytes_per_clock) for gpu in gpus]
                cells += [f"{count:.1f}", *(f"{100 * share:.0f} %" for share in shares)]
            lines.append(line(cells))
    return "\n".join(lines) + "\n"


def models_section() -> str:
    """Bytes that models save for backward, and how much less by `compress`."""
    kept = {(row["implementation"], row["mode"]): float(row["median"]) for row in of_any("memory")}
    cells = []
    for model in MODELS:
        whole = kept[STOCK, model]
        cells.append([model, size(whole), *(_less(kept[way, model], whole) for way in WAYS)])
    note = "Bytes without weights and inputs, in eager mode, and how much less `compress` saves."
    return "\n".join([*table(["", STOCK, *WAYS], cells), "", note]) + "\n"


def _less(count: float, whole: float) -> str:
    """By how many percent a count is less, with one decimal below 1 %."""
    part = 1 - count / whole
    return f"{100 * part:.{0 if part >= 0.01 else 1}f} %"


# By the names of their markers: the function that makes each section.
SECTIONS: dict[str, Callable[[], str]] = {
    "accuracy": accuracy.section,
    "compression": compression.section,
    "fits": compression.fits,
    "gpu-models": models_page.section,
    "gpu-models-brief": models_page.readme,
    "invact": invact_section,
    "kernel-times": kernel_times.section,
    "kernels": kernels_section,
    "models": models_section,
    "rivals": rivals.section,
    "training": training.section,
    "coded": training.coded_section,
}
MARKED = re.compile(r"(?<=^<!-- )([\w-]+)(:begin -->\n).*?(?=^<!-- \1:end -->$)", re.MULTILINE | re.DOTALL)


def rendered(page: Path) -> str:
    """The text of a page, with its sections made from the committed rows and the shipped files."""

    def section(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2]}{SECTIONS[match[1]]()}"

    return MARKED.sub(section, page.read_text(encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parsers.plain("report", __doc__).parse_args(arguments)
    texts = {page: rendered(page) for page in PAGES}
    for page, text in texts.items():
        write_text(page, text)
    if find_spec("matplotlib"):  # machines with GPUs may lack it
        from benchmarks import picture

        picture.draw()
    return command.GOOD


if __name__ == "__main__":
    sys.exit(command.run("report", main))
