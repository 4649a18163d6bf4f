"""`benchmarks.gpu`: parts that fail, are blocked, broken off or put off; a dry run; the pages made of rows."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from benchmarks import pages, report, rows
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import issue_slots, progress, slots, steps, training, ways
from benchmarks.gpu import memory as gpu_memory
from benchmarks.gpu import tests as gpu_tests
from benchmarks.gpu.device import CountedBooks
from benchmarks.gpu.remarks import only_a_device_shows
from benchmarks.gpu.steps import GROUPS, STEPS, Part, Rest, parts
from benchmarks.rows import Row, summary
from coefficients import command

ROOT = Path(__file__).parents[1]
WITHOUT = ROOT / "tests" / "without"
CPU = torch.device("cpu")
Run = Callable[..., int]


def environment() -> dict[str, str]:
    """Without the packages that a machine with a GPU may lack, nor what a make around the tests hands on."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return {**outside, "PYTHONPATH": f"{WITHOUT}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}


def test_what_a_gpu_needs_imports_without_the_packages_that_may_be_missing() -> None:
    modules = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for folder in ("benchmarks/gpu", "benchmarks/kernels", "benchmarks/rivals", "kernels", "codegen")
        for path in (ROOT / folder).rglob("*.py")
        if "generated" not in path.parts
    )
    code = f"""
import importlib
from importlib.util import find_spec
for name in ("numba", "flint", "joblib", "matplotlib", "threadpoolctl", "sklearn", "pyoperon", "jsonschema", "onnx"):
    assert find_spec(name) is None, name
for name in {[*modules, "benchmarks.report", "benchmarks.slack", "benchmarks.accuracy.__main__"]!r}:
    importlib.import_module(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_without_flint_what_needs_it_says_so_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "codegen", "emit", "--fn", "tanhshrink"],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (command.MISUSED, "")
    assert done.stderr == (
        "codegen: python-flint must be installed for ball arithmetic, got none; pip install python-flint\n"
    )


# The driver, with parts of a moment each.

SCRIPT = """
import json, pathlib, sys, time
out, rest = pathlib.Path(sys.argv[sys.argv.index("--out") + 1]), sys.argv[1:]
with open({log!r}, "a") as log: log.write(" ".join(rest[:1] + rest[3:]) + chr(10))
kind = rest[0]
if kind.startswith("slow"): time.sleep(60)
if kind.startswith("test"):
    out.write_text(pathlib.Path({tests!r}).read_text())
    sys.exit(bool(out.read_text()))
