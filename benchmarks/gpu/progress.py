"""What of `benchmarks.gpu` is done: a small file, written whole after each part, good for one state of the sources."""

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from actfit.coefficients.files import write_text
from benchmarks.gpu.steps import root

DONE, FAILED, BLOCKED = "done", "failed", "blocked"
SOURCES = ("benchmarks", "codegen", "coefficients", "fitting", "kernels", "tests")


def sources() -> str:
    """The first digits of SHA-256 over all code and coefficients: there may be no git where a GPU is."""
    digest = hashlib.sha256()
    paths = (path for folder in SOURCES for kind in ("*.py", "*.json") for path in (root() / folder).rglob(kind))
    for path in sorted(paths):
        digest.update(path.relative_to(root()).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True)
class Outcome:
    """How a part ended; failed: the names of tests that did."""

    state: str
    seconds: float = 0.0
    said: str = ""
    failed: tuple[str, ...] = ()


@dataclass
class Progress:
    """The outcomes by names of parts, in `folder`, where rows and logs lie, too."""

    folder: Path
    sources: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / "progress.json"

    def note(self, name: str, outcome: Outcome) -> None:
        """Keep how a part ended, at once."""
        self.outcomes[name] = outcome
        content = {"sources": self.sources, "parts": {key: asdict(part) for key, part in self.outcomes.items()}}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps(content, indent=1) + "\n")

    def done(self, name: str) -> bool:
        """Whether a part went well and its rows, if any, are there."""
        outcome = self.outcomes.get(name)
        return outcome is not None and outcome.state == DONE

    def rows(self, name: str) -> Path:
        """Where a part's rows go."""
        return self.folder / "rows" / f"{name.replace('/', '-')}.jsonl"

    def log(self, name: str) -> Path:
        """Where a part's output goes."""
        return self.folder / "logs" / f"{name.replace('/', '-')}.txt"


def resumed(folder: Path, *, again: bool = False) -> tuple[Progress, str]:
    """The progress in a folder, and what there is to say of it: begun anew where asked for, or of other sources."""
    progress, said = Progress(folder, sources()), ""
    if progress.path.is_file() and not again:
        said = _take_up(progress)
    if not progress.outcomes:  # rows of what is forgotten must not be published with new ones
        progress.path.unlink(missing_ok=True)
        shutil.rmtree(folder / "rows", ignore_errors=True)
    return progress, said


def _take_up(progress: Progress) -> str:
    """Fill in the outcomes of the file, or say why not."""
    try:
        known = json.loads(progress.path.read_text(encoding="utf-8"))
        parts = {name: Outcome(**{**part, "failed": tuple(part["failed"])}) for name, part in known["parts"].items()}
        of = known["sources"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{progress.path} is damaged: all begins anew"
    if of != progress.sources:
        return "the sources are not those of the last call: all begins anew"
    progress.outcomes = parts
    return ""
