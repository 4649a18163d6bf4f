"""Files that are written whole or not at all, and OSErrors that say whether a file was read or written."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

READING: Final = "while reading"
WRITING: Final = "while writing"


@contextmanager
def noted(doing: str, path: object = None) -> Iterator[None]:
    """A context in which an OSError gets the note and, if given, the name `path`."""
    try:
        yield
    except OSError as error:
        error.add_note(doing)
        if path is not None:
            error.filename = str(path)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all. Raises OSError when it cannot be written."""
    with whole(path) as partial, partial.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A context with a new file of the same ending, which replaces `path` at the end, and is deleted after an error.

    Raises OSError, with the name `path`, when it cannot be written.
    """
    place = path.resolve()  # a link stays a link; its target is written
    # A unique name, as others may write here too. Not by tempfile, whose files only the owner may read.
    partial = place.with_name(f".{uuid.uuid4().hex}.tmp{path.suffix}")
    try:
        with noted(WRITING, path):  # name this file in errors, not the partial one
            yield partial
            os.replace(partial, place)
    finally:
        partial.unlink(missing_ok=True)
