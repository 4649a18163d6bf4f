"""The folder that a command writes its pages to."""

import os
from collections.abc import Iterable
from pathlib import Path

from actfit.coefficients.command import Misuse


def ready(out: str, names: Iterable[str]) -> Path:
    """The folder `out`, made if necessary, for files of these names.

    Called before the work, so that errors come at once. Raises Misuse, which names the option --out.
    """
    path = Path(out)
    if not out:
        raise Misuse("--out must be a folder, got ''; try --out .")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise Misuse(f"--out must be a folder, got {out!r}, where a file is in the way") from None
    except OSError as error:
        raise Misuse(f"--out must be a folder where you may write, got {out!r}: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise Misuse(f"--out must be a folder where you may write, got {out!r}")
    for name in names:
        if (path / name).is_dir():
            raise Misuse(f"--out must be a folder in which {name} can be written, got {out!r}")
    return path
