"""Python processes that need not import what takes long: forks of one that has, and has none of our modules."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# A line of stdin is a call; a line of stdout its exit status. The fork goes on below the loop, and ends as any process.
_SERVER = """
import json, os, runpy, sys
import flint, networkx, numba, scipy.optimize, scipy.stats, sympy, torch._dynamo
import torch._functorch.aot_autograd, torch._inductor.pattern_matcher
numba.core.registry.cpu_target.target_context
for line in sys.stdin:
    call = json.loads(line)
    if not (child := os.fork()):
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
os.chdir(call["folder"])
for number, name in enumerate([os.devnull, call["out"], call["err"]]):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
sys.argv = call["words"]
if call["module"]:
    runpy.run_module(call["module"], run_name="__main__", alter_sys=True)
else:
    exec(compile(call["code"], "<string>", "exec"), {"__name__": "__main__"})
"""


class Forks:
    """Runs snippets and modules as `python -c` and `python -m` do; a context, in which the one process lives.

    Parameters
    ----------
    options
        Of Python: "-W", "error".
    environment
        The variables of all processes.
    """

    def __init__(self, *options: str, environment: dict[str, str]) -> None:
        words = [sys.executable, *options, "-c", _SERVER]
        self._server = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )

    def __enter__(self) -> "Forks":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def code(self, code: str, folder: Path) -> tuple[int, str, str]:
        """Exit status, stdout and stderr of a snippet that runs in a folder."""
        return self._run(folder, code=code, module="", words=["-c"])

    def module(self, module: str, words: list[str], folder: Path) -> tuple[int, str, str]:
        """Likewise of a module with arguments."""
        return self._run(folder, code="", module=module, words=[module, *words])

    def _run(self, folder: Path, **call: Any) -> tuple[int, str, str]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        out, err = (folder / f"{os.getpid()}.{name}" for name in ("stdout", "stderr"))
        print(json.dumps({"folder": str(folder), "out": str(out), "err": str(err), **call}), file=self._server.stdin)
        self._server.stdin.flush()
        status = int(self._server.stdout.readline())
        printed = [path.read_text(encoding="utf-8") for path in (out, err)]
        for path in (out, err):
            path.unlink()
        return status, printed[0], printed[1]