if kind.startswith("bad"): print("what went wrong"); sys.exit(1)
out.write_text(json.dumps({{"of": kind}}) + chr(10))
"""


class Driven:
    """The command over made-up parts; `ran` has what they were called with."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.log, self.tests = folder, folder / "ran", folder / "failing"
        self.tests.write_text("")
        self.script = folder / "part.py"
        self.script.write_text(SCRIPT.format(log=str(self.log), tests=str(self.tests)))
        monkeypatch.setattr(gpu, "root", lambda: folder)
        monkeypatch.setattr(gpu, "parts", lambda asked, _: [part for part in self.parts if part.step in asked])
        monkeypatch.setattr(progress, "sources", lambda: self.sources)
        monkeypatch.setattr(Part, "command", property(lambda part: [sys.executable, str(self.script), *part.words]))
        self.sources = "one"
        self.parts: list[Part] = []

    def __call__(self, *options: str) -> int:
        return command.run("gpu", lambda: gpu.main(["--dry", *options]))

    @property
    def ran(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    @property
    def results(self) -> Path:
        return self.folder / "build" / "gpu" / "dry" / "results"


def part(step: str, name: str, *rests: Rest, seconds: int = 1, of: str = "") -> Part:
    return Part(step, name, (name,), seconds, of if step != "tests" else "", rests)


@pytest.fixture
def driven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driven:
    return Driven(tmp_path, monkeypatch)


def test_a_part_that_fails_keeps_no_other_and_is_what_the_next_call_runs(driven, capfd):
    driven.parts = [
        part("speed", "one", of="times"),
        part("speed", "bad", of="times"),
        part("speed", "two", of="times"),
    ]
    assert driven() == command.BAD
    out, err = capfd.readouterr()
    assert driven.ran == ["one", "bad", "two"]
    assert "what went wrong" in err
    assert "failed: speed/bad" in out
    # The rows of all parts of a kind, in their order.
    assert (driven.results / "times.jsonl").read_text() == '{"of": "one"}\n{"of": "two"}\n'
    driven.script.write_text(driven.script.read_text().replace('"bad"', '"no"'))
    assert driven() == command.GOOD
    assert driven.ran == ["one", "bad", "two", "bad"]
    assert (driven.results / "times.jsonl").read_text() == '{"of": "one"}\n{"of": "bad"}\n{"of": "two"}\n'


def test_a_test_that_fails_blocks_what_rests_on_it_and_nothing_else(driven, capfd):
    driven.parts = [
        part("tests", "test-a"),
        part("speed", "gelu", Rest("test-a", "gelu")),
        part("speed", "silu", Rest("test-a", "silu")),
        part("speed", "all", Rest("test-a", r"\[(\w+)\]", r"\1")),
        part("memory", "free"),
    ]
    driven.tests.write_text("tests/x.py::test[gelu]\n")
    assert driven() == command.BAD
    assert driven.ran == ["test-a", "silu", "all --without gelu", "free"]
    out, err = capfd.readouterr()
    assert "blocked: speed/gelu" in out
    assert "speed/gelu: blocked, 0 s; it rests on tests/x.py::test[gelu]" in err
    # Mended, the tests run again, and then what was blocked.
    driven.tests.write_text("")
    assert driven() == command.GOOD
    assert driven.ran[4:] == ["test-a", "gelu"]


def test_tests_that_break_off_block_all_that_rests_on_the_group(driven):
    driven.parts = [part("tests", "test-a"), part("speed", "gelu", Rest("test-a", "gelu")), part("memory", "free")]
    driven.tests.write_text("test-a: pytest ended with -11\n")
    assert driven() == command.BAD
    assert driven.ran == ["test-a", "free"]


def test_what_is_not_expected_to_end_in_time_is_left_for_the_next_call(driven, capfd):
    driven.parts = [part("speed", "long", seconds=500), part("speed", "short", seconds=5)]
    assert driven("--limit", "60") == command.BAD
    assert driven.ran == ["short"]
    assert "left for the next call: speed/long" in capfd.readouterr().out
    assert driven("--limit", "600") == command.GOOD
    assert driven.ran == ["short", "long"]


def test_other_sources_and_a_damaged_file_begin_anew(driven, capfd):
    driven.parts = [part("speed", "one")]
    assert [driven(), driven()] == [command.GOOD] * 2
    assert driven.ran == ["one"]
    driven.sources = "two"
    assert driven() == command.GOOD
    assert "the sources are not those of the last call" in capfd.readouterr().err
    (driven.folder / "build" / "gpu" / "dry" / "progress.json").write_text('{"sources": ')
    assert driven() == command.GOOD
    assert "is damaged: all begins anew" in capfd.readouterr().err
    assert driven("--again") == command.GOOD
    assert driven.ran == ["one"] * 4


@pytest.mark.parametrize("how", ["--again", "sources", "damaged"])
def test_rows_of_other_sources_are_not_published(how, driven):
    driven.parts = [
        part("tests", "test-a"),
        part("speed", "one", of="times"),
        part("speed", "two", Rest("test-a", "gelu"), of="times"),
    ]
    assert driven() == command.GOOD
    assert (driven.results / "times.jsonl").read_text() == '{"of": "one"}\n{"of": "two"}\n'
    driven.tests.write_text("tests/x.py::test[gelu]\n")
    if how == "sources":
        driven.sources = "two"
    elif how == "damaged":
        (driven.folder / "build" / "gpu" / "dry" / "progress.json").write_text("{")
    assert driven(*["--again"] * (how == "--again")) == command.BAD
    assert (driven.results / "times.jsonl").read_text() == '{"of": "one"}\n'


def test_rows_of_a_part_that_failed_in_some_of_it_are_published_with_others(driven):
    driven.parts = [part("speed", "half", of="times"), part("speed", "one", of="times")]
    script = driven.script.read_text()
    driven.script.write_text(script + 'sys.exit(kind == "half")\n')
    assert driven() == command.BAD
    assert (driven.results / "times.jsonl").read_text() == '{"of": "half"}\n{"of": "one"}\n'
    driven.script.write_text(script + "sys.exit(3)\n")  # what ends so may have left anything
    assert driven() == command.BAD
    assert not (driven.folder / "build" / "gpu" / "dry" / "rows" / "speed-half.jsonl").exists()


def test_steps_run_by_themselves(driven):
    driven.parts = [part("speed", "one"), part("memory", "two"), part("training", "three")]
    assert driven("--steps", "training speed") == command.GOOD
    assert driven.ran == ["one", "three"]


def test_on_a_gpu_patience_is_a_multiple_of_what_is_expected(driven, monkeypatch):
    given = []
    monkeypatch.setattr(gpu.running, "run", lambda words, log, timeout: given.append(timeout) or command.BAD)
    call = gpu.Call(
        progress.Progress(driven.folder / "a-gpu", "s"), [part("speed", "one", seconds=100)], 180, driven.results
    )
    call.all()
    driven.parts = [part("speed", "one", seconds=100)]
    driven()
    assert given == [pytest.approx(180, abs=5), gpu.MOST]


def test_a_part_that_does_not_end_is_ended(driven, monkeypatch, capfd):
    monkeypatch.setattr(gpu, "MOST", 2)
    driven.parts = [part("speed", "slow"), part("speed", "one")]
    begun = time.monotonic()
    assert driven() == command.BAD
    assert time.monotonic() - begun < 30
    assert driven.ran == ["slow", "one"]
    assert "speed/slow: failed, 2 s; no end after 2 s" in capfd.readouterr().err


def test_broken_off_by_ctrl_c_it_goes_on_where_it_was(driven, monkeypatch, capfd):
    driven.parts = [part("speed", "one"), part("speed", "slow")]
    run = gpu.running.run

    def interrupted(words: Sequence[str], log: Path, timeout: float) -> int:
        if "slow" in words:
            signal.setitimer(signal.ITIMER_REAL, 3)
        return run(words, log, timeout)

    def ring(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu.running, "run", interrupted)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        assert driven() == command.INTERRUPTED
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        monkeypatch.setattr(gpu.running, "run", run)  # else the next call's alarm rings in another test, and ends it
    assert "interrupted; what is done is kept" in capfd.readouterr().err
    driven.script.write_text(driven.script.read_text().replace("time.sleep(60)", "pass"))
    assert driven() == command.GOOD
    assert driven.ran == ["one", "slow", "slow"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dry", "--steps", "speed,memory"), "steps must be of tests, speed, memory, training, got 'speed,memory'"),
        (("--dry", "--steps", " "), "steps must be of tests, speed, memory, training, got ' '"),
        (("--dry", "--limit", "soon"), "limit must be a whole number from 1 to 86400, got 'soon'"),
        ((), "device must be there, got 'cuda', and torch sees no GPU"),
    ],
)
def test_wrong_options(options, said, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.run("gpu", lambda: gpu.main(options)) == command.MISUSED
    out, err = capsys.readouterr()
    assert said in err
    assert (out, err.count("\n")) == ("", 1)


# What it is to run.


def test_all_is_expected_to_end_in_25_minutes_and_each_step_in_ten() -> None:
    assert sum(part.seconds for part in parts(STEPS, False)) < 25 * 60
    for step in STEPS:
        assert sum(part.seconds for part in parts([step], False)) < gpu.MOST, step


def test_names_of_parts_are_one_each_and_rest_on_groups_that_run_before() -> None:
    for dry in (False, True):
        found = parts(STEPS, dry)
        assert len({(part.step, part.name) for part in found}) == len(found)
        assert all(rest.group in GROUPS for part in found for rest in part.rests_on)


# Names of tests as pytest has them, and the function that each is of.
FAILED = {
    "tests/kernels/test_exhaustive.py::test_fewbit_gradient_is_the_table[gelu_tanh-float16-1]": "gelu_tanh",
    "tests/kernels/test_exhaustive.py::test_fewbit_gradient_is_the_table[relu-bfloat16-1]": "relu",
    "tests/kernels/test_exhaustive.py::test_forward_is_within_one_unit_and_f_prime_too[silu-bfloat16]": "silu",
    "tests/kernels/test_exhaustive.py::test_forward_is_within_one_unit_and_f_prime_too[quick_gelu-float16]": (
        "quick_gelu"
    ),
    "tests/kernels/test_exhaustive.py::test_a_table_in_memory_is_searched_right[bfloat16-gelu-5]": "gelu",
    "tests/kernels/test_exhaustive.py::test_precision_bit_moves_y_by_one_unit_at_most[bfloat16-gelu]": "gelu",
    "tests/kernels/test_exhaustive.py::test_precision_bit_moves_y_by_one_unit_at_most[bfloat16-hardswish]": "hardswish",
    "tests/kernels/test_fused.py::test_act_linear_is_linear_of_act[torch-gelu]": "gelu",
    "tests/kernels/test_fused.py::test_gated_gradients[torch-swiglu-torch.float32-exact]": None,
}


@pytest.mark.parametrize(
    ("group", "name", "blocked", "without"),
    [
        ("exhaustive", "tests/kernels/test_fused.py::test_gated_gradients[torch-swiglu-torch.float32-exact]",
         {"kernels-bfloat16", "kernels-float32", "rivals-bfloat16", "rivals-float32", "rivals"}, {}),
        ("device", "tests/kernels/test_on_gpu.py::test_approximate_backprop_trains[8]", set(), {"8 bits,4 bits"}),
        ("elementwise", "tests/kernels/test_forward_ad_elementwise.py::test_random_functions",
         set(), {"nested forward AD"}),
        ("elementwise", "elementwise: pytest ended with -11", set(), {"nested forward AD"}),
    ],
)  # fmt: skip
def test_what_rests_on_a_test_is_blocked_or_runs_without_it(group, name, blocked, without, tmp_path, monkeypatch):
    found = progress.Progress(tmp_path, "s", {f"tests/{group}": progress.Outcome(progress.FAILED, failed=(name,))})
    call = gpu.Call(found, [], 60, tmp_path)
    ran = {}
    monkeypatch.setattr(call, "_ran", lambda name, _, out: ran.update({name: out}))
    outcomes = {one.name: call._one(one.name, one) for one in parts(STEPS, False) if one.step != "tests"}
    assert {name for name, one in outcomes.items() if one is not None} == blocked
    assert {out for out in ran.values() if out} == set(without)


def test_the_groups_files_are_there_and_patterns_find_their_tests() -> None:
    for group in GROUPS.values():
        assert all((ROOT / "tests" / name).is_file() for name in group.files)
    for name, function in FAILED.items():
        found = re.search(steps.FUNCTION, name)
        assert (found and found[1]) == function, name
        assert bool(re.search(steps.ACTIVATIONS, name)) == (function in ("gelu", "silu")), name
    of_device = "tests/kernels/test_on_gpu.py::test_devices_agree_in_float32[{}-invact]"
    assert re.search(steps.DEVICE.pattern, of_device.format("gelu"))
    assert not re.search(steps.DEVICE.pattern, of_device.format("threshold"))


def test_failures_are_read_from_pytests_summary(tmp_path):
    log = tmp_path / "log"
    log.write_text("F.\nFAILED tests/a.py::test_it[gelu-bfloat16] - assert 1 <= 0\nERROR tests/b.py\n1 failed\n")
    assert gpu_tests.failures(log) == ["tests/a.py::test_it[gelu-bfloat16]", "tests/b.py"]


def test_shards_share_the_tests() -> None:
    names: list[str] = []
    for shard in ("0/2", "1/2"):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/fitting/test_words.py"],
            cwd=ROOT, env={**os.environ, "ACTFIT_SHARD": shard}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        names += [line for line in done.stdout.splitlines() if "::" in line]
    whole = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/fitting/test_words.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert sorted(names) == sorted(line for line in whole.stdout.splitlines() if "::" in line)
    assert len(set(names)) == len(names) > 1


def test_counted_books_know_what_was_there() -> None:
    weight = torch.ones(8, 8)
    with CountedBooks() as books:
        view = weight.t()
        assert books.grown() == 0
        made = view @ weight
        assert books.grown() == made.nbytes
        del made
        assert (books.grown(), books.most()) == (0, 256)
    with pytest.raises(torch.OutOfMemoryError, match="of 100"), CountedBooks(100):
        torch.ones(8, 8)


def test_every_model_has_blocks_to_checkpoint_and_to_compile() -> None:
    for name, task in training.tasks(CPU, True).items():
        model, _, _ = task.model.built()
        assert list(ways.blocks(model)), name


def test_what_is_kept_is_what_is_accounted() -> None:
    model = ways.Model("llama", CPU, seq=16, changed=ways.TINY["llama"])
    for way in (ways.STOCK, "4 bits"):
        found = {row.what: row.median for row in gpu_memory._of_way(model, way, {"device": "d"})}
        assert found["kept, accounted"] == found["kept, recorded"] == found["kept, allocated"] > 0
        assert not [what for what in found if what.startswith("kept by")]


def test_the_largest_batch_is_the_largest_that_runs() -> None:
    task = training.tasks(CPU, True)["llama"]
    found = {row.what: row for row in training.measured(task, ways.STOCK, {"device": "d"}, 1)}
    largest, too_large = found["largest batch"], found["batch too large"]
    assert too_large.median == largest.median + 1
    again = training.Training(task, ways.STOCK)
    assert again.runs(int(largest.median), task.counted)
    assert not again.runs(int(too_large.median), task.counted)


def test_where_twice_the_batch_does_not_fit_what_is_measured_is_kept(monkeypatch):
    peak, seen = training.Training.peak, []

    def full(self: training.Training, batch: int, limit: float = float("inf")) -> int:
        seen.append(batch)
        if batch > 2:
            raise torch.OutOfMemoryError("no room")
        return peak(self, batch)

    monkeypatch.setattr(training.Training, "peak", full)
    task = training.tasks(CPU, True)["llama"]
    found = {row.what: row.median for row in training.measured(task, ways.STOCK, {"device": "d"}, 1)}
    assert seen[:3] == [2, 4, 2]
    assert (found["largest batch"], found["batch too large"]) == (2, 3)
    assert {"step", "peak"} < set(found)


def test_a_way_that_raises_makes_the_status_and_loses_no_rows(monkeypatch, tmp_path, capsys):
    def broken(*_: object) -> list[Row]:
        raise RuntimeError("no way")

    monkeypatch.setattr(training, "_largest", broken)
    monkeypatch.setattr(training, "QUICK_WAYS", (ways.STOCK,))
    out = tmp_path / "rows.jsonl"
    assert training.main(["--device", "cpu", "--quick", "--models", "llama", "--out", str(out)]) == command.BAD
    assert [json.loads(line)["what"] for line in out.read_text().splitlines()] == ["step", "peak"]
    assert "llama, stock: RuntimeError: no way" in capsys.readouterr().err


# Pages.


def as_of_a_gpu(text: str) -> str:
    """Rows as a GPU would have them."""
    changed = []
    for line in text.splitlines():
        row = json.loads(line)
        row["device"] = "nvidia-h200"
        row["versions"] = {**row["versions"], "cuda": "13.0", "triton": "3.6.0"}
        changed.append(json.dumps(row) + "\n")
    return "".join(changed)


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    """The committed rows, and room for others."""
    folder = tmp_path / "results"
    for path in (ROOT / "benchmarks" / "results").glob("*/*.jsonl"):
        copied = folder / path.parent.name / path.name
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_text(path.read_text())
    monkeypatch.setattr(rows, "RESULTS", folder)
    monkeypatch.setattr(pages, "RESULTS", folder)
    return folder


SENTENCES = {
    "README.md": "No GPU has timed",
    "docs/performance.md": "No GPU timings",
    "docs/accuracy.md": "On a GPU: nothing yet",
    "docs/approx_backprop.md": "No GPU was at hand",
    "docs/trainers.md": "not measured yet",
}


def check_pages_of_a_gpu() -> None:
    for name in (*SENTENCES, "docs/memory.md", "docs/kernels.md"):
        text = report.rendered(name)
        assert SENTENCES.get(name, "No rows of a GPU") not in text
        assert "No rows of a GPU yet" not in text
        assert "nvidia-h200" in text


def test_without_rows_of_a_gpu_the_pages_say_so(results):
    for name, sentence in SENTENCES.items():
        assert sentence in report.rendered(name)
    assert "No rows of a GPU yet." in report.rendered("docs/memory.md")


def slot(function: str, share: float, ratio: float, mode: str = "forward") -> list[Row]:
    base = {"what": function, "mode": mode, "size": {"n": 8, "bits": 0}, "dtype": "bfloat16", "device": "nvidia-h200"}
    base |= {"versions": {"torch": "2", "cuda": "13"}, "revision": "r"}
    return [
        Row(implementation="invact", unit="predicted share", **base, **summary([share])),
        Row(implementation="invact / copy", unit="ratio of times", **base, **summary([ratio])),
    ]


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.02, 1.05, 1.5, 2.1), "The model holds: 4 of 4 kernels are within 15 %"),
        ((1.02, 1.6, 1.1, 2.1), "The model does not hold: 2 of 4 kernels are within 15 %"),
    ],
)
def test_the_model_of_issue_slots_is_judged(ratios, verdict, results):
    shares = (0.2, 0.6, 1.5, 2.0)
    found = [row for at, pair in enumerate(zip(shares, ratios, strict=True)) for row in slot(f"f{at}", *pair)]
    rows.save(found, "issue-slots")
    text = "\n".join(slots.slots_lines())
    assert verdict in text
    assert "It says of 2 that arithmetic takes the time" in text
    assert "as an H200:" in text
    # The worst comes first: 60 % more than its bytes take.
    worst = next(line for line in text.splitlines() if line.startswith("| f"))
    assert worst.startswith("| f1," if ratios[1] > 1.5 else "| f0,") or ratios[1] < 1.5


