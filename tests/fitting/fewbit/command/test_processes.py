"""python -m fitting.fewbit as a whole process: what it imports, closed outputs, Ctrl-C."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coefficients import document as documents
from tests.fitting.fewbit.command.running import environment, files, posix, process, stored

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def imported() -> set[str]:
    """What a run imports that had better be imported by those who need it."""
    code = (
        "import sys\nfrom fitting.fewbit.__main__ import main\nmain(['--fn', 'gelu', '--bits', '1', '--out', '-'])\n"
        "print({'torch', 'triton', 'matplotlib', 'scipy.stats', 'dask', 'distributed', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    return set(re.findall(r"'([\w.]+)'", done.stdout.splitlines()[-1]))


def test_a_uniform_fit_imports_no_more_than_it_needs(imported: set[str]) -> None:
    assert imported == {"numpy"}


@posix
def test_outputs_that_take_nothing(folder: Path) -> None:
    words = ("--fn", "relu", "--bits", "1")
    reading, writing = os.pipe()
    os.close(reading)
    done = process(*words, stdout=writing)
    assert (done.returncode, done.stderr) == (141, "")
    done = process("--help", stdout=writing)
    assert (done.returncode, done.stderr) == (141, "")
    os.close(writing)
    with open("/dev/full", "w") as full:
        done = process(*words, "--out", "-", stdout=full)
    assert (done.returncode, done.stderr) == (2, "fewbit: cannot write the output: No space left on device\n")
    for closed, status in ((">&-", 0), (">&- 2>&-", 0)):
        done = process(*words, "--out", "-", before=("sh", "-c", f'exec "$@" {closed}', "sh"))
        assert (done.returncode, done.stderr) == (status, "")
    done = process(*words, "--bits", "0", before=("sh", "-c", 'exec "$@" 2>&-', "sh"))
    assert (done.returncode, done.stdout) == (2, "")


def test_a_stdout_of_plain_ascii(folder: Path) -> None:
    done = process("--fn", "silu", "--bits", "1", "--plot", "é.png", env=environment(PYTHONIOENCODING="ascii"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nerror   integral of (f'-q)^2 w = 0.21" in done.stdout
    assert done.stdout.endswith("plot    wrote \\xe9.png\n")


@posix
@pytest.mark.parametrize(
    "words", [["--all", "--jobs", "2"], ["--fn", "gelu", "--max-error", "1e-9"]], ids=["sweep", "fit"]
)
@pytest.mark.parametrize("after", [0.2, 2.0])
def test_ctrl_c(words: list[str], after: float, folder: Path) -> None:
    """As a terminal sends it: to the command and all its children."""
    running = subprocess.Popen(
        [sys.executable, "-m", "fitting.fewbit", *words],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a shell's background
    )
    try:
        time.sleep(after)
        if running.poll() is not None:
            pytest.skip("it was done already")
        os.killpg(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=30)
        assert not left_over(running.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
    assert running.returncode == 130
    assert err in ("interrupted\n", "fewbit: interrupted; files are whole or not there\n")
    made = files()
    assert not [name for name in made if not re.fullmatch(r"actfit/coefficients/\w+/fewbit-\dbit\.v1\.json", name)]
    assert all(documents.validate(stored(name)) for name in made)


def left_over(group: int) -> bool:
    """Whether processes of the group live on, after a moment to end."""
    for _ in range(50):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True
