"""Every command handles --help, --version and bad options before it imports its libraries."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib import get_cachedir

from actfit.__main__ import COMMANDS
from actfit.coefficients import command, functions
from actfit.fitting import options
from actfit.fitting.invact import arguments
from actfit.kernels import names
from benchmarks import parsers

ROOT = Path(__file__).parents[1]
HEAVY = {
    *("sympy", "numpy", "scipy", "numba", "flint", "mpmath", "matplotlib", "joblib", "tqdm", "platformdirs"),
    *("torch", "triton", "transformers", "nbformat", "nbclient"),
}
# command -> what is wrong with it, and how that is said
BAD = {
    "actfit": (
        "fewbi",
        "actfit: command must be one of fewbit, invact, list, check, emit, inspect, memory, record, got",
    ),
    "actfit fewbit": ("--fn gelu --bits 9", "fewbit: bits must be a whole number from 1 to 8, got 9"),
    "actfit invact": ("--fn gelu --dtype int8", "invact: dtype must be one of bfloat16, float16, float32, got 'int8'"),
    "codegen": ("emit --fn gelu --bits nine", "codegen: bits must be a whole number from 1 to 8, got 'nine'"),
    "coefficients": ("list --root nowhere", "coefficients: root must be a folder of coefficient files, got 'nowhere'"),
    "actfit memory": ("--model mlp --bits 9", "memory: bits must be a whole number from 2 to 8, got '9'"),
    "actfit record": (
        "models --out x",
        "record: model must be module:function that gives model and inputs, got 'models'",
    ),
    "benchmarks.gpu": ("--steps nothing", "gpu: steps must be of tests, speed, memory, models, got 'nothing'"),
    "benchmarks.gpu.models": ("--models none", "gpu.models: models must be of llama-bare, vit-l, llama, llama-lora,"),
    "notebooks.gallery": ("--root nowhere", "gallery: --root must be a folder of coefficient files, got 'nowhere'"),
    "notebooks.render": ("--bits 3", "render: unrecognized arguments: --bits 3; see --help"),
    **{
        f"benchmarks.{name}": ("--bits 3", f"{name}: ")
        for name in (
            *("accuracy", "compression", "kernels", "memory", "price"),
            *("report", "rivals", "run", "slack", "training"),
        )
    },
}


def run(module: str, *words: str) -> tuple[int, str, str, set[str]]:
    """Status, output, errors, and the libraries that were imported."""
    call = [sys.executable, "-W", "error", "-X", "importtime", "-m", *module.split(), *words]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    times = re.findall(r"^import time:.*\| +(\w[\w.]*)$", done.stderr, re.MULTILINE)
    said = re.sub(r"^import time:.*\n", "", done.stderr, flags=re.MULTILINE)
    return done.returncode, done.stdout, said, {name.partition(".")[0] for name in times}


def test_every_command_is_here() -> None:
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        for package in ("actfit", "benchmarks", "codegen", "coefficients", "fitting", "kernels", "notebooks")
        for path in (ROOT / package).rglob("*.py")
        if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
    }
    workers = {"fitting.invact.symbolic.operon", "fitting.invact.symbolic.pysr"}  # of another command
    named = {module for module, _, _ in COMMANDS.values()}
    assert modules - workers == named | {module for module in BAD if not module.startswith("actfit ")}


@pytest.mark.slow
@pytest.mark.parametrize("module", BAD)
def test_options_are_read_before_libraries(module: str) -> None:
    status, out, said, imported = run(module, "--help")
    assert (status, said) == (0, "")
    assert out.startswith("usage: " + "python -m " * (not module.startswith("actfit")) + module)
    assert "--version" in out
    assert imported & HEAVY == set()
    words, message = BAD[module]
    status, out, said, imported = run(module, *words.split())
    assert (status, out) == (2, "")
    assert said.startswith(message)
    assert said.count("\n") == 1
    assert imported & HEAVY == set()


@pytest.mark.slow
def test_a_module_in_the_folder_where_one_is_is_found(tmp_path: Path) -> None:
    """By the command of a wheel, too, beside which Python looks for modules first."""
    script, folder = tmp_path / "bin" / "actfit", tmp_path / "mine"
    for path in (script.parent, folder):
        path.mkdir()
    script.write_text("import sys\nfrom actfit.__main__ import main\nsys.exit(main())\n")
    (folder / "mymodel.py").write_text(
        "import torch\ndef build(): return torch.nn.GELU(), torch.randn(4, requires_grad=True)"
    )
    call = [sys.executable, str(script), "memory", "--model", "mymodel:build"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": ""}
    done = subprocess.run(call, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("mymodel:build (GELU)")


def test_what_help_names_is_what_there_is() -> None:
    """Options are read before libraries are imported, so these lists of names are separate; they must agree."""

    from actfit.fitting.invact.engines import ENGINES
    from actfit.fitting.invact.formats import FORMATS
    from actfit.kernels.generated.functions import FUNCTIONS
    from actfit.kernels.memory.recipes import RECIPES
    from benchmarks.training.jobs import TASKS

    assert tuple(TASKS) == parsers.TASKS
    assert tuple(ENGINES) == arguments.ENGINES
    assert tuple(FORMATS) == arguments.DTYPES
    assert tuple(RECIPES) == names.MODELS
    assert functions.names() == tuple(FUNCTIONS)


@pytest.mark.parametrize("text", ["٣", "1_0", "", "1e", ".", "0x1p3", "1,5", "1.5٣"])
def test_numbers_have_ascii_digits(text: str) -> None:
    with pytest.raises(ValueError, match="value must be a number, got"):
        options.number("value", text)
    for good in ("1", "-.5", "1.", "1E-3", " 2 ", "+3e+4", "inf", "-Infinity", "nan"):
        assert repr(options.number("value", good)) == repr(float(good))


@pytest.mark.slow
@pytest.mark.parametrize("module", ["actfit.fitting.fewbit", "benchmarks.slack"])
def test_long_words_are_not_repeated_whole(module: str) -> None:
    """Words of the shell are at most 128 KiB each; many of them make megabytes."""
    for words in (["--" + "x" * 100_000], ["y" * 100_000] * 10):
        status, out, said, _ = run(module, *words)
        assert (status, out) == (2, "")
        assert len(said) < command.LONGEST + 40
        assert said.endswith("see --help\n")


def test_a_version_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside the project's tree, it is the version of the installed package."""
    from importlib import metadata

    monkeypatch.setattr(command, "__file__", str(tmp_path / "coefficients" / "command.py"))
    monkeypatch.setattr(metadata, "version", lambda name: f"9 of {name}")
    command.version.cache_clear()
    assert command.version() == "9 of actfit"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\nversion = "1"\n', "utf-8")
    command.version.cache_clear()
    assert command.version() == "9 of actfit"
    command.version.cache_clear()
    monkeypatch.undo()
    assert re.fullmatch(r"\d+\.\d+\.\d+", command.version())


@pytest.mark.slow
def test_pictures_need_no_screen(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "MPLBACKEND": "nonsense"}
    environment["MPLCONFIGDIR"] = get_cachedir()  # else all fonts of the machine are read anew
    words = ["actfit.fitting.fewbit", "--fn", "relu", "--bits", "1", "--out", "-", "--plot", str(picture)]
    call = [sys.executable, "-m", *words]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert picture.stat().st_size > 1000
