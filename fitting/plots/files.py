"""Pictures as files."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from coefficients.store import whole
from fitting.errors import InputError

FORMATS = (".png", ".svg", ".pdf")


def check_path(path: Path) -> None:
    """Raises `InputError` for a suffix that is not in `FORMATS`."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"plot must end in one of {', '.join(FORMATS)}, got {str(path)!r}")


def save(figure: Figure, path: Path) -> None:
    """Write the picture whole or not at all, without a date in it. Raises OSError where it cannot be written."""
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
    with whole(path) as partial, matplotlib.rc_context({"svg.hashsalt": "actfit"}):  # else names in it are drawn by lot
        figure.savefig(partial, dpi=150, metadata=metadata)
