"""python -m benchmarks.gpu: on a GPU, the tests of the kernels, then speed, memory and whole models.

    tests      the kernels' tests on the device, all 16-bit inputs among them, and modules that stand alone
    speed      every method and rival, forward and backward, beside eager and a copy; coded partitions
    memory     bytes of blocks by every rival, by the allocator; coded partitions
    models     steps of Llama and ViT at real size by `compress`, checkpoints and compiled ways: bytes, time, errors

About half an hour in all. A step is made of parts that take less than ten minutes each; what a call has done is kept in
build/gpu/<device>/, and the next call goes on there, as long as the sources are the same. A part that fails keeps no
other, but those that rest on tests that fail. Rows go to benchmarks/results/<device>/; afterwards
`python -m benchmarks.report` makes the tables in README and docs. The status is 0 where all that was asked for is done,
1 where something failed, is blocked or is left for the next call.
"""

from actfit.coefficients import command
from benchmarks.gpu import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("gpu", lambda: parsers.gpu(__doc__))
    command.exit_without("torch", "gpu", "install PyTorch and Triton")

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import rows
from benchmarks.clock import origin
from benchmarks.gpu import running
from benchmarks.gpu.progress import BLOCKED, DONE, FAILED, Outcome, Progress, resumed
from benchmarks.gpu.steps import STEPS, Part, parts, root
from benchmarks.options import device as device_of

PROG = "gpu"
PATIENCE = 2.5  # times what is expected, and no less than a minute, before a part is given up
MOST = 590  # seconds of one part


class Call:
    """One call of the command: what it does with parts, one after the other."""

    def __init__(self, progress: Progress, steps: Sequence[Part], limit: float, results: Path) -> None:
        self.progress, self.parts, self.limit, self.results = progress, steps, limit, results
        self.begun = time.monotonic()
        self.left: list[str] = []
        self.dry = progress.folder.name == "dry"

    def all(self) -> None:
        """Run every part that is not done, is not blocked and is expected to end in time."""
        for number, part in enumerate(self.parts, 1):
            name = f"{part.step}/{part.name}"
            if self.progress.done(name):
                said = f"done before, in {self.progress.outcomes[name].seconds:.0f} s"
            elif time.monotonic() - self.begun + part.seconds > self.limit:
                self.left.append(name)
                said = f"left for the next call: about {part.seconds} s are expected"
            else:
                command.say(PROG, f"{number} of {len(self.parts)}, {name}: about {part.seconds} s ...")
                outcome = self.outcome(name, part)
                self.progress.note(name, outcome)
                said = f"{outcome.state}, {outcome.seconds:.0f} s{f'; {outcome.said}' if outcome.said else ''}"
                if part.rows and outcome.state != BLOCKED and self.progress.rows(name).is_file():
                    self._publish(part.rows)
            command.say(PROG, f"{number} of {len(self.parts)}, {name}: {said}")

    def outcome(self, name: str, part: Part) -> Outcome:
        """Run a part; block it where it rests on tests that failed."""
        for group in part.rests_on:
            tests = self.progress.outcomes.get(f"tests/{group}")
            if tests is not None and tests.state != DONE:
                return Outcome(BLOCKED, said=f"it rests on {tests.failed[0] if tests.failed else group}")
        return self._ran(name, part)

    def _ran(self, name: str, part: Part) -> Outcome:
        out, log = self.progress.rows(name), self.progress.log(name)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.unlink(missing_ok=True)
        begun = time.monotonic()
        tested = part.step == "tests"
        words = part.command if tested else [*part.command, "--out", str(out)]
        patience = MOST if self.dry else max(60.0, PATIENCE * part.seconds)  # who knows what else a CPU does
        timeout = min(patience, MOST, max(30.0, self.limit - (begun - self.begun)))
        status = running.run(words, log, timeout, {"OMP_NUM_THREADS": "1", "CI": "true"} if tested else {})
        took = time.monotonic() - begun
        if tested:
            failed = running.failed_tests(status, log, self.dry)
            if not failed:
                return Outcome(DONE, took, "".join(running.tail(log, 1)).strip("= "))
            self._show(log)
            return Outcome(FAILED, took, f"{len(failed)} tests failed, {failed[0]}", failed)
        if status == command.GOOD and (not part.rows or out.is_file()):
            return Outcome(DONE, took)
        self._show(log)
        # What was measured counts, though it is said that some is wrong or left out, or time was up after it.
        if status not in (command.BAD, running.TIMED_OUT):
            out.unlink(missing_ok=True)
        what = f"no end after {timeout:.0f} s" if status == running.TIMED_OUT else f"status {status}"
        return Outcome(FAILED, took, f"{what}; all it said is in {log}")

    def _show(self, log: Path) -> None:
        for line in running.tail(log, 15):
            command.say(PROG, f"    {line[:400]}")

    def _publish(self, kind: str) -> None:
        """Write all rows of a kind that parts made with these sources into one file, where the tables look for them."""
        names = [f"{part.step}/{part.name}" for part in self.parts_of(kind)]
        outcomes = self.progress.outcomes
        every = [self.progress.rows(name) for name in names if name in outcomes and outcomes[name].state != BLOCKED]
        text = "".join(path.read_text("utf-8") for path in every if path.is_file())
        self.results.mkdir(parents=True, exist_ok=True)
        rows.write_text(self.results / f"{kind}.jsonl", text)

    def parts_of(self, kind: str) -> list[Part]:
        """The parts of all steps whose rows belong in one file."""
        return [part for part in parts(STEPS, self.dry) if part.rows == kind]


def _ended(call: Call, dry: bool) -> int:
    """Print what was made and what was not, and return the exit status."""
    states: dict[str, list[str]] = {}
    for part in call.parts:
        name = f"{part.step}/{part.name}"
        outcome = call.progress.outcomes.get(name)
        state = "left for the next call" if name in call.left or outcome is None else outcome.state
        states.setdefault(state, []).append(name)
    for state, names in states.items():
        print(f"{state}: {', '.join(names)}")
    made = sorted(call.results.glob("*.jsonl"))
    print(f"rows: {', '.join(path.name for path in made) or 'none'} in {call.results}")
    if not dry:
        print("tables: python -m benchmarks.report")
    return command.GOOD if set(states) <= {DONE} else command.BAD


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.gpu(__doc__, arguments)
    where = origin(device_of("cpu" if options.dry else "cuda"))
    folder = root() / "build" / "gpu" / ("dry" if options.dry else where["device"])
    progress, said = resumed(folder, again=options.again)
    if said:
        command.say(PROG, said)
    results = folder / "results" if options.dry else rows.RESULTS / where["device"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    command.say(PROG, f"{where['device']}; {versions}; revision {where['revision']}, sources {progress.sources}")
    call = Call(progress, parts(options.steps, options.dry), options.limit, results)
    try:
        call.all()
    except KeyboardInterrupt:
        command.say(PROG, f"interrupted; what is done is kept in {progress.folder}: the same command goes on")
        return command.INTERRUPTED
    return _ended(call, options.dry)


if __name__ == "__main__":
    sys.exit(command.run(PROG, main))
