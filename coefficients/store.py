"""The folder of coefficient files: find, read and publish `<root>/<function>/<name>.v<version>.json`."""

import dataclasses
import difflib
import errno
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from coefficients.document import canonical, check_hash, check_unsealed, dumps, parse, seal
from coefficients.naming import check_name
from coefficients.notes import READING, WRITING, noted
from coefficients.schema import CoefficientError, Document, problem, schema

DATA: Final = Path(__file__).with_name("data")
"""The packaged files."""

_FILE: Final = re.compile(r"(?P<name>.+)\.v(?P<version>[1-9][0-9]{0,8})\.json")


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Entry:
    """One published file."""

    function: str
    name: str
    version: int
    path: Path


@dataclasses.dataclass(frozen=True, slots=True)
class Published:
    """Where a document is, and whether publish wrote it (new) or found it there (unchanged)."""

    path: Path
    written: bool


def available(root: Path | None = None) -> list[Entry]:
    """All files below root (default: the packaged ones) by function, name and version; no file is opened.

    What is not named like a coefficient file is left out; a root that does not exist holds nothing.
    """
    found = (_entry(path) for path in (root or DATA).glob("*/*.json"))
    return sorted(entry for entry in found if entry is not None)


def load(
    source: str | os.PathLike[str],
    name: str | None = None,
    *,
    version: int | None = None,
    root: Path | None = None,
) -> Document:
    """The validated document of a file: load(path), or load(function, name) for the newest version in root.

    root defaults to the packaged files. Raises CoefficientError when there is no such function, name (with
    the nearest ones) or version, or the file is not valid; OSError when it cannot be read; TypeError for a
    version or root with a path.
    """
    if name is not None:
        return _read(_find(os.fspath(source), name, version, root).path)
    if version is not None or root is not None:
        raise TypeError("load: version and root go with a function and a name, not with a path")
    path = Path(source)
    if not path.exists():
        hint = "no such file (by function: load(function, name))"
        raise FileNotFoundError(errno.ENOENT, hint, str(path))
    return _read(path)


def publish(document: Document, name: str, root: Path) -> Published:
    """Write a fit, which has no schema_version, version and sha256, as root/function/name's next version.

    When the newest version has the same content, whatever the library versions, nothing is written. A
    published version is never changed; a name has one publisher at a time. Raises CoefficientError when the
    name, the document or the newest version is not valid, or the name tells of another document, OSError when the file
    cannot be written.
    """
    _check_name("name", name)
    fit = seal(document, 1)
    check_name(fit, name)
    function = fit["function"]["name"]
    newest = _newest(function, name, root)
    if newest is not None:
        if _content(_read(newest.path)) == _content(fit):
            return Published(newest.path, written=False)
        fit = seal(document, newest.version + 1)
    path = root / function / f"{name}.v{fit['version']}.json"
    with noted(WRITING):
        path.parent.mkdir(parents=True, exist_ok=True)
    write(fit, path)
    return Published(path, written=True)


def found_same(document: Document, name: str, root: Path) -> Path | None:
    """The newest version that `publish` would find to say the same; None where there is none.

    Raises CoefficientError when the document or that version is not valid, OSError when it cannot be read.
    """
    newest = _newest(document["function"]["name"], name, root)
    same = newest is not None and _content(_read(newest.path)) == _content(seal(document, 1))
    return newest.path if newest is not None and same else None


def _newest(function: str, name: str, root: Path) -> Entry | None:
    return max((e for e in available(root) if (e.function, e.name) == (function, name)), default=None)


