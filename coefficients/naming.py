"""The names of documents: method, size, and then each option that is not the default: `fewbit-3bit-norm_0_2`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from actfit.coefficients.functions import CATALOGUE
from actfit.coefficients.schema import Document, problem, schema

DOMAIN: Final = (-10.0, 10.0)  # for a weight without a domain of its own
WEIGHTS: Final = {"fewbit": "uniform", "joint": "norm", "invact": "norm"}
ENGINES: Final = ("minimax", "template")
_FILE: Final = re.compile(r"(?P<name>.+)\.v(?P<version>[1-9][0-9]{0,8})\.json")
_UNSTORED: Final = re.compile(r"-imported|-templates=[0-9a-f]{8}")  # parts of a name that no document holds


def file_name(document: Document, domain: Sequence[float] = DOMAIN, extra: Sequence[str] = ()) -> str:
    """The name, in characters that suit any file system.

    Parameters
    ----------
    document
        A fit.
    domain
        The weight's own domain, which is left out of the name.
    extra
        Parts of the name that no document holds.
    """
    row = CATALOGUE.get(document["function"]["name"])
    defaults = row.params if row else {}
    given = {key: float(value) for key, value in sorted(document["function"]["params"].items())}  # as files have them
    params = [f"{key}={value!r}" for key, value in given.items() if defaults.get(key) != value]
    make = {"fewbit": _fewbit, "joint": _joint, "invact": _invact}[document["method"]]
    parts = make(document, params, domain, extra)
    return re.sub(r"[^A-Za-z0-9._=+-]+", "_", "-".join(parts)).strip("_")


def _fewbit(document: Document, params: list[str], domain: Sequence[float], extra: Sequence[str]) -> list[str]:
    options = document["options"]
    return [
        f"fewbit-{options['bits']}bit",
        *([options["levels"]] if options["levels"] != "best" else []),
        *extra,
        *params,
        *_weight(document),
        *_domain(document, domain),
    ]


def _joint(document: Document, params: list[str], domain: Sequence[float], extra: Sequence[str]) -> list[str]:
    options = document["options"]
    ratio = float(options["lambda"])
    return [
        f"joint-{options['bits']}bit",
        *([f"lambda={ratio!r}"] if ratio != 1.0 else []),
        *extra,
        *params,
        *_weight(document),
        *_domain(document, domain),
    ]


def _invact(document: Document, params: list[str], domain: Sequence[float], extra: Sequence[str]) -> list[str]:
    options, seed = document["options"], document["provenance"]["seed"]
    engine, budget, limit = options["engine"], options["budget"], options["max_error"]
    return [
        f"invact-{options['dtype']}",
        *(["2bit"] if "bits" in options else []),
        *([engine] if engine not in ("closed", "adapted", "+".join(ENGINES)) else []),
        *extra,
        *([f"seed={seed}"] if seed else []),
        *([f"budget={budget}"] if budget is not None else []),
        *params,
        *_weight(document),
        *([f"max-error={float(limit)!r}"] if limit is not None else []),
    ]


def _weight(document: Document) -> list[str]:
    label = document["options"]["weight"]
    return [] if label == WEIGHTS[document["method"]] else [label]


def _domain(document: Document, usual: Sequence[float]) -> list[str]:
    low, high = map(float, document["options"]["domain"])
    return [f"domain={low!r}_{high!r}"] if (low, high) != tuple(usual) else []


def check_name(document: Document, name: str) -> None:
    """Raise CoefficientError where a name that begins with a method's name describes another document.

    Names that begin otherwise are free. Parts that the document cannot confirm, such as a distribution's own domain,
    may be in the name or not.
    """
    claimed = re.match(r"[a-z]+(?=-)", name)
    if claimed is None or claimed[0] not in WEIGHTS:
        return
    options: dict[str, Any] = document["options"]
    domains: list[Sequence[float]] = [DOMAIN]
    if "domain" in options and options["weight"] != "uniform":
        domains.append(tuple(map(float, options["domain"])))
    names = list(dict.fromkeys(file_name(document, domain) for domain in domains))
    if _UNSTORED.sub("", name) not in names:
        raise problem("the file's name", f"must be what the document says, {' or '.join(map(repr, names))}", name)


def is_name(text: str) -> bool:
    """Whether the text may name a function, a file or a folder."""
    return re.search(schema()["$defs"]["name"]["pattern"], text) is not None


def place_of(path: Path) -> tuple[str, str, int] | None:
    """Function, name and version from a file's path; None if it is not named like a coefficient file."""
    match = _FILE.fullmatch(path.name)
    if not (match and is_name(match["name"]) and is_name(path.parent.name)):
        return None
    return path.parent.name, match["name"], int(match["version"])


def check_place(document: Document, path: Path) -> None:
    """Check that the content of `<function>/<name>.v<version>.json` agrees with its path; other names are free."""
    match = _FILE.fullmatch(path.name)
    if match is None:
        return
    if document["version"] != int(match["version"]):
        raise problem("version", f"must be that of the file's name, {match['version']}", document["version"])
    check_name(document, match["name"])
    folder = path.absolute().parent.name
    if is_name(match["name"]) and is_name(folder) and document["function"]["name"] != folder:
        rule = f"must be the name of the file's folder, {folder!r}"
        raise problem("function.name", rule, document["function"]["name"])
