"""Fits of the whole catalogue in every dtype, as documents, which can pass between processes."""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from fitting.activations import get, names
from fitting.errors import InputError
from fitting.invact import document
from fitting.invact.engines import DEFAULT, Settings
from fitting.invact.engines.papers import ENGINE as PUBLISHED
from fitting.invact.engines.papers import published
from fitting.invact.formats import FORMATS
from fitting.invact.solve import fit
from fitting.sweep import run
from fitting.weights import Weight


class Made(NamedTuple):
    """A fit as a document, and the name of its file."""

    document: dict[str, Any]
    name: str


def shipped(dtypes: Sequence[str] = tuple(FORMATS), engines: tuple[str, ...] = DEFAULT) -> list[tuple[str, str]]:
    """(function, dtype) of every file that the project ships, in these dtypes; of the paper's files for its engine."""
    known = [name for name in names() if engines != (PUBLISHED,) or published(name)]
    return [(name, dtype) for name in known for dtype in dtypes]


def sweep(
    tasks: list[tuple[str, str]],
    engines: tuple[str, ...],
    weight: Weight | None,
    max_error: float | None,
    settings: Settings,
    jobs: int = 1,
    scheduler: str | None = None,
) -> Generator[Made, None, None]:
    """The fits of `tasks`, in their order, as they get done; `jobs` and `scheduler` as in `fitting.sweep.run`.

    Raises `InputError`, with the function's name, at the first function that cannot be fitted.
    """
    calls = [(name, dtype, engines, weight, max_error, settings) for name, dtype in tasks]
    return run(_fit, calls, jobs, scheduler)


def _fit(
    name: str, dtype: str, engines: tuple[str, ...], weight: Weight | None, max_error: float | None, settings: Settings
) -> Made:
    try:
        result = fit(get(name), dtype, engines=engines, weight=weight, max_error=max_error, settings=settings)
    except InputError as error:
        raise InputError(f"{name} in {dtype}: {error}") from None
    return Made(document.to_document(result), document.file_name(result))
