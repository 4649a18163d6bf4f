"""python -m benchmarks.run SUITE ...: all measurements that answer one question, for the device at hand.

    accuracy   how far outputs and gradients are from the truth, by every method and rival
    memory     what is kept for backward: of blocks by every rival, of models and of coded partitions
    speed      seconds of kernels, blocks and nets beside eager, torch.compile and checkpoint; instructions of kernels
               and their prices
    training   does a training change? two and a half hours on two cores

Nothing is counted or timed while its tests fail. Each step is a command of its own, `python -m
benchmarks.STEP`, whose --help says what its rows are; rows go to benchmarks/results/<device>/, one format for all, and
`python -m benchmarks.report` makes the tables in README and docs from them. --quick measures little, tests nothing
and keeps no rows: to see that all of it runs. The status is 1 where tests or a step failed.
"""

from actfit.coefficients import command
from benchmarks import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("run", lambda: parsers.run(__doc__).parse_args())

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks.options import device as device_of
from benchmarks.options import one_of

PROG = "run"
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Step:
    """A command of the benchmarks; `placed`: it has --device; `brief`: it has --quick."""

    module: str
    options: tuple[str, ...] = ()
    placed: bool = True
    brief: bool = True

    def words(self, device: torch.device, quick: bool) -> list[str]:
        """The command to run."""
        placed = ["--device", device.type] if self.placed else []
        return [sys.executable, "-m", f"benchmarks.{self.module}", *self.options, *placed, *["--quick"] * quick]


SUITES = {
    "accuracy": (Step("accuracy"), Step("rivals", ("--what", "accuracy"))),
    "memory": (
        Step("rivals", ("--what", "memory")),
        Step("memory", placed=False, brief=False),
        Step("compression", ("--what", "bytes")),
    ),
    "speed": (
        Step("kernels"),
        Step("rivals", ("--what", "speed")),
        Step("compression", ("--what", "times")),
        Step("slack", placed=False, brief=False),
        Step("price", placed=False, brief=False),
    ),
    "training": (Step("training"),),
}
# Tests that must pass before a suite is measured: numbers of wrong code are worthless.
CODED = (
    "kernels/compression/test_codes.py",
    "kernels/compression/test_partitioner.py",
    "benchmarks/test_compression.py",
)
TESTS = {
    "memory": (*CODED, "benchmarks/test_rivals.py"),
    "speed": (
        *("kernels/test_exhaustive.py", "kernels/test_torch_ops.py", "kernels/test_fused.py"),
        *("kernels/test_torch_compile.py", *CODED, "benchmarks/test_rivals.py"),
    ),
    "training": ("kernels/test_torch_training.py",),
}


def green(suite: str) -> bool:
    """Whether the suite's TESTS pass; True for a suite without any."""
    files = [str(ROOT / "tests" / name) for name in TESTS.get(suite, ())]
    if not files:
        return True
    if find_spec("pytest") is None:
        raise command.Misuse(
            f"{suite} must be tested before it is measured, and pytest is missing: pip install -e '.[test]'"
        )
    command.say(PROG, f"{suite}: the tests of what is measured")
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", *files], cwd=ROOT, check=False).returncode == 0


def measured(suite: str, device: torch.device, quick: bool) -> bool:
    """Whether all steps of a suite succeeded; a step that fails does not stop the others."""
    if not quick and not green(suite):
        command.say(PROG, f"{suite}: not measured, its tests fail")
        return False
    good = True
    for step in SUITES[suite]:
        if quick and not step.brief:
            continue
        words = step.words(device, quick)
        command.say(PROG, " ".join(["python", *words[1:]]))
        status = subprocess.run(words, cwd=ROOT, check=False).returncode
        if status:
            command.say(PROG, f"benchmarks.{step.module} failed with status {status}")
            good = False
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.run(__doc__).parse_args(arguments)
    suites = list(dict.fromkeys(one_of("suite", name, tuple(SUITES)) for name in options.suites))
    device = device_of(options.device)
    results = [measured(suite, device, options.quick) for suite in suites]
    command.say(PROG, f"{', '.join(suites)}: {'all went well' if all(results) else 'not all went well, see above'}")
    return command.GOOD if all(results) else command.BAD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main))
