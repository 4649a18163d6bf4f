"""python -m benchmarks.proofs: how near to their proven bounds the few-bit tables of an earlier revision were.

By default of the last revision before bounds became sharper; git must have it. Writes rows under
benchmarks/results/<device>/proofs.jsonl; median: the part of the error by which its bound is below it, as the file
states it. Seconds.
"""

from benchmarks import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("proofs", lambda: parsers.proofs(__doc__).parse_args())

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.proofs_page import NAME
from benchmarks.rows import Row, save, summary

ROOT = Path(__file__).parents[1]


def measure(revision: str) -> list[Row]:
    """The rows of the tables that `revision` had. Raises `Misuse` where git does not have it, or no tables there."""
    try:
        paths = _git("ls-tree", "-r", "--name-only", "--full-tree", revision, "coefficients/data").split()
        commit = _git("rev-parse", "--short=7", revision).strip()
    except (OSError, subprocess.CalledProcessError):
        raise command.Misuse(f"--revision must be one of this git repository, got {revision!r}") from None
    rows = []
    for path in (path for path in paths if Path(path).match("fewbit-?bit.v1.json")):
        document = json.loads(_git("show", f"{revision}:{path}"))
        name, bits, gap = document["function"]["name"], document["options"]["bits"], document["error"]["gap"]
        row = Row(name, "stored bound", NAME, {"bits": bits}, "float64", "part of the error", **summary([gap]))  # type: ignore[arg-type]
        rows.append(replace(row, revision=commit))
    return rows


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, encoding="utf-8", check=True).stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = parsers.proofs(__doc__).parse_args(arguments)
    print(f"wrote {save(measure(options.revision), NAME)}")
    return command.GOOD


if __name__ == "__main__":
    sys.exit(command.run("proofs", main))
