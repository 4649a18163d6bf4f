"""python -m benchmarks.memory: bytes kept for backward, of models by name.

They run on fake tensors and are counted as CUDA keeps them, so the numbers are the same on every machine.
`docs/results/memory.md` shows them: `python -m benchmarks.report` puts them there.
"""

from actfit.coefficients import command
from benchmarks import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("memory", lambda: parsers.memory(__doc__).parse_args())

import sys
from collections.abc import Sequence
from typing import Any

from torch._subclasses import FakeTensorMode
from tqdm import tqdm

from actfit import KernelError, compress, saved_bytes
from actfit.kernels.engine.elements import dtype_name
from actfit.kernels.memory import zoo
from benchmarks.options import output
from benchmarks.rows import Row, record, summary

MODELS = parsers.MODELS
STOCK = "as it is"
WAYS: dict[str, dict[str, Any]] = {
    "exact": {},
    **{f"{bits} bits": {"bits": bits} for bits in (8, 4, 2)},
    **{name: {"policy": name} for name in ("invact", "fewbit-3")},
}
KEPT = "kept for backward"


def models() -> list[Row]:
    """Rows of each model, as it is and by `compress`."""
    return [row for name in tqdm(MODELS, disable=not sys.stderr.isatty()) for row in _model(name)]


def _model(name: str) -> list[Row]:
    with FakeTensorMode():
        model, args, kwargs = zoo.build(name)
    named = dtype_name(next(model.parameters()).dtype)

    def kept(way: str) -> Row:
        total = saved_bytes(model, *args, accounting="cuda", fake=True, **kwargs).total
        return Row(KEPT, way, name, {}, named, "B", **summary([float(total)]))

    rows = [kept(STOCK)]
    for way, options in WAYS.items():
        handle = compress(model, **options)
        rows.append(kept(way))
        handle.remove()
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    path = output(parsers.memory(__doc__).parse_args(arguments).out)
    record([("memory", models())], path, quick=False)
    return command.GOOD


if __name__ == "__main__":
    sys.exit(command.run("memory", main, (KernelError,)))
