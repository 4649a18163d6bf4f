"""The sentences about GPUs in README and docs, made of the rows of GPUs."""

from benchmarks.gpu.parsers import GROUPS
from benchmarks.gpu.steps import TESTS
from benchmarks.pages import Rows, on_gpus


def _timed(name: str = "kernels-time") -> str:
    """The GPUs that rows of this name are of."""
    return " and ".join(on_gpus(name))


def readme() -> str:
    """Who has timed the kernels, and where it stands."""
    return (
        f"The kernels were timed on {_timed()}: [speed](docs/performance.md#on-a-gpu).\n"
        "On a CPU their reference runs, in PyTorch and loops that Numba compiles.\n"
    )


def performance() -> str:
    """What is on docs/performance.md."""
    below = "are [below](#on-a-gpu). First the model by which kernels were written, and counted, in\n"
    return f"Timings on {_timed()} {below}"


def compression() -> str:
    """Which GPUs have run the codes, for docs/compression.md."""
    return f"Timed on {_timed('compression-times')}, [below](#beside-the-rivals), and on no other GPU.\n"


def accuracy() -> str:
    """What was seen of outputs on a GPU, for docs/accuracy.md: by the kernels' tests, and by who timed them."""
    tests, timed, lines = on_gpus(TESTS), on_gpus("kernels-time"), []
    for device in dict.fromkeys([*tests, *timed]):
        compared = "; before a time was taken, each kernel was compared with its reference" * (device in timed)
        lines.append(f"- On {device}: {_tested(tests.get(device, []))}{compared}.\n")
    return f"{''.join(lines)}- On other GPUs: nothing.\n"


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
