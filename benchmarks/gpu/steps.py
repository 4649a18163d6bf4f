"""What `benchmarks.gpu` runs: parts of four steps, how long each is expected to take, and which tests it rests on.

A part is a command of its own that takes less than ten minutes. Its seconds are expected of a GPU that moves 4 TB/s:
starting Python, compiling, and moving bytes; those of tests, of kernels in bfloat16 and of coded partitions were
measured on an H200 with 16 cores.
"""

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu import parsers

STEPS = parsers.STEPS
MOST_WORKERS = 14
START, GRAPH, KERNEL, BANDWIDTH = 12, 4.0, 0.5, 4e12  # seconds: a process, a graph, a Triton kernel; bytes a second


@dataclass(frozen=True)
class Part:
    """A command, in words after `python -m`; rows: the file that its rows belong to; it takes `-o FILE`, tests do not.

    rests_on: the groups of tests without whose passing it does not run.
    """

    step: str
    name: str
    words: tuple[str, ...]
    seconds: int
    rows: str = ""
    rests_on: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """What to run, but for where rows go."""
        return [sys.executable, "-m", *self.words]


def worker_count() -> int:
    """How many processes share a group of tests."""
    return max(1, min(MOST_WORKERS, (os.cpu_count() or 2) - 2))


def _seconds(graphs: int = 0, kernels: int = 0, moved: float = 0, besides: float = 0) -> int:
    return round(START + graphs * GRAPH + kernels * KERNEL + moved / BANDWIDTH + besides)


@dataclass(frozen=True)
class Group:
    """Tests that are run together; `dry`: what pytest runs of them where there is no GPU."""

    files: tuple[str, ...]
    kernels: int  # that are compiled, in all processes together
    besides: int  # seconds
    dry: tuple[str, ...]
    marked: str = ""  # only those of pytest's mark


GROUPS = {
    # Every function by six methods, both ways, in two dtypes; besides, what the judge of all inputs takes.
    "exhaustive": Group(
        ("kernels/test_exhaustive.py", "kernels/test_fused.py"),
        kernels=24 * 7 * 2 * 2,
        besides=8,
        dry=("kernels/test_exhaustive.py", "-k", "silu-bfloat16 and stored"),
    ),
    "standalone": Group(
        ("kernels/test_standalone.py",),
        7 * 3 * 2 * 4,
        18,
        ("kernels/test_standalone.py", "-k", "silu and bfloat16 and invact"),
    ),
    "kernels": Group(
        ("kernels/test_properties.py", "kernels/test_codes.py", "kernels/test_torch_ops.py"),
        kernels=250,
        besides=50,
        dry=("kernels/test_codes.py", "-k", "offsets_of_64_bits"),
    ),
    "elementwise": Group(
        tuple(f"kernels/test_elementwise{part}.py" for part in ("", "_torch", "_object", "_emitted")),
        kernels=150,
        besides=70,
        dry=("kernels/test_elementwise.py", "-k", "triton and mish and float32"),
    ),
    "device": Group(
        ("kernels/test_on_gpu.py", "kernels/memory/test_measure.py", "benchmarks/test_kernels.py"),
        kernels=60,
        besides=75,
        dry=("kernels/test_on_gpu.py", "-k", "twice_the_same and invact"),
        marked="gpu",
    ),
}


