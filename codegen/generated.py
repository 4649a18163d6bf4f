"""The folder kernels/generated: the files that belong there, and what is wrong with those that are there."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from actfit.codegen.info import functions_module
from actfit.codegen.module import MARK, loops_module, torch_module, triton_module
from actfit.codegen.subject import Subject, of_catalogue
from actfit.fitting.activations import names

FOLDER = Path(__file__).resolve().parents[1] / "kernels" / "generated"
WRITERS: dict[str, Callable[[Subject], str]] = {"triton": triton_module, "torch": torch_module}


def in_checkout() -> bool:
    """Whether the folder is in a checkout of the project, not in an installed package."""
    return (FOLDER.parents[1] / "pyproject.toml").is_file()


def texts() -> Iterator[tuple[Path, str]]:
    """Every file of the folder with its text, emitted anew, function by function."""
    yield FOLDER / "__init__.py", f'"""One function a file, for each target. {MARK}"""\n'
    yield FOLDER / "functions.py", functions_module(map(of_catalogue, names()))
    for name in names():
        yield from texts_of(name)


def texts_of(name: str) -> Iterator[tuple[Path, str]]:
    """The files of one function with their texts."""
    subject = of_catalogue(name)
    for target, write in WRITERS.items():
        yield FOLDER / f"{name}_{target}.py", write(subject)
    loops = loops_module(subject)
    if loops is not None:
        yield FOLDER / f"{name}_loops.py", loops


def problem(path: Path, text: str) -> str | None:
    """What is wrong with a file that should hold `text`."""
    if not path.is_file():
        return "is missing"
    present = path.read_text(encoding="utf-8")
    if present == text:
        return None
    lines = zip(present.splitlines(), text.splitlines(), strict=False)
    line = next((i for i, (a, b) in enumerate(lines, start=1) if a != b), min(map(len, (present, text))))
    return f"differs from what is emitted, first in line {line}"


def strangers(emitted: Iterable[Path]) -> list[Path]:
    """Modules in the folder that are not emitted."""
    return sorted(set(FOLDER.glob("*.py")) - set(emitted))
