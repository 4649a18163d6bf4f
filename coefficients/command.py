"""What every command line of the project shares: errors of one line, and how a run may end."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

GOOD, BAD, MISUSED, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141


class Misuse(Exception):
    """What the user asked for cannot be done; one line."""


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one line, and values such as -1e3 or -x*2 that begin with a minus sign."""

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSED, f"{self.prog}: {message}; see --help\n")

    def parse_args(self, args: Sequence[str] | None = None, namespace: None = None) -> argparse.Namespace:  # type: ignore[override]
        # There are no short options but -h: whatever else begins with one minus is a value, which
        # argparse takes as such when it holds a space.
        words = sys.argv[1:] if args is None else args
        spaced = [
            f" {word}" if word[:1] == "-" and word[:2] != "--" and word not in ("-", "-h") else word for word in words
        ]
        return super().parse_args(spaced, namespace)


def run(prog: str, main: Callable[[], int], misuse: tuple[type[Exception], ...] = ()) -> int:
    """main's exit status, with misuse, Ctrl-C, a closed pipe and a full disk turned into statuses.

    misuse: further exceptions whose message is for the user, in one line, with status 2.
    """
    try:
        status = main()
        if sys.stdout is not None:  # None when the caller closed it
            sys.stdout.flush()
        return status
    except (Misuse,) + misuse as error:  # noqa: RUF005 - mypy follows a sum of tuples, not an unpacking
        say(prog, str(error))
        return MISUSED
    except KeyboardInterrupt:
        say(prog, "interrupted; files are whole or not there")
        return INTERRUPTED
    except BrokenPipeError:
        status = PIPE_CLOSED
    except OSError as error:
        say(prog, f"cannot write {error.filename or 'the output'}: {error.strerror or error}")
        status = MISUSED
    # What is still in the buffer cannot be written: without this Python would say so again on its way out.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return status


def say(prog: str, line: str) -> None:
    """One line on stderr, in the command's name."""
    sys.stderr.write(f"{prog}: {line}\n")
