"""Pictures as files."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from actfit.coefficients.pictures import FORMATS, SALT, undated
from actfit.fitting.errors import InputError


def check_path(path: Path) -> None:
    """Raise `InputError` for a suffix that is not in `FORMATS`."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"plot must end in one of {', '.join(FORMATS)}, got {str(path)!r}")


def save(figure: Figure, path: Path) -> None:
    """Write the picture whole or not at all, without a date in it. Raises OSError where it cannot be written."""
    with undated(path) as (partial, metadata), matplotlib.rc_context(SALT):
        figure.savefig(partial, dpi=150, metadata=metadata)
