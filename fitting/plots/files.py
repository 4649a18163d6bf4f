"""Pictures as files."""

import uuid
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from fitting.errors import InputError

FORMATS = (".png", ".svg", ".pdf")


def check_path(path: Path) -> None:
    """Raises `InputError` for a suffix that is not in `FORMATS`."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"plot must end in one of {', '.join(FORMATS)}, got {str(path)!r}")


def save(figure: Figure, path: Path) -> None:
    """Write the picture whole or not at all, without a date in it. Raises OSError where it cannot be written."""
    asked, path = path, path.resolve()  # a link stays, and what it points to is written
    partial = path.with_name(f".{uuid.uuid4().hex}.tmp{path.suffix}")  # its own: others may write here, too
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
    try:
        with matplotlib.rc_context({"svg.hashsalt": "actfit"}):  # names in the file are drawn by lot otherwise
            figure.savefig(partial, dpi=150, metadata=metadata)
        partial.replace(path)
    except OSError as error:
        error.filename = str(asked)  # and not the partial, which nobody has named
        raise
    finally:
        partial.unlink(missing_ok=True)