def test_ranks_that_are_alike_and_ranks_that_are_not() -> None:
    assert slots._correlation([slots._rank([1.0, 2.0, 3.0]), slots._rank([10.0, 20.0, 90.0])]) == pytest.approx(1)
    assert slots._correlation([slots._rank([1.0, 2.0, 3.0]), slots._rank([9.0, 2.0, 1.0])]) == pytest.approx(-1)
    assert slots._correlation([slots._rank([1.0, 1.0]), slots._rank([1.0, 2.0])]) == 0


def test_predicted_shares_are_those_of_the_page() -> None:
    """docs/performance.md's table of GELU by invact, forward."""
    choice = issue_slots.chosen("gelu", "invact", 0, "bfloat16")
    assert issue_slots.model(CPU).name == "H200"
    share = issue_slots.predicted(choice, "forward", issue_slots.model(CPU))
    [row] = [line for line in report.kernels_section().splitlines() if line.startswith("| GELU, invact |")]
    assert row.split(" | ")[3] == f"{100 * share:.0f} %"


@pytest.mark.slow
def test_a_dry_run_does_every_step_without_the_packages_that_may_be_missing(results, tmp_path):
    """And its rows make the pages."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in (*progress.SOURCES, "pyproject.toml", "Makefile"):
        (tree / name).symlink_to(ROOT / name)
    done = subprocess.run(
        ["make", "gpu", "DRY=1", f"PYTHON={sys.executable}"],
        cwd=tree, env={**environment(), "PYTHONPATH": f"{WITHOUT}{os.pathsep}{tree}"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == command.GOOD, done.stderr
    assert [line.removeprefix("  - ") for line in done.stdout.splitlines()[-len(only_a_device_shows()) :]] == (
        only_a_device_shows()
    )
    for step in STEPS:
        assert f"{step}/" in done.stdout.splitlines()[0]
    made = tree / "build" / "gpu" / "dry" / "results"
    names = {part.rows for part in parts(STEPS, True) if part.rows}
    assert {path.stem for path in made.glob("*.jsonl")} == names
    folder = results / "nvidia-h200"
    folder.mkdir()
    for path in made.glob("*.jsonl"):
        (folder / path.name).write_text(as_of_a_gpu(path.read_text()))
    check_pages_of_a_gpu()
