"""Called as a Python: `forked.py -m MODULE ...`. What MODULE starts by `benchmarks.gpu.running` is forked from it, with
what most parts import there already; else each part imports torch and transformers for itself, for some seconds."""

import gc
import importlib
import os
import runpy
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

# torch._dynamo imports Triton, which tests have import itself as one that is interpreted: tests/conftest.py.
SHARED = (
    *(
        "pytest",
        "tests.conftest",
        "sympy",
        "torch._dynamo",
        "benchmarks.clock",
        "benchmarks.compression.ways",
        "actfit.codegen.standalone",
    ),
    *(f"transformers.models.{name}.modeling_{name}" for name in ("llama", "vit")),
)


def called(words: Sequence[str]) -> int:
    """The status of `-m MODULE ...` in this process."""
    _, module, *arguments = words
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run(words: Sequence[str], log: Path, timeout: float, environment: Mapping[str, str]) -> int:
    """As `benchmarks.gpu.running.run`, but a Python is forked, and takes as long as it will."""
    log.parent.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if not child:
        status = 1
        try:
            with log.open("wb") as out:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
            os.environ.update(environment)
            status = called(words[1:])
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    from benchmarks.gpu import running

    for name in SHARED:
        importlib.import_module(name)
    gc.freeze()
    running.run = run
    status = called(sys.argv[1:])
    gc.unfreeze()  # else what is torn down with Python is said to leak
    sys.exit(status)
