"""Ways to code the input x of an activation f, each with 2^bits codes; backward reads f'(x) and f(x) of them.

Beside the codes, groups store 4 bytes each (a minimum and a step) or 2 (a scale); tables belong to a layer.
"""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

import kernels.engine.ops  # noqa: F401 - registers the ops
from benchmarks.activation_codes.page import IN_GROUPS, TWO_TABLES
from fitting.activations import get
from fitting.fewbit.solve import fit
from fitting.joint.solve import JointFit, fit_joint
from fitting.joint.table import Table
from fitting.weights import from_samples
from kernels.engine.elements import torch_elements

Samples = tuple[float, ...]
Pair = tuple[Tensor, Tensor]  # f'(x) and f(x), or what stands for them
Way = Callable[[str, Tensor, int, int, Samples], list[Pair]]

OUTPUT_ALONE = 1e6  # λ of a table for f, as good as without f'
LLOYD_STEPS = 300  # the last moves levels of 8 bits by less than 1e-4
POINTS, REACH = 20001, 16.0  # of the grid on which the companding function is tabulated


def exact(function: str, x: Tensor) -> Pair:
    """f'(x) and f(x)."""
    elements = torch_elements(function)
    return elements.derivative(x, ()), elements.forward(x, ())


def in_groups(function: str, x: Tensor, bits: int, group: int, samples: Samples) -> list[Pair]:
    """x in steps from a group's minimum to its maximum; f' and f are computed of the decoded x."""
    return [exact(function, _steps(x, bits, group))]


def in_scaled_groups(function: str, x: Tensor, bits: int, group: int, samples: Samples) -> list[Pair]:
    """x in the best levels for N(0, 1), times the group's root mean square."""
    groups = x.reshape(-1, group)
    scale = groups.square().mean(1, keepdim=True).sqrt().bfloat16().float()
    levels = torch.tensor(normal_levels(bits), dtype=torch.float32)
    places = torch.bucketize(groups / scale.clamp(min=torch.finfo(torch.float32).tiny), (levels[1:] + levels[:-1]) / 2)
    return [exact(function, (levels[places] * scale).reshape(x.shape))]


def companded(function: str, x: Tensor, bits: int, group: int, samples: Samples) -> list[Pair]:
    """c(x) in steps from a group's minimum, c' = (f''² + f'²)^(1/3): many fine steps where (f', f) moves fast.

    The density of levels that is best for an even density of x (Panter and Dite 1951).
    """
    grid, companding = _companding(function)
    decoded = _steps(torch.from_numpy(np.interp(x.numpy(), grid, companding)).float(), bits, group)
    return [exact(function, torch.from_numpy(np.interp(decoded.numpy(), companding, grid)).float())]


def normal_table(function: str, x: Tensor, bits: int, group: int, samples: Samples) -> list[Pair]:
    """A joint table for N(0, 1)."""
    return [_looked_up(_joint(function, bits, ()), x)]


def own_table(function: str, x: Tensor, bits: int, group: int, samples: Samples) -> list[Pair]:
    """A joint table for recorded numbers of the layer."""
    return [_looked_up(_joint(function, bits, samples), x)]


def two_tables(function: str, x: Tensor, bits: int, group: int, samples: Samples) -> list[Pair]:
    """A table for f' and another for f, both for recorded numbers, which share the bits in all possible ways."""
    pairs = []
    for of_derivative in range(1, bits):
        derivatives = _few_bit(function, of_derivative, samples)
        outputs = _joint(function, bits - of_derivative, samples, OUTPUT_ALONE)
        pairs.append((_looked_up(derivatives, x)[0], _looked_up(outputs, x)[1]))
    return pairs


WAYS: dict[str, Way] = {
    TWO_TABLES: two_tables,
    "joint table for N(0, 1)": normal_table,
    "joint table of the layer's own numbers": own_table,
    IN_GROUPS: in_groups,
    "x by the root mean square": in_scaled_groups,
    "x companded, by minimum and step": companded,
}


@cache
def normal_levels(bits: int) -> tuple[float, ...]:
    """The 2^bits numbers that stand for those of N(0, 1) with the least mean square error (Max 1960, Lloyd 1982).

    Each is the mean of the numbers that are nearest to it.
    """
    normal, count = NormalDist(), 1 << bits
    levels = [NormalDist(0.0, 3**0.5).inv_cdf((place + 0.5) / count) for place in range(count)]
    for _ in range(LLOYD_STEPS):
        borders = [(low + high) / 2 for low, high in pairwise(levels)]
        density = [0.0, *map(normal.pdf, borders), 0.0]
        below = [0.0, *map(normal.cdf, borders), 1.0]
        levels = [(density[i] - density[i + 1]) / (below[i + 1] - below[i]) for i in range(count)]
    return tuple(levels)


def _steps(x: Tensor, bits: int, group: int) -> Tensor:
    place = group, 1, x.numel()
    planes, minimum, step = torch.ops.actfit.encode_groups(x.reshape(-1), None, *place, bits)
    unsigned = None, None, 1, None, 0.0, False
    flat: Tensor = torch.ops.actfit.decode(planes, step, minimum, *place, *unsigned, x.numel(), torch.float32)
    return flat.view(x.shape)


@cache
def _companding(function: str) -> tuple[np.ndarray, np.ndarray]:
    grid = np.linspace(-REACH, REACH, POINTS)
    derivative = get(function).df(grid)
    speed = (np.gradient(derivative, grid) ** 2 + derivative**2) ** (1 / 3)
    return grid, np.concatenate([[0.0], np.cumsum((speed[1:] + speed[:-1]) / 2)]) * (grid[1] - grid[0])


@cache
def _joint(function: str, bits: int, samples: Samples, output_weight: float = 1.0) -> Table:
    weight = from_samples(samples) if samples else None
    made: JointFit = fit_joint(get(function), bits, output_weight=output_weight, weight=weight)
    return made.table


@cache
def _few_bit(function: str, bits: int, samples: Samples) -> Table:
    steps = fit(get(function), bits, weight=from_samples(samples)).steps
    levels = steps.levels[steps.codes]
    return Table(steps.borders, levels, levels)


def _looked_up(table: Table, x: Tensor) -> Pair:
    codes = table.codes(x.double().numpy())
    derivatives, outputs = (torch.from_numpy(levels[codes]).float() for levels in (table.derivatives, table.outputs))
    return derivatives, outputs
