"""The folder kernels/generated: what belongs there, and whether it is there."""

from collections.abc import Callable, Iterator
from pathlib import Path

from codegen.info import functions_module
from codegen.module import MARK, torch_module, triton_module
from codegen.subject import Subject, of_catalogue
from fitting.activations import names

FOLDER = Path(__file__).resolve().parents[1] / "kernels" / "generated"
WRITERS: dict[str, Callable[[Subject], str]] = {"triton": triton_module, "torch": torch_module}


def in_checkout() -> bool:
    """Whether the folder is in a checkout of the project, where emitting belongs, and not where pip put it."""
    return (FOLDER.parents[1] / "pyproject.toml").is_file()


def texts() -> Iterator[tuple[Path, str]]:
    """Every file of the folder and its text, made anew; a function after the other."""
    yield FOLDER / "__init__.py", f'"""One function a file, for each target. {MARK}"""\n'
    yield FOLDER / "functions.py", functions_module(map(of_catalogue, names()))
    for name in names():
        subject = of_catalogue(name)
        for target, write in WRITERS.items():
            yield FOLDER / f"{name}_{target}.py", write(subject)


def problem(path: Path, text: str) -> str | None:
    """What is wrong with a file that should hold `text`."""
    if not path.is_file():
        return "is missing"
    found = path.read_text(encoding="utf-8")
    if found == text:
        return None
    lines = zip(found.splitlines(), text.splitlines(), strict=False)
    line = next((i for i, (a, b) in enumerate(lines, start=1) if a != b), min(map(len, (found, text))))
    return f"differs from what is emitted, first in line {line}"


def strangers() -> list[Path]:
    """Modules in the folder that no function stands for."""
    known = {f"{name}_{target}.py" for name in names() for target in WRITERS} | {"__init__.py", "functions.py"}
    return sorted(path for path in FOLDER.glob("*.py") if path.name not in known)
