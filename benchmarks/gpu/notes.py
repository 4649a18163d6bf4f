"""The sentences about GPUs in README and docs, for as long as there are no rows of any, and once there are."""

from benchmarks.gpu.parsers import GROUPS
from benchmarks.gpu.steps import TESTS
from benchmarks.pages import Rows, on_gpus

FIRST = "by-hand-on-an-h200"  # the section of docs/performance.md on what was measured by hand


def timed() -> list[str]:
    """The GPUs that kernels were timed on."""
    return list(on_gpus("kernels-time"))


def _listed(devices: list[str]) -> str:
    return " and ".join(devices)


def readme() -> str:
    """Who has timed the kernels, and where it stands."""
    if devices := timed():
        pages = {
            "gpu-memory": "[memory](docs/memory.md#on-a-gpu)",
            "gpu-training": "[training](docs/trainers.md#on-a-gpu)",
        }
        made = ["[speed](docs/performance.md#on-a-gpu)", *(page for kind, page in pages.items() if on_gpus(kind))]
        return (
            f"The kernels were timed on {_listed(devices)}: {', '.join(made)}.\n"
            "On a CPU their reference runs, in PyTorch and loops that Numba compiles.\n"
        )
    return (
        "No GPU has timed the kernels yet (`make gpu` does); their machine code is [counted](docs/slack.md). On a CPU\n"
        "their reference in plain PyTorch is timed.\n"
    )


def performance() -> str:
    """What is on docs/performance.md."""
    if devices := timed():
        return (
            f"Timings on {_listed(devices)} are [below](#on-a-gpu). First the model by which kernels were"
            " written, and counted, in\n"
        )
    return "**No GPU timings are on this page yet.** It has the model by which kernels were written and counted, in\n"


def trainers() -> str:
    """What to expect of time, for docs/trainers.md."""
    if devices := list(on_gpus("gpu-training")):
        return f"- **Time on a GPU**: measured on {_listed(devices)}, [below](#on-a-gpu).\n"
    return (
        f"- **Time on a GPU**: [some steps](performance.md#{FIRST}) on an H200. The kernels are one pass over memory\n"
        "  each way, and most are [bound by it](performance.md), by count of instructions.\n"
    )


def accuracy() -> str:
    """What was seen of outputs on a GPU, for docs/accuracy.md: by the kernels' tests, and by who timed them."""
    tests, lines = on_gpus(TESTS), []
    for device in dict.fromkeys([*tests, *timed()]):
        compared = "; before a time was taken, each kernel was compared with its reference" * (device in timed())
        lines.append(f"- On {device}: {_tested(tests.get(device, []))}{compared}.\n")
    if lines:
        return f"{''.join(lines)}- On other GPUs: nothing.\n"
    return (
        "- On a GPU: nothing. The interpreter does what the kernel's text says; it does not show races or what a\n"
        "  compiler makes of it.\n"
    )


def _tested(rows: Rows) -> str:
    """What the kernels' tests say, from rows of how many tests of each group fail."""
    if not rows:
        return "the kernels' tests were not run"
    failures = {row["implementation"]: int(row["median"]) for row in rows}
    at = f"at {' and '.join(sorted({row['revision'] for row in rows}))}"
    groups = {
        group: "not run" if group not in failures else f"{failures[group]} fail" if failures[group] else "all pass"
        for group in GROUPS
    }
    if set(groups.values()) == {"all pass"}:
        return f"all tests of the kernels passed {at}, at all 16-bit inputs among them"
    return f"the kernels' tests by group {at}: {', '.join(f'{group} {result}' for group, result in groups.items())}"


def compression() -> str:
    """Whether a GPU has run the codes, for docs/compression.md."""
    if devices := list(on_gpus("compression-times")):
        return f"Timed on {_listed(devices)}, [below](#beside-the-rivals), and on no other GPU.\n"
    return "No GPU has timed coded partitions yet.\n"


def approximate() -> str:
    """What was measured of approximate backprop, for docs/approx_backprop.md."""
    if devices := list(on_gpus("gpu-training")):
        return f"- Timed on {_listed(devices)}, in [steps of training](trainers.md#on-a-gpu), and on no other GPU.\n"
    return (
        "- The Triton kernels equal their PyTorch reference bit for bit, in Triton's interpreter and on an H200, and"
        " compile for\n  sm_80 and sm_90 without spills; steps of training by approximate backprop have not been"
        " timed.\n"
    )
