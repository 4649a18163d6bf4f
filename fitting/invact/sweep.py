"""Fits of the whole catalogue in every dtype, as documents, which can pass between processes."""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from actfit.fitting.activations import get, names
from actfit.fitting.errors import InputError
from actfit.fitting.invact import document
from actfit.fitting.invact.branches import split
from actfit.fitting.invact.engines import DEFAULT, Settings
from actfit.fitting.invact.engines.papers import ENGINE as PUBLISHED
from actfit.fitting.invact.engines.papers import published
from actfit.fitting.invact.formats import FORMATS
from actfit.fitting.invact.solve import fit
from actfit.fitting.sweep import run
from actfit.fitting.weights import Weight


class FittedFile(NamedTuple):
    """A fit as a document, and the name of its file."""

    document: dict[str, Any]
    name: str


class Task(NamedTuple):
    """The contents of one file: a function, the dtype of y, and the bits beside it."""

    name: str
    dtype: str
    bits: int = 1


def shipped(dtypes: Sequence[str] = tuple(FORMATS), engines: tuple[str, ...] = DEFAULT) -> list[Task]:
    """Every file that the project ships, in these dtypes; of the paper's files for its engine."""
    if engines == (PUBLISHED,):
        return [Task(name, dtype) for name in names() if published(name) for dtype in dtypes]
    tasks = [Task(name, dtype) for name in names() for dtype in dtypes]
    narrow = [dtype for dtype in dtypes if FORMATS[dtype].precision <= 16]
    return tasks + [Task(name, dtype, 2) for name in names() if split(get(name)).takes_second_bit for dtype in narrow]


def sweep(
    tasks: Sequence[Task],
    engines: tuple[str, ...],
    weight: Weight | None,
    max_error: float | None,
    settings: Settings,
    jobs: int = 1,
    scheduler: str | None = None,
) -> Generator[FittedFile, None, None]:
    """The fits of `tasks`, in their order, as they get done; `jobs` and `scheduler` as in `fitting.sweep.run`.

    Raises `InputError`, with the function's name, at the first function that cannot be fitted.
    """
    calls = [(task, engines, weight, max_error, settings) for task in tasks]
    return run(_fit, calls, jobs, scheduler)


def _fit(
    task: Task, engines: tuple[str, ...], weight: Weight | None, max_error: float | None, settings: Settings
) -> FittedFile:
    name, dtype, bits = task
    try:
        result = fit(
            get(name), dtype, bits=bits, engines=engines, weight=weight, max_error=max_error, settings=settings
        )
    except InputError as error:
        raise InputError(f"{name} in {dtype}: {error}") from None
    return FittedFile(document.to_document(result), document.file_name(result))
