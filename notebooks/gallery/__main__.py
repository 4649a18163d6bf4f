"""python -m notebooks.gallery: all stored fits on one page, which is a file of its own and loads nothing."""

import sys
from collections.abc import Sequence
from pathlib import Path

from coefficients import command
from coefficients.command import Misuse, Parser
from coefficients.schema import CoefficientError
from coefficients.store import write_text
from fitting.errors import InputError
from notebooks.gallery.page import page

DEFAULT = Path("build", "gallery")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse and the errors of files for bad input."""
    parser = Parser(prog="python -m notebooks.gallery", description="Write all stored fits as a page, DIR/index.html.")
    parser.add_argument("--out", type=Path, default=DEFAULT, metavar="DIR", help=f"default: {DEFAULT}")
    parser.add_argument("--root", type=Path, metavar="DIR", help="other coefficient files than the packaged ones")
    options = parser.parse_args(arguments)
    if options.root is not None and not options.root.is_dir():
        raise Misuse(f"--root must be a folder of coefficient files, got {str(options.root)!r}")
    path = _folder(options.out) / "index.html"
    if path.is_dir():
        raise Misuse(f"--out must be a folder in which index.html can be written, got {str(options.out)!r}")
    text = page(options.root, options.out, _progress)
    write_text(path, text)
    print(path)
    return command.GOOD


def _folder(out: Path) -> Path:
    """`out`, made where it is not there. Before the work, so that what cannot be is said at once."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise Misuse(f"--out must be a folder, got {str(out)!r}, where a file is in the way") from None
    except OSError as error:
        raise Misuse(f"--out must be a folder where you may write, got {str(out)!r}: {error.strerror}") from None
    return out


def _progress(name: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"{name:20}", end="\r", file=sys.stderr, flush=True)  # the next line covers it


if __name__ == "__main__":
    sys.exit(command.run("gallery", main, (CoefficientError, InputError)))
