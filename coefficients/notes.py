"""Notes on an OSError that say what was being done: its kind does not tell reading from writing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

READING: Final = "while reading"
WRITING: Final = "while writing"


@contextmanager
def noted(doing: str, path: object = None) -> Iterator[None]:
    """An OSError in here gets the note, and the name `path` where one is given."""
    try:
        yield
    except OSError as error:
        error.add_note(doing)
        if path is not None:
            error.filename = str(path)
        raise
