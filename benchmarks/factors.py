"""python -m benchmarks.factors: what crosses for an activation's derivative: codes of x, codes of f'(x), or of a table.

1. Errors of f'(x) for normal x of several standard deviations: from codes of x in groups, as all other tensors have;
   from codes of f'(x); and from the packaged few-bit tables and those for N(0, 1). The first two have half a bit more
   an element, for minima and steps.
2. Nets with random weights, frozen but for adapters of rank 4 at what goes into attention: bytes kept, the part of them
   that are factors, and the error of the adapters' gradient, with codes of 4 bits. Once as they are made, with inputs
   of activations of a standard deviation of 0.3, and once with layers around activations that have larger weights.

Nothing is timed. Writes rows under benchmarks/results/<device>/factors.jsonl. Two minutes.
"""

from benchmarks import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("factors", lambda: parsers.plain("factors", __doc__).parse_args())

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from unittest import mock

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from benchmarks.compression.models import Net, Size, build
from benchmarks.factors_page import ADAPTED, BITS, FACTORS, FUNCTIONS, INPUTS, LARGER, NAME, NORMAL, PACKAGED, SPREADS
from benchmarks.options import torch_threads
from benchmarks.rows import Row, save, summary
from coefficients import load
from fitting.activations import get
from fitting.fewbit.solve import fit
from fitting.fewbit.steps import Steps
from fitting.weights import named
from kernels.compression import Crossing, codes, cut
from kernels.compression.layout import layout_of
from kernels.compression.partitioner import CodedPartitioner
from kernels.compression.planning import run
from kernels.methods.every_tensor import EveryTensor

COUNT = 2**18
RANK, SCALE = 4, 0.05  # of adapters, whose second matrix would begin at 0
SIZE, WIDER = Size(2, 4, 64, 256), 4  # times: the middle of MLPs
INTO_ATTENTION = ("query", "value", "c_attn", "q_proj", "v_proj")


def derivative_errors(spreads: Sequence[float] = SPREADS, bits: Sequence[int] = BITS) -> list[Row]:
    """Root mean square errors of f'(x), relative to its root mean square."""
    x = torch.randn(COUNT, generator=torch.Generator().manual_seed(0))
    rows = []
    for name in FUNCTIONS:
        for count in bits:
            ways = _ways(name, count)
            for spread in spreads:
                exact = _derivative(name, spread * x)
                for way, approximate in ways.items():
                    off = float((approximate(spread * x) - exact).norm() / exact.norm())
                    size = {"bits": count}
                    rows.append(Row(name, way, str(spread), size, "float32", "relative error", **summary([off])))  # type: ignore[arg-type]
    return rows


def _ways(name: str, bits: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """By the way, f' from what backward would see of x."""
    solution = load(name, f"fewbit-{bits}bit")["solution"]
    packaged = Steps(*(torch.tensor(solution[part]).numpy() for part in ("borders", "codes", "levels")))
    normal = fit(get(name), bits, weight=named("norm")).steps
    return {
        INPUTS: lambda x: _derivative(name, _decoded(x, bits)),
        FACTORS: lambda x: _decoded(_derivative(name, x), bits),
        NORMAL: lambda x: _looked_up(normal, x),
        PACKAGED: lambda x: _looked_up(packaged, x),
    }


def _derivative(name: str, x: Tensor) -> Tensor:
    return torch.from_numpy(get(name).df(x.double().numpy())).float()


def _decoded(x: Tensor, bits: int) -> Tensor:
    layout = layout_of(x)
    assert not isinstance(layout, str)
    return layout.join(codes.decode(codes.encode(layout.split(x), bits), bits, x.dtype), layout.sizes(x))


def _looked_up(steps: Steps, x: Tensor) -> Tensor:
    borders, of_interval, levels = (torch.as_tensor(part) for part in (steps.borders, steps.codes, steps.levels))
    return levels[of_interval[torch.bucketize(x.double(), borders)]].float()


class Adapter(nn.Module):
    """A layer plus a product of rank RANK."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        rows, columns = layer.weight.shape if isinstance(layer, Conv1D) else layer.weight.shape[::-1]
        self.layer, self.down, self.up = layer, nn.Linear(rows, RANK, bias=False), nn.Linear(RANK, columns, bias=False)
        nn.init.normal_(self.up.weight, std=SCALE)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x) + self.up(self.down(x))
        return result


def adapted(name: str, size: Size, larger: float) -> Net:
    """A net that is frozen but for adapters at what goes into attention; larger: the factor of weights of its MLPs."""
    net = build(name, size, torch.float32, torch.device("cpu"))
    net.module.requires_grad_(False)  # so that weights may be changed in place
    for module in list(net.module.modules()):
        if isinstance(module, nn.Linear | Conv1D) and max(module.weight.shape) == WIDER * min(module.weight.shape):
            module.weight.mul_(larger)
        for child, layer in list(module.named_children()):
            if child in INTO_ATTENTION:
                setattr(module, child, Adapter(layer))
    return net


def net_errors(names: Sequence[str] = ADAPTED, size: Size = SIZE) -> Iterator[Row]:
    """Yield bytes kept, those of factors, and errors of the gradient."""
    for name, larger in product(names, LARGER):
        net = adapted(name, size, larger)
        exact = _gradient(net, net.module)
        others: set[str] = set()
        for way in (INPUTS, FACTORS):
            rows, coded = _coded(net, way)
            others = others or {row.site for row in rows}
            values = {
                "kept": sum(row.after for row in rows),
                "factors": sum(row.after for row in rows if row.site not in others),
                "error": float((coded - exact).norm() / exact.norm()),
            }
            for mode, value in values.items():
                unit = "relative error" if mode == "error" else "B"
                sizes = {**size._asdict(), "larger": larger}
                yield Row(name, way, mode, sizes, "float32", unit, **summary([float(value)]))  # type: ignore[arg-type]


def _coded(net: Net, way: str) -> tuple[list[Crossing], Tensor]:
    """What crosses in 4 bits, and the gradient."""
    made = CodedPartitioner(EveryTensor(4))
    with _without_factors() if way == INPUTS else nullcontext():
        gradient = _gradient(net, lambda *args, **kwargs: run(net.module, made, args, kwargs))
    return [row for graph in made.graphs for row in graph.crossings], gradient


def _without_factors() -> AbstractContextManager[object]:
    return mock.patch.object(cut, "cross_factors", lambda forward, backward, pairs, coded: pairs)


def _gradient(net: Net, call: Callable[..., object]) -> Tensor:
    net.module.zero_grad()
    net.loss(call).backward()
    return net.gradient()


def main() -> None:
    parsers.plain("factors", __doc__).parse_args()
    with torch_threads(1):
        rows = [*derivative_errors(), *net_errors()]
    print(f"wrote {save(rows, NAME)}")


if __name__ == "__main__":
    main()