def _tests(dry: bool) -> Iterable[Part]:
    for name, group in GROUPS.items():
        files = group.dry if dry else group.files
        paths = (str(Path("tests", word)) if word.endswith(".py") else word for word in files)
        # What CUDA warns of, as that TF32 is off, is not known yet, and no reason to measure nothing.
        words = ["pytest", "-q", "-rfE", "-p", "no:cacheprovider", "-W", "default", *paths]
        if not dry:
            words += ["-n", str(worker_count()), "--dist", "worksteal", *(["-m", group.marked] if group.marked else [])]
        seconds = _seconds(kernels=group.kernels // worker_count(), besides=group.besides)
        yield Part("tests", name, tuple(words), seconds)


EXHAUSTIVE, CODES = ("exhaustive",), ("device",)
SIZES = (16, 22, 28)  # exponents of 2


def _speed(dry: bool) -> Iterable[Part]:
    quick = ("--device", "cpu", "--quick") if dry else ("--device", "cuda")
    sizes = () if dry else ("--sizes", ",".join(f"2^{size}" for size in SIZES))
    count, methods = 2, 10
    for dtype, itemsize in (("bfloat16", 2), ("float32", 4)):
        words = ("benchmarks.kernels", *quick, "--dtypes", dtype, *sizes, *(("--fn", "gelu") if dry else ()))
        # 42 rounds of each method, two tensors forward, three backward, five for both; and the cache read four times.
        moved = count * methods * 42 * sum(10 * itemsize * 2.0**size + 12 * 2.0**28 for size in SIZES)
        seconds = _seconds(count * len(SIZES), count * 8 * 2, moved)
        yield Part("speed", f"kernels-{dtype}", words, seconds, "kernels-time", EXHAUSTIVE)
    for dtype, shapes in (("bfloat16", 3), ("float32", 1)):
        asked = () if dry else ("--dtypes", dtype, "--sizes", RIVALS[dtype])
        words = ("benchmarks.rivals", "--what", "speed", *quick, *asked)
        if not dry or dtype == "float32":
            yield Part("speed", f"rivals-{dtype}", words, _seconds(9 * shapes), "rivals-speed", EXHAUSTIVE)
    seconds = _seconds(STACKED_GRAPHS)
    yield Part("speed", "compression", _stacks("times", dry), seconds, "compression-times", CODES)


def _stacks(what: str, dry: bool) -> tuple[str, ...]:
    """The command that compares coded partitions with their rivals."""
    asked = ("--device", "cuda", "--dtypes", "bfloat16", "--models", "GELU MLP,Llama-like", "--ways", ",".join(STACKED))
    quick = ("--device", "cpu", "--quick", "--dtypes", "float32")
    return ("benchmarks.compression", "--what", what, *(quick if dry else asked))


# Two networks, each compiled in three of these ways, forward and backward.
STACKED = (
    *("eager", "compiled", "checkpoint", "compiled checkpoint"),
    *("hook 4 bits", "compress exact", "compress 4 bits", "coded 4 bits"),
)
STACKED_GRAPHS = 2 * 3 * 2
RIVALS = {"bfloat16": "64x256,8192x1024,16384x4096", "float32": "8192x1024"}  # 2^16 to 2^28 elements between layers


def _memory(dry: bool) -> Iterable[Part]:
    quick = ("--device", "cpu", "--quick") if dry else ("--device", "cuda")
    words = ("benchmarks.rivals", "--what", "memory", *quick)
    # Inductor's cache on disk has the graphs of the times.
    yield Part("memory", "rivals", words, _seconds(besides=10), "rivals-memory", EXHAUSTIVE)
    seconds = _seconds(besides=50)
    yield Part("memory", "compression", _stacks("bytes", dry), seconds, "compression-bytes", CODES)


def _whole_models(dry: bool) -> Iterable[Part]:
    quick = ("--device", "cpu", "--quick") if dry else ("--device", "cuda")
    # An H100 took 3 to 9 seconds a way; Inductor compiles a layer, forward and backward, in some 20, for a plan thrice.
    ways = {"": (parsers.MODEL_WAYS, 60), "-compiled": (parsers.COMPILED_MODEL_WAYS, 250)}
    models = [name for name in parsers.MODELLED if name != "llama-lora" or find_spec("peft")]
    for suffix, (of_part, seconds) in ways.items():
        for model in models[:2] if suffix or dry else models:
            if not (dry and suffix):  # a CPU would compile for minutes
                words = ("benchmarks.gpu.models", *quick, "--models", model, "--ways", ",".join(of_part))
                yield Part("models", f"{model}{suffix}", words, seconds, "gpu-models", CODES)


_OF_STEP: dict[str, Callable[[bool], Iterable[Part]]] = {
    "tests": _tests,
    "speed": _speed,
    "memory": _memory,
    "models": _whole_models,
}


def parts(steps: Iterable[str], dry: bool) -> list[Part]:
    """Those of some steps, in order; dry: tiny, on the CPU."""
    return [part for step in STEPS if step in steps for part in _OF_STEP[step](dry)]


def root() -> Path:
    """The folder of the project."""
    return Path(__file__).parents[2]
