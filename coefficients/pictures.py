"""Files of pictures, for the packages that draw them; this one does without matplotlib."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from coefficients.files import whole

FORMATS = (".png", ".svg", ".pdf")
SALT: Final[Any] = {"svg.hashsalt": "actfit"}  # for `rc_context`: names in the file are drawn by lot otherwise
_DATES = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


@contextmanager
def undated(path: Path) -> Iterator[tuple[Path, Any]]:
    """Where `Figure.savefig` is to write, and its metadata, so that the file is whole or not there, and has no date.

    Raises OSError, with the name `path`, when it cannot be written.
    """
    with whole(path) as partial:
        yield partial, _DATES.get(path.suffix.lower())
