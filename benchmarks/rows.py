"""The one row format of all benchmarks, and where rows are kept."""

import json
import platform
import re
import statistics
import subprocess
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).with_name("results")
LIBRARIES = ("numpy", "scipy", "numba", "sympy")


def device() -> str:
    """The processor's name, as a folder name."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        name = re.findall(r"model name\s*:\s*(.*)", info)[0]
    except (OSError, IndexError):
        name = platform.processor() or platform.machine()
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()


def revision() -> str:
    """The commit measured, with a + where the tree differed from it; `unknown` outside git."""
    done = subprocess.run(["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in LIBRARIES}}


@dataclass(frozen=True)
class Row:
    """What was measured (`what`), of whom (`implementation`), how (`mode`), on how much (`size`), in `unit`."""

    what: str
    implementation: str
    mode: str
    size: dict[str, int]
    dtype: str
    unit: str
    median: float
    quantiles: tuple[float, float]  # 20 % and 80 %
    runs: int
    device: str = field(default_factory=device)
    versions: dict[str, str] = field(default_factory=versions)
    revision: str = field(default_factory=revision)


def summary(values: list[float]) -> dict[str, object]:
    """The fields of a row that come from repeated measurements."""
    ordered = sorted(values)
    low, high = ordered[round(0.2 * (len(ordered) - 1))], ordered[round(0.8 * (len(ordered) - 1))]
    return {"median": statistics.median(values), "quantiles": (low, high), "runs": len(values)}


def save(rows: list[Row], name: str) -> Path:
    """Write rows as JSON lines to results/<device>/<name>.jsonl, whole or not at all."""
    path = RESULTS / device() / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf-8")
    partial.replace(path)
    return path
