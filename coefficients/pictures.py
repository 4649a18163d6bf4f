"""Files of pictures, for the packages that draw them; this package does not import matplotlib."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from actfit.coefficients.files import whole

FORMATS = (".png", ".svg", ".pdf")
SALT: Final[Any] = {"svg.hashsalt": "actfit"}  # for `rc_context`: names in the file are random otherwise
_DATES = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


@contextmanager
def undated(path: Path) -> Iterator[tuple[Path, Any]]:
    """The path and the metadata for `Figure.savefig`, so that the file is written whole or not at all, without a date.

    Raises OSError, with the name `path`, when it cannot be written.
    """
    with whole(path) as partial:
        yield partial, _DATES.get(path.suffix.lower())
