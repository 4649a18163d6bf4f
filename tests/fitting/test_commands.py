"""Common behaviour of both commands of fitting: refusals of shared options, help, closed outputs, Ctrl-C."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from actfit.coefficients import document as documents
from actfit.fitting.activations import names
from actfit.fitting.invact.formats import FORMATS
from tests.fitting.commands import Command, environment, files, posix, process, stored

FINE = {"fewbit": "--bits 1", "invact": "--dtype float16"}  # what each asks for besides a function
each_command = pytest.mark.parametrize("name", FINE)


@pytest.fixture
def command(name: str, request: pytest.FixtureRequest) -> Command:
    """The command of that name in this process."""
    runner: Command = request.getfixturevalue(name)
    return runner


# Of one function: what is added to `FINE`.
OF_ONE: list[tuple[str, str]] = [
    ("", "say what to fit by one of --fn, --expr and --all, got none"),
    ("--fn gelu --all", "say what to fit by one of --fn, --expr and --all, got --fn and --all"),
    ("--fn ''", "unknown function ''"),
    ("--fn gleu", "unknown function 'gleu'; did you mean gelu or"),
    ("--fn 'x*sigmoid(x)'", "unknown function 'x*sigmoid(x)'; an expression goes to --expr"),
    ("--fn gelu --weight nrom", "unknown weight 'nrom': uniform, a distribution or a file; did you mean"),
    ("--fn gelu --weight ''", "weight must be uniform, a distribution like norm(0,2) or a file, got ''"),
    ("--fn gelu --weight 'poisson(3)'", "poisson is discrete: only continuous distributions, or a file of"),
    ("--fn gelu --weight 'norm(0,-1)'", "weight norm(0,-1)"),
    ("--fn gelu --weight missing.npy", "sample file must exist, got 'missing.npy'"),
    ("--fn elu --param alhpa=1", "unknown parameter 'alhpa'; elu has alpha"),
    ("--fn elu --param alpha", "param must be NAME=VALUE, each name once, got 'alpha'"),
    ("--fn elu --param alpha=1 --param 'alpha =2'", "param must be NAME=VALUE, each name once, got"),
    ("--fn elu --param alpha=nan", "parameter alpha must be finite, got nan"),
    ("--fn celu --param alpha=-1", "alpha must be positive, got alpha=-1"),
    ("--expr x-x", "expression must be a function of x, got 'x-x'"),
    ("--expr 'x+'", "expression is malformed at position"),
    ("--expr '__import__(1)'", "expression: unknown function '__import__'"),
    ("--fn gelu --name mine", "--name goes with --expr"),
    *((f"--expr x**3 --name '{name}'", f"got '{name}'") for name in ("../evil", "", "é")),
    ("--expr x**3 --name _a", "name must begin with a letter, got '_a'"),
    (f"--expr x**3 --name {'a' * 65}", "name must have at most 64 characters, got 65"),
    *((f"--expr x**3 --name {name}", "name must not be one of the catalogue's") for name in ("gelu", "swish")),
    ("--fn gelu --format xml", "format must be one of table, json, csv, latex, got 'xml'"),
    ("--fn gelu --out - --format csv", "--out - prints the JSON file; leave it out to print csv"),
    ("--fn gelu --out ''", "out must be a file, got ''"),
    ("--fn gelu --out no/such/x.json", "out must be in a folder that exists, got 'no/such/x.json'"),
    ("--fn gelu --plot no/such.png", "plot must be in a folder that exists, got 'no/such.png'"),
    ("--fn gelu --plot x.gif", "plot must end in one of .png, .svg, .pdf, got 'x.gif'"),
    ("--fn gelu --jobs 1", "--jobs and --scheduler go with --all"),
    ("--fn gelu more", "unrecognized arguments: more; see --help"),
]
OF_ALL: list[tuple[str, str]] = [
    *(
        (f"--all --{option} {value}", f"--{option} goes with one function, not with --all")
        for option, value in (("out", "''"), ("plot", "x.png"), ("format", "csv"), ("param", "a=1"))
    ),
    *((f"--all --jobs {jobs}", f"jobs must be at least 1, or -1 for one a core, got {jobs}") for jobs in (0, -2)),
    ("--all --jobs 1.5", "jobs must be a whole number, got '1.5'"),
    ("--all --jobs 1 --scheduler tcp://x:1", "say who does the work by one of --jobs and --scheduler"),
    ("--all --weight nrom", "unknown weight 'nrom'"),
    ("--frobnicate", "unrecognized arguments: --frobnicate; see --help"),
    ("--fn", "argument --fn: expected one argument; see --help"),
]


@each_command
@pytest.mark.parametrize(
    ("line", "message", "alone"),
    [*((line, message, True) for line, message in OF_ONE), *((line, message, False) for line, message in OF_ALL)],
)
def test_bad_input_is_one_line(name: str, line: str, message: str, alone: bool, command: Command) -> None:
    status, out, err = command(*shlex.split(line), *FINE[name].split() * alone)
    assert (status, out) == (2, "")
    assert err.startswith(f"{name}: ")
    assert message in err
    assert err.count("\n") == 1
    assert files() == []


@each_command
def test_help_is_short_lines(name: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = command("--help")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert all(word in out for word in (*names(), *(FORMATS if name == "invact" else ())))


@each_command
def test_the_plot_is_told_of(name: str, command: Command) -> None:
    lines = command("--fn", "relu", *FINE[name].split(), "--plot", "./r.svg")[1].splitlines()
    assert lines[-1] == "plot    wrote ./r.svg"
    published, drawn = files()
    assert published.startswith(f"actfit/coefficients/relu/{name}-")
    assert drawn == "r.svg"


@each_command
def test_json_is_the_file(name: str, command: Command) -> None:
    words = ("--fn", "relu", *FINE[name].split())
    out = command(*words, "--format", "json")[1]
    (path,) = files()
    assert out == Path(path).read_text("ascii")
    assert command(*words, "--out", "-") == (0, out, "")
    assert command(*words, "--out", "-", "--quiet", "--format", "json") == (0, out, "")
    assert files() == [path]
    assert command(*words, "--out", "x.json", "--format", "json") == (0, out, "")
    assert command(*words, "--out", "x.json", "--quiet") == (0, "", "")
    assert Path("x.json").read_text("ascii") == out


@pytest.mark.slow
def test_a_uniform_fit_imports_no_more_than_it_needs() -> None:
    code = (
        "import sys\nfrom fitting.fewbit.__main__ import main\nmain(['--fn', 'gelu', '--bits', '1', '--out', '-'])\n"
        "print({'torch', 'triton', 'matplotlib', 'scipy.stats', 'dask', 'distributed', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "{'numpy'}"


@pytest.mark.slow
@posix
def test_outputs_that_take_nothing(folder: Path) -> None:
    """All commands write by one function."""
    words = ("--fn", "relu", "--bits", "1")
    reading, writing = os.pipe()
    os.close(reading)
    for asked in (words, ("--help",)):
        done = process("fewbit", *asked, stdout=writing)
        assert (done.returncode, done.stderr) == (141, "")
    os.close(writing)
    with open("/dev/full", "w") as full:
        done = process("fewbit", *words, "--out", "-", stdout=full)
    assert (done.returncode, done.stderr) == (2, "fewbit: cannot write the output: No space left on device\n")
    done = process("fewbit", *words, "--format", "xml", before=("sh", "-c", 'exec "$@" 2>&-', "sh"))
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.slow
def test_a_stdout_of_plain_ascii(folder: Path) -> None:
    words = ("--fn", "silu", "--bits", "1", "--plot", "é.png")
    done = process("fewbit", *words, env=environment(PYTHONIOENCODING="ascii"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nerror   integral of (f'-q)^2 w = 0.21" in done.stdout
    assert done.stdout.endswith("plot    wrote \\xe9.png\n")


@pytest.mark.slow
@posix
@pytest.mark.parametrize(
    ("name", "words", "after"),
    [
        ("fewbit", "--fn gelu --bits 8 --joint", 0.2),  # while modules are imported
        ("invact", "--all --jobs 2", 2.5),
    ],
)
def test_ctrl_c(name: str, words: str, after: float, folder: Path) -> None:
    """As a terminal sends it: to the command and all its children."""
    running = subprocess.Popen(
        [sys.executable, "-m", f"fitting.{name}", *words.split()],
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
    assert err in ("interrupted\n", f"{name}: interrupted; files are whole or not there\n")
    made = files()
    assert not [path for path in made if not re.fullmatch(rf"actfit/coefficients/\w+/{name}-\w+\.v1\.json", path)]
    assert all(documents.validate(stored(path)) for path in made)


def left_over(group: int) -> bool:
    """Whether processes of the group are still alive after a moment."""
    for _ in range(50):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True
