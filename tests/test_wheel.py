"""The wheel, installed without the repository: its content, its commands, and that nothing writes into it."""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import textwrap
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PARTS = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["sources"]  # folder -> its place in the wheel
FITS = sum(1 for _ in (ROOT / "coefficients" / "data").rglob("*.json"))
STEM = f"{PROJECT['project']['name']}-{PROJECT['project']['version']}"

pytest.importorskip("hatchling", reason="builds the wheel; pip install hatchling")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    code = f"from hatchling.build import *; build_wheel({str(folder)!r}); build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return folder


@dataclass(frozen=True)
class Installed:
    """The wheel in an environment of its own, with other packages from the one that the tests run in."""

    environment: Path
    site: Path

    def files(self) -> dict[Path, str]:
        """Files of the environment and their hashes, without the caches of Python and Numba beside modules."""
        paths = (path for path in self.site.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    def run(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Run python with these words in a folder; the environment must not change."""
        unwanted = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_NUM_THREADS")
        environment = {name: value for name, value in os.environ.items() if name not in unwanted}
        environment |= {"PYTHONIOENCODING": "utf-8", "PYTHONWARNINGS": "error"}
        python = self.environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        before = self.files()
        done = subprocess.run(
            [str(python), *words], cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False
        )
        assert self.files() == before
        return done


def nothing(site: Path) -> None:
    """Install nothing else."""


def install(
    wheel: Path, folder: Path, *, without: tuple[str, ...] = (), before: Callable[[Path], None] = nothing
) -> Installed:
    """Install the wheel in an environment without packages whose names begin with one of `without`."""
    venv.create(folder / "environment", with_pip=False)
    (site,) = (folder / "environment").rglob("site-packages")
    others = folder / "others"  # links, so that excluded packages and our own are absent
    others.mkdir()
    for place in [Path(path) for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]:
        for entry in place.iterdir():
            linked = not entry.name.lower().startswith(("actfit", "_actfit", "__editable__", *without))
            if linked and not (others / entry.name).exists():
                (others / entry.name).symlink_to(entry)
    (site / "others.pth").write_text(str(others))
    before(site)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run(command, capture_output=True, text=True, check=True)
    return Installed(folder / "environment", site)


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(built / f"{STEM}-py3-none-any.whl", tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def bare(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The same without PyTorch and packages that need it."""
    without = ("torch", "triton", "functorch", "transformers")
    return install(built / f"{STEM}-py3-none-any.whl", tmp_path_factory.mktemp("bare"), without=without)


def source_files() -> Iterator[str]:
    """What the package is made of, by paths in the checkout."""
    for folder in ("actfit", *PARTS):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".json", ".typed"):
                yield path.relative_to(ROOT).as_posix()


# What they hold.


def test_the_wheel_holds_the_packages_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(built / f"{STEM}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
    about = {
        f"{STEM}.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }
    placed = {name if name.startswith("actfit/") else f"actfit/{name}" for name in source_files()}
    assert names == {*placed, *about}
    assert {"actfit/py.typed", "actfit/coefficients/data/gelu/fewbit-3bit.v1.json"} <= names


def test_the_sdist_holds_what_the_tests_need(built: Path) -> None:
    with tarfile.open(built / f"{STEM}.tar.gz") as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {
        *source_files(),
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "CITATION.cff",
        "Makefile",
        "constraints.txt",
    } <= names
    assert {"tests/conftest.py", "tests/test_wheel.py", "docs/how-to/compress.md"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", ".git/"))]


# The commands, from an empty folder.


@pytest.mark.parametrize(
    ("words", "said", "written"),
    [
        ("list gelu", "gelu      fewbit-3bit  ", ()),
        ("check --no-recompute", f"{FITS} files, 0 bad", ()),
        ("memory --model mlp --policy fewbit-3", "| fewbit-3 | 76.0 MiB | 40.62% |", ()),
        (
            "fewbit --fn relu --bits 1 --root coefficients/data",
            "coefficients/data/relu/fewbit-1bit.v1.json\n",
            ("coefficients/data/relu/fewbit-1bit.v1.json",),
        ),
    ],
)
def test_a_command(words: str, said: str, written: tuple[str, ...], installed: Installed, tmp_path: Path) -> None:
    done = installed.run(tmp_path, "-m", "actfit", *words.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout
    file_names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert file_names == set(written)
    for name in file_names:  # packaged files were made by the same commands
        if name.endswith(".json"):
            ours, packaged = (json.loads((folder / name).read_text("utf-8")) for folder in (tmp_path, ROOT))
            assert ours["solution"] == packaged["solution"]


# In Python.


def test_models_are_compressed_and_emitted_modules_run(installed: Installed, tmp_path: Path) -> None:
    words = "-m", "actfit", "emit", "--fn", "silu", "--target", "torch", "--out", "silu.py"
    emitting = installed.run(tmp_path, *words)
    assert (emitting.returncode, emitting.stdout, emitting.stderr) == (0, "wrote silu.py\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["silu.py"]
    code = """
        import torch
        import actfit
        from actfit import coefficients
        import silu
        print(actfit.__file__, coefficients.__file__, sep="\\n")
        x = torch.linspace(-8, 8, 101)
        torch.testing.assert_close(silu.forward_pass(x)[0], torch.nn.functional.silu(x))
        model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
        handle = actfit.compress(model, bits=8)
        model(torch.randn(64, 8)).sum().backward()
        (graph,) = handle.report.graphs
        assert graph.after < graph.before / 3
        print(coefficients.load("gelu", "fewbit-3bit")["version"])
        """
    done = installed.run(tmp_path, "-c", f"import sys; sys.path.insert(0, '')\n{textwrap.dedent(code)}")
    assert (done.returncode, done.stderr) == (0, "")
    *places, version = done.stdout.split()
    assert places == [str(installed.site / name / "__init__.py") for name in ("actfit", "actfit/coefficients")]
    assert version == "1"


def test_a_callback_is_imported_or_says_what_is_missing(installed: Installed, tmp_path: Path) -> None:
    code = """
        from importlib import import_module
        for trainer in ("transformers", "lightning"):
            try:
                print(import_module(f"actfit.integrations.{trainer}").ActfitCallback.__name__)
            except ImportError as error:
                print(error)
        """
    done = installed.run(tmp_path, "-W", "default", "-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    for trainer, said in zip(("transformers", "lightning"), done.stdout.splitlines(), strict=True):
        missing = f"actfit.integrations.{trainer} needs PyTorch and "
        assert said.startswith("ActfitCallback" if importlib.util.find_spec(trainer) else missing)


def test_the_hubs_kernels_and_ours_work_side_by_side(built: Path, tmp_path: Path) -> None:
    """transformers probes for a package of the name `kernels`; in a checkout there is a folder of that name, too."""

    def theirs(site: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), "kernels==0.17.2"]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("no package index is within reach")

    both = install(built / f"{STEM}-py3-none-any.whl", tmp_path, without=("kernels",), before=theirs)
    code = """
        import torch
        import kernels
        from actfit import compress
        from transformers import LlamaConfig, LlamaForCausalLM
        torch.manual_seed(0)
        sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
        words = torch.arange(16).reshape(2, 8)
        handle = compress(model, bits=8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(2):
            losses.append(model(input_ids=words, labels=words).loss)
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        print(len(handle.stock), bool(losses[-1] < losses[0]), kernels.get_kernel.__name__)
        """
    done = both.run(ROOT, "-W", "default", "-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0 True get_kernel"


def test_the_wheel_shares_no_file_with_the_hubs_kernels(built: Path) -> None:
    """So that they are installed in any order, and either can be uninstalled."""
    with zipfile.ZipFile(built / f"{STEM}-py3-none-any.whl") as wheel:
        assert {name.partition("/")[0] for name in wheel.namelist()} == {"actfit", f"{STEM}.dist-info"}


# Without PyTorch.


@pytest.mark.parametrize("words", ["memory --model mlp", "inspect --fn gelu"])
def test_a_command_that_needs_more_says_so(words: str, bare: Installed, tmp_path: Path) -> None:
    done = bare.run(tmp_path, "-m", "actfit", *words.split())
    library = "Triton" if "inspect" in words else "torch"
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert library in done.stderr
    assert "pip install" in done.stderr


NEEDED = {
    "actfit import compress": "actfit needs PyTorch to train models, which is not installed; pip install torch triton",
    "actfit.integrations.transformers import ActfitCallback": "actfit.integrations.transformers needs PyTorch and"
    " transformers; pip install torch transformers accelerate",
}


@pytest.mark.parametrize("imported", NEEDED)
def test_an_import_says_what_is_missing(imported: str, bare: Installed, tmp_path: Path) -> None:
    done = bare.run(tmp_path, "-c", f"from {imported}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ImportError: {NEEDED[imported]}"


def test_what_needs_no_torch_runs_without(bare: Installed, tmp_path: Path) -> None:
    done = bare.run(tmp_path, "-m", "actfit", "emit", "--fn", "gelu", "--method", "fewbit")
    assert (done.returncode, done.stderr) == (0, "")
    assert "def forward_kernel(" in done.stdout
