"""The folder of coefficient files: find, read and publish `<root>/<function>/<name>.v<version>.json`."""

import dataclasses
import difflib
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from actfit.coefficients.document import canonical, dumps, read, seal
from actfit.coefficients.files import WRITING, noted, write_text
from actfit.coefficients.naming import check_name, is_name, place_of
from actfit.coefficients.schema import CoefficientError, Document, problem

DATA: Final = Path(__file__).with_name("data")
"""The packaged files."""


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Entry:
    """One published file.

    Attributes
    ----------
    function
        The name of its folder: gelu.
    name
        Its name, without version and ending: fewbit-3bit.
    version
        Its version, from 1.
    path
        Its path.
    """

    function: str
    name: str
    version: int
    path: Path


@dataclasses.dataclass(frozen=True, slots=True)
class Published:
    """The outcome of `publish`.

    Attributes
    ----------
    path
        The document's file.
    written
        True for a new file, False where the newest version says the same.
    """

    path: Path
    written: bool


def available(root: Path | None = None) -> list[Entry]:
    """All coefficient files below a folder; none is opened.

    Parameters
    ----------
    root
        The folder; by default the packaged files. A folder that does not exist has no files.

    Returns
    -------
    list of Entry
        By function, name and version. Files that are not named like coefficient files are left out.
    """
    entries = (_entry(path) for path in (root or DATA).glob("*/*.json"))
    return sorted(entry for entry in entries if entry is not None)


def load(
    source: str | os.PathLike[str],
    name: str | None = None,
    *,
    version: int | None = None,
    root: Path | None = None,
) -> Document:
    """Read and validate a file: `load(path)`, or `load(function, name)` for the newest version.

    Parameters
    ----------
    source
        The path of a file; with a name, a function such as gelu.
    name
        A name in that function's folder, such as fewbit-3bit.
    version
        Another version than the newest; only with a name.
    root
        Another folder than that of the packaged files; only with a name.

    Returns
    -------
    dict
        The document, valid in shape, meaning and hash.

    Raises
    ------
    CoefficientError
        Where there is no such function, name or version, or the file is not valid.
    OSError
        Where the file cannot be read.
    TypeError
        For a version or a root with a path.
    """
    if name is not None:
        return read(_find(os.fspath(source), name, version, root).path)
    if version is not None or root is not None:
        raise TypeError("load: version and root go with a function and a name, not with a path")
    path = Path(source)
    if not path.exists():
        hint = "no such file (by function: load(function, name))"
        raise FileNotFoundError(errno.ENOENT, hint, str(path))
    return read(path)


def publish(document: Document, name: str, root: Path) -> Published:
    """Write a fit as the next version of its name: `root/function/name.vN.json`.

    Nothing is written where the newest version has the same content, whatever the library versions. A published version
    is never changed. Two processes must not publish the same name at the same time.

    Parameters
    ----------
    document
        The fit, without schema_version, version and sha256.
    name
        The name of the file, without version and ending.
    root
        The folder of coefficient files.

    Returns
    -------
    Published
        The file, and whether it is new.

    Raises
    ------
    CoefficientError
        Where the name, the document or the newest version is not valid, or the name contradicts the document.
    OSError
        Where the file cannot be written.
    """
    _check_name("name", name)
    fit = seal(document, 1)
    check_name(fit, name)
    function = fit["function"]["name"]
    newest = _newest(function, name, root)
    if newest is not None:
        if _content(read(newest.path)) == _content(fit):
            return Published(newest.path, written=False)
        fit = seal(document, newest.version + 1)
    path = root / function / f"{name}.v{fit['version']}.json"
    with noted(WRITING):
        path.parent.mkdir(parents=True, exist_ok=True)
    write(fit, path)
    return Published(path, written=True)


def unchanged_version(document: Document, name: str, root: Path) -> Path | None:
    """The newest version, if it has the same content, so that `publish` would write nothing; else None.

    Raises CoefficientError when the document or that version is not valid, OSError when it cannot be read.
    """
    newest = _newest(document["function"]["name"], name, root)
    same = newest is not None and _content(read(newest.path)) == _content(seal(document, 1))
    return newest.path if newest is not None and same else None


def _newest(function: str, name: str, root: Path) -> Entry | None:
    return max((e for e in available(root) if (e.function, e.name) == (function, name)), default=None)


def write(document: Document, path: Path) -> None:
    """Write a sealed document to a file of any name, whole or not at all.

    Parameters
    ----------
    document
        A complete document, as `load` and `seal` give it.
    path
        The file.

    Raises
    ------
    CoefficientError
        Where the document is not valid.
    OSError
        Where the file cannot be written.
    """
    write_text(path, dumps(document))


def find_function(function: str, root: Path | None = None) -> list[Entry]:
    """The entries of one function. Raises CoefficientError, with the nearest names, when there is none."""
    entries = available(root)
    of_function = [e for e in entries if e.function == function]
    if not of_function:
        raise _unknown("function", function, (e.function for e in entries))
    return of_function


def _find(function: str, name: str, version: int | None, root: Path | None) -> Entry:
    of_function = find_function(function, root)
    named = [e for e in of_function if e.name == name]
    if not named:
        raise _unknown(f"name of a {function} file", name, (e.name for e in of_function))
    if version is None:
        return named[-1]
    for entry in named:
        if entry.version == version:
            return entry
    versions = ", ".join(str(e.version) for e in named)
    raise problem("version", f"of {function} {name} must be one of {versions}", version)


def _unknown(what: str, value: str, known: Iterable[str]) -> CoefficientError:
    names = sorted(set(known))
    near = difflib.get_close_matches(value, names, n=3) or names[:8]
    way_out = f"nearest: {', '.join(near)}" if near else "there are no files at all"
    return problem(what, f"must be one that `actfit list` shows ({way_out})", value)


def _entry(path: Path) -> Entry | None:
    place = place_of(path)
    return None if place is None else Entry(*place, path)


def _content(document: Document) -> str:
    """The content that makes a new version: all but the hash and the versions of document and libraries."""
    provenance: dict[str, Any] = {**document["provenance"], "versions": {}}
    return canonical({**document, "provenance": provenance}, without=("version", "sha256"))


def _check_name(what: str, text: str) -> None:
    if not isinstance(text, str) or not is_name(text):
        raise problem(
            what, "must begin with a letter or digit, hold only letters, digits, . _ = + -, and no '..'", text
        )
