"""python -m benchmarks.memory: bytes kept for backward, of models by name and of one MLP in eager and compiled.

Models run on fake tensors and are counted as CUDA keeps them, so the numbers are the same on every machine. The MLP
runs for real, on the CPU. `docs/results/memory.md` shows both tables: `python -m benchmarks.report` puts them there.
"""

from actfit.coefficients import command
from benchmarks import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("memory", lambda: parsers.memory(__doc__).parse_args())

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from tqdm import tqdm

import actfit
from actfit import KernelError, compress, saved_bytes
from actfit.kernels.engine.elements import dtype_name
from actfit.kernels.memory import zoo
from benchmarks.baselines.checkpointed import Checkpointed
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
WIDTH, ROWS = 64, 128  # of the input; the hidden tensor is four times as wide


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


class NewGELU(nn.Module):
    """GELU by tanh, written out as transformers does."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


MODES = ("eager", "compile", "compile, recomputing", "checkpoint")
ACTS: dict[str, Callable[[], nn.Module]] = {
    "nn.GELU": nn.GELU,
    "GELU written out": NewGELU,
    "invact": actfit.nn.GELU,
    "fewbit, 1 bit": lambda: actfit.nn.GELU(method="fewbit", bits=1),
}


def mlps() -> list[Row]:
    """Rows of Linear, activation, Linear, in units of the input, which counts too."""
    rows = []
    for name, act in ACTS.items():
        for mode in MODES:
            x = torch.randn(ROWS, WIDTH, requires_grad=True)
            net: Any = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), act(), nn.Linear(4 * WIDTH, WIDTH))
            if mode == "checkpoint":
                net = Checkpointed(net)
            torch._dynamo.reset()
            with torch._functorch.config.patch(ban_recompute_materialized_backward=mode != "compile, recomputing"):
                saved = saved_bytes(torch.compile(net) if mode.startswith("compile") else net, x)
            units = (saved.total + saved.inputs) / x.nbytes
            size = {"rows": ROWS, "width": WIDTH}
            rows.append(Row("kept by an MLP", name, mode, size, "float32", "units", **summary([units])))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    path = output(parsers.memory(__doc__).parse_args(arguments).out)
    record([("memory", [*models(), *mlps()])], path, quick=False)
    return command.GOOD


if __name__ == "__main__":
    sys.exit(command.run("memory", main, (KernelError,)))
