"""The progress of long work: one line on a terminal, and nothing anywhere else."""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 2.0  # seconds before anything is shown: most work takes less
PERIOD = 0.5


def silent(doing: str) -> None:
    """Report no progress."""


@contextmanager
def shown(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A context with a function for texts of what is being done; after `PATIENCE` seconds stderr shows the latest.

    Nothing shows them if `quiet`, or if stderr is not a terminal.
    """
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield silent
        return
    latest, done, begun = [""], threading.Event(), time.monotonic()

    def show() -> None:
        wait = PATIENCE
        while not done.wait(wait):
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r" + f"{latest[0]} ({time.monotonic() - begun:.0f} s)"[:width].ljust(width))
            sys.stderr.flush()
            wait = PERIOD
        if wait == PERIOD:  # a line is shown
            sys.stderr.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
            sys.stderr.flush()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield lambda text: latest.__setitem__(0, text)
    finally:
        done.set()
        thread.join()
