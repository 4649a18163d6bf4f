"""Helpers of all commands of the project: errors of one line, exit statuses, Ctrl-C."""

import argparse
import contextlib
import functools
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from actfit.coefficients.files import READING, WRITING

LONGEST = 600  # characters of a line on stderr: an argument that it quotes may be megabytes
GOOD, BAD, MISUSED, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141


class Misuse(Exception):
    """The user asked for something that cannot be done; the message is one line."""


def is_function_path(text: str) -> bool:
    """Whether it has the form module:function."""
    module, _, function = text.partition(":")
    return bool(module and function)


class Parser(argparse.ArgumentParser):
    """argparse, with --version, errors of one line, and values such as -1e3 or -x*2 that begin with a minus sign."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")

    def error(self, message: str) -> NoReturn:
        name = re.sub(r"^(python -m|actfit) (\w+\.)?", "", self.prog)  # as in the calls of `run`
        say(name, f"{message.replace('  -', ' -')}; see --help")
        self.exit(MISUSED)

    def parse_args(self, args: Sequence[str] | None = None, namespace: None = None) -> argparse.Namespace:  # type: ignore[override]
        # There are no short options but -h and -o: any other word that begins with one minus is a value, and
        # argparse takes it for one if it holds a space.
        words = sys.argv[1:] if args is None else args
        spaced = [
            f" {word}" if word[:1] == "-" and word[:2] != "--" and word not in ("-", "-h", "-o") else word
            for word in words
        ]
        options = super().parse_args(spaced, namespace)
        for key, value in vars(options).items():
            setattr(options, key, _unspaced(value))
        return options


class _Version(argparse.Action):
    """Prints the version, which is looked up only here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parser._print_message(f"actfit {version()}\n", sys.stdout)
        parser.exit()


@functools.cache
def version() -> str:
    """The version of the project's tree, if this is one, else of the installed package."""
    project = Path(__file__).parents[1] / "pyproject.toml"
    if project.is_file():
        import tomllib  # here, as few ask

        project_table = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {})
        if project_table.get("name") == "actfit":
            return str(project_table["version"])
    from importlib import metadata

    return metadata.version("actfit")


def whole(text: str) -> int:
    """An integer in ASCII digits, without underscores; a `type` for argparse."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}")
    return int(text)


def _unspaced(value: Any) -> Any:
    if isinstance(value, list):
        return [_unspaced(member) for member in value]
    if isinstance(value, str | Path) and str(value).startswith(" -"):
        return type(value)(str(value)[1:])
    return value


def output_path(what: str, text: str) -> Path:
    """`text` as the path of a file to write, checked before the work. Raises Misuse where it cannot be written."""
    path = Path(text)
    if not text or path.is_dir():
        raise Misuse(f"{what} must be a file, got {'the folder ' * bool(text)}{text!r}")
    try:
        path.resolve()
    except FileNotFoundError:  # the current folder is gone; `run` says so
        raise
    except (OSError, RuntimeError):  # the kind depends on Python's version
        raise Misuse(f"{what} must not be a link that leads to itself, got {text!r}") from None
    if not path.parent.is_dir():
        raise Misuse(f"{what} must be in a folder that exists, got {text!r}")
    if not os.access(path if is_device(path) else path.parent, os.W_OK):
        raise Misuse(f"{what} must be where you may write, got {text!r}")
    return path


def is_device(path: Path) -> bool:
    """Whether the path is a pipe, a terminal or /dev/null: it is written to, and must not be replaced."""
    return path.exists() and not path.is_file()


def exit_on_interrupt() -> None:
    """Until `run` begins, let Ctrl-C end the process at once, with one line.

    For the second that a command's imports take, when there is nothing to clean up.
    """
    main_thread = threading.current_thread() is threading.main_thread()  # only this thread may set handlers
    if main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if the caller ignores it
        signal.signal(signal.SIGINT, _exit_now)


@contextlib.contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """A context in which Ctrl-C ends the process at once: an exception would break work in C++."""
    before = signal.getsignal(signal.SIGINT)
    exit_on_interrupt()
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is not before:
            signal.signal(signal.SIGINT, before)


def _exit_now(*_: object) -> NoReturn:
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def exit_without(library: str, prog: str, way_out: str) -> None:
    """End the process, with one line, where a library is not installed; to be called before importing it."""
    if find_spec(library) is None:
        say(prog, f"{library} must be installed, and is not; {way_out}")
        sys.exit(MISUSED)


def early(prog: str, check: Callable[[], object], misuse: tuple[type[Exception], ...] = ()) -> None:
    """Read and check the options of the command before its imports, which take most of the time.

    Misuse ends the process here, as do --help and --version; from then on Ctrl-C does, with one line.
    """

    def checked() -> int:
        check()
        return GOOD

    os.environ["MPLBACKEND"] = "agg"  # commands draw to files, and the user's setting may name a missing backend
    exit_on_interrupt()
    status = run(prog, checked, misuse)
    if status != GOOD:
        sys.exit(status)
    exit_on_interrupt()


def run(prog: str, main: Callable[[], int], misuse: tuple[type[Exception], ...] = ()) -> int:
    """main's exit status, with misuse, Ctrl-C, a closed pipe and a full disk turned into statuses.

    Exceptions in `misuse` have a message for the user, in one line, and status 2.
    """
    if signal.getsignal(signal.SIGINT) is _exit_now:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name or a sign that its encoding lacks
    try:
        try:
            return main()
        finally:  # after --help too, which ends by SystemExit
            if sys.stdout is not None:  # None when the caller closed it
                sys.stdout.flush()
    except (Misuse,) + misuse as error:  # noqa: RUF005 - mypy follows a sum of tuples, not an unpacking
        say(prog, str(error))
        return MISUSED
    except KeyboardInterrupt:
        say(prog, "interrupted; files are whole or not there")
        return INTERRUPTED
    except BrokenPipeError:
        status = PIPE_CLOSED
    except OSError as error:
        if error.errno is None:  # not from the operating system
            raise
        say(prog, _failure(error))
        status = MISUSED
    _give_up_output()
    return status


def _failure(error: OSError) -> str:
    """The message for an OSError: the action, the file and the reason."""
    name = error.filename2 or error.filename
    if name is None and isinstance(error, FileNotFoundError):
        return "the folder you are in must be there, and is gone; go to another"
    notes = getattr(error, "__notes__", ())
    verb = "write" if name is None or WRITING in notes else "read" if READING in notes else "use"
    return f"cannot {verb} {name or 'the output'}: {error.strerror or error}"


def _give_up_output() -> None:
    """Drop output that cannot be written to stdout: otherwise Python reports it again at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(prog: str, line: str) -> None:
    """Print one line on stderr, in the command's name; nothing if there is no stderr."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{prog}: {shortened(line)}\n")
            sys.stderr.flush()


def shortened(text: str, longest: int = LONGEST) -> str:
    """The text, without its middle if it has more than `longest` characters: a quoted input may be a whole file.

    Both ends stay: an error begins with what is wrong, and ends with the remedy.
    """
    half = (longest - 5) // 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"
