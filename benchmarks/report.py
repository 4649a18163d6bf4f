"""python -m benchmarks.report: put the committed measurements into README and docs, between markers.

No number there is typed by hand; a test holds that the pages say what the rows say.
"""

from benchmarks import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("report", lambda: parsers.plain("report", __doc__).parse_args())

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import budget
from benchmarks.accuracy import page as accuracy
from benchmarks.baselines.papers import INVACT_SAVINGS
from benchmarks.compression import page as compression
from benchmarks.gpu import models_page, notes
from benchmarks.gpu import page as gpu
from benchmarks.kernels import page as kernel_times
from benchmarks.memory import ACTS, COMPRESSED, CONVERSIONS, HALVED, MODELS, MODES
from benchmarks.pages import line, of_any, read, table
from benchmarks.rivals import page as rivals
from codegen.inspect import DIRECTIONS, kernel
from codegen.machine import GPUS
from coefficients import load
from coefficients.files import write_text
from fitting.words import upwards
from kernels.memory.saved import size
from kernels.methods.few_bit import FewBit
from kernels.methods.forward_derivative import ForwardDerivative
from kernels.methods.from_output import FromOutput

ROOT = Path(__file__).parents[1]


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
                # Issue slots only; docs/slack.md has each unit.
                gpus = (gpu for gpu in GPUS if gpu.name in ("H100", "H200"))
                shares = [count / gpu.lanes["issue"] / (moved / gpu.bytes_per_clock) for gpu in gpus]
                cells += [f"{count:.1f}", *(f"{100 * share:.0f} %" for share in shares)]
            lines.append(line(cells))
    return "\n".join(lines) + "\n"


def _memory() -> dict[tuple[str, str, str], float]:
    return {(row["what"], row["implementation"], row["mode"]): float(row["median"]) for row in of_any("memory")}


def models_section() -> str:
    """Bytes that models save for backward, stock and converted."""
    kept = _memory()
    lines = []
    for model in MODELS:
        whole = kept["kept for backward", "as it is", model]
        less = (1 - kept["kept for backward", way, model] / whole for way in CONVERSIONS)
        cells = (f"{100 * abs(saving):.1f} % {'less' if saving >= 0 else 'more'}" for saving in less)
        published = f"{INVACT_SAVINGS[model]} %" if model in INVACT_SAVINGS else ""
        lines.append([model, size(whole), *cells, published])
    return "\n".join(table(["", "as it is", *CONVERSIONS, "published, InvAct"], lines)) + "\n"


NAMED = {"bert": "BERT", "gpt2": "GPT-2", "vit": "ViT", "llama": "Llama 2 (7B)", "efficientnet-b0": "EfficientNet-B0"}
NAMED |= {"resnet50": "ResNet-50"}


def savings_section() -> str:
    """Bytes that well-known models save for backward, by `convert` with inputs and by `compress` to 4 bits."""
    kept_by = _memory()
    cells = []
    for model, name in NAMED.items():
        whole = kept_by["kept for backward", "as it is", model]
        kept = (kept_by["kept for backward", way, model] for way in ("auto", "compress, 4 bits"))
        cells.append([name, size(whole), *(f"{size(count)}, {_share(1 - count / whole)} less" for count in kept)])
    head = ["", "as it is", "`convert`: activations", "`compress`: every tensor, 4 bits"]
    note = "Counted as CUDA keeps it, at the model's usual length or size, without weights and inputs."
    return "\n".join([*table(head, cells), "", note]) + "\n"


def compress_section() -> str:
    """Bytes that models save for backward with compress, in bfloat16 and float32."""
    kept_by, lines = _memory(), []
    for model in MODELS:
        cells = [model]
        for what in (HALVED, "kept for backward"):
            whole = kept_by[what, "as it is", model]
            cells += [size(whole), *(f"{whole / kept_by[what, way, model]:.1f}×" for way in COMPRESSED)]
        lines.append(cells)
    bits = [way.partition(", ")[2] for way in COMPRESSED]
    head = ["", "bfloat16", *bits, "float32", *bits]
    note = (
        "Kept for backward as CUDA keeps it, without weights and inputs, as it is; and how many times less by compress."
        " llama: bfloat16 both times."
    )
    return "\n".join([*table(head, lines), "", note]) + "\n"


def _share(part: float) -> str:
    """A share in percent, with one decimal below 1 %."""
    return f"{100 * part:.{0 if part >= 0.01 else 1}f} %"


def mlp_section() -> str:
    """What an MLP saves for backward in eager mode, compiled and checkpointed."""
    kept = _memory()
    lines = [f"| | {' | '.join(MODES)} |", "|---" * (1 + len(MODES)) + "|"]
    for act in ACTS:
        units = (kept["kept by an MLP", act, mode] for mode in MODES)
        lines.append(f"| {act} | {' | '.join(f'{unit:g}' for unit in units)} |")
    return "\n".join(lines) + "\n"


# By page: the name of each section, and the function that makes it.
PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {
        "gpu-models": models_page.readme,
        "budget": budget.section,
        "compression": compression.readme,
        "savings": savings_section,
        "rivals": rivals.section,
        "gpu-note": notes.readme,
    },
    "docs/invact.md": {"invact": invact_section},
    "docs/kernels.md": {"kernel-times": kernel_times.section},
    "docs/performance.md": {
        "gpu-note": notes.performance,
        "kernels": kernels_section,
        "rivals": rivals.every_section,
        "gpu-speed": gpu.speed_section,
    },
    "docs/accuracy.md": {"accuracy": accuracy.section, "gpu-note": notes.accuracy},
    "docs/memory.md": {"models": models_section, "mlp": mlp_section},
    "docs/compress.md": {"gpu-models": models_page.section},
    "docs/eager.md": {"compress": compress_section, "peaks": budget.peaks_section},
    "docs/compression.md": {"compression": compression.section, "gpu-note": notes.compression},
}


def rendered(page: str) -> str:
    """The text of a page, with its sections made from the committed rows and the shipped files."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, make in PAGES[page].items():
        text = _put(text, name, make())
    return text


def _put(readme: str, name: str, text: str) -> str:
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->\n"
    before, rest = readme.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}{text}{end}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parsers.plain("report", __doc__).parse_args(arguments)
    texts = {page: rendered(page) for page in PAGES}
    for page, text in texts.items():
        write_text(ROOT / page, text)
    return command.GOOD


if __name__ == "__main__":
    sys.exit(command.run("report", main))