def write(document: Document, path: Path) -> None:
    """Write a sealed document to a file of any name, whole or not at all.

    Raises CoefficientError when the document is not valid, OSError when the file cannot be written.
    """
    write_text(path, dumps(document))


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all. Raises OSError when it cannot be written."""
    with whole(path) as partial, partial.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file of the same ending to write to, which takes the place of `path` where all goes well, and else is gone.

    Raises OSError, with the name `path`, when it cannot be written.
    """
    place = path.resolve()  # a link stays, and what it points to is written
    # Its own name, as others may write here, too. Not by tempfile, whose files only the owner may read.
    partial = place.with_name(f".{uuid.uuid4().hex}.tmp{path.suffix}")
    try:
        with noted(WRITING, path):  # and not the partial, which nobody has named
            yield partial
            os.replace(partial, place)
    finally:
        partial.unlink(missing_ok=True)


def find_function(function: str, root: Path | None = None) -> list[Entry]:
    """The entries of one function. Raises CoefficientError, with the nearest names, when there is none."""
    entries = available(root)
    found = [e for e in entries if e.function == function]
    if not found:
        raise _unknown("function", function, (e.function for e in entries))
    return found


def _find(function: str, name: str, version: int | None, root: Path | None) -> Entry:
    of_function = find_function(function, root)
    found = [e for e in of_function if e.name == name]
    if not found:
        raise _unknown(f"name of a {function} file", name, (e.name for e in of_function))
    if version is None:
        return found[-1]
    for entry in found:
        if entry.version == version:
            return entry
    versions = ", ".join(str(e.version) for e in found)
    raise problem("version", f"of {function} {name} must be one of {versions}", version)


def _unknown(what: str, value: str, known: Iterable[str]) -> CoefficientError:
    names = sorted(set(known))
    near = difflib.get_close_matches(value, names, n=3) or names[:8]
    way_out = f"nearest: {', '.join(near)}" if near else "there are no files at all"
    return problem(what, f"must be one that `python -m coefficients list` shows ({way_out})", value)


def _read(path: Path) -> Document:
    document = read_unsealed(path)
    try:
        check_hash(document)
    except CoefficientError as error:
        raise CoefficientError(f"{path}: {error}") from None
    return document


def read_unsealed(path: Path) -> Document:
    """A document whose shape, meaning and place are right, and whose hash nobody has looked at yet.

    Raises CoefficientError when they are not, OSError when the file cannot be read.
    """
    try:
        with noted(READING):
            text = path.read_text(encoding="utf-8")
        document = check_unsealed(parse(text))
        _check_place(document, path)
    except UnicodeDecodeError as error:
        raise CoefficientError(f"{path}: must be text in UTF-8: {error.reason} at byte {error.start}") from None
    except CoefficientError as error:
        raise CoefficientError(f"{path}: {error}") from None
    return document


def _check_place(document: Document, path: Path) -> None:
    """A file `<function>/<name>.v<version>.json` says so of itself; other files may be named as one likes."""
    match = _FILE.fullmatch(path.name)
    if match is None:
        return
    if document["version"] != int(match["version"]):
        raise problem("version", f"must be that of the file's name, {match['version']}", document["version"])
    check_name(document, match["name"])
    entry = _entry(path.absolute())
    if entry is not None and document["function"]["name"] != entry.function:
        rule = f"must be the name of the file's folder, {entry.function!r}"
        raise problem("function.name", rule, document["function"]["name"])


def _entry(path: Path) -> Entry | None:
    match = _FILE.fullmatch(path.name)
    if not (match and _is_name(match["name"]) and _is_name(path.parent.name)):
        return None
    return Entry(path.parent.name, match["name"], int(match["version"]), path)


def _content(document: Document) -> str:
    """What makes two versions differ: all but the document's and the libraries' versions and the hash."""
    provenance: dict[str, Any] = {**document["provenance"], "versions": {}}
    return canonical({**document, "provenance": provenance}, without=("version", "sha256"))


def _is_name(text: str) -> bool:
    return re.search(schema()["$defs"]["name"]["pattern"], text) is not None


def _check_name(what: str, text: str) -> None:
    if not isinstance(text, str) or not _is_name(text):
        raise problem(
            what, "must begin with a letter or digit, hold only letters, digits, . _ = + -, and no '..'", text
        )
