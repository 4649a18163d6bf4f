"""Bytes kept and errors of the gradient by compress and by the generic hook, and their ratios."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from benchmarks.baselines.hooked import saving_neighbours
from benchmarks.compression.meter import measured
from benchmarks.compression.models import Net
from benchmarks.planning.errors import interpolated
from benchmarks.planning.nets import CPU
from kernels import convert
from kernels.memory.storages import tensors

BITS = (8, 4, 2)  # of ours
HOOK_BITS, GROUPS = (2, 3, 4, 6, 8), (64, 128)
OURS, HOOK, STOCK = "compress", "hook", "as it is"
KEPT, ERROR, KEPT_RATIO, ERROR_RATIO = "B kept", "error of the gradient", "ratio of bytes", "ratio of errors"
SAME_BITS, SAME_BYTES, EACH = "same bits", "same bytes", "each"
Values = dict[tuple[str, str, str], float]  # by mode, implementation and unit


class Point(NamedTuple):
    """Bytes kept for backward, and the error of the whole gradient relative to its length."""

    kept: int
    error: float


def ours(bits: int) -> str:
    """The name of compress with these bits."""
    return f"{OURS} {bits} bits"


def hook(bits: int, group: int) -> str:
    """The name of the hook with these bits and groups."""
    return f"{HOOK} {bits} bits, groups of {group}"


class Meter:
    """Points of one network, which is as before after each.

    Parameters
    ----------
    net
        The network and its batch.
    """

    def __init__(self, net: Net) -> None:
        self.net = net
        net.loss(net.module).backward()  # allocates the gradients
        self._exact = self._gradient(nullcontext)
        self.stock = measured(partial(net.loss, net.module), CPU).kept

    def ours(self, bits: int) -> Point:
        """By compress."""
        report = convert(self.net.module, "compress", bits=bits)
        point = self._point(nullcontext)
        report.revert()
        return point

    def hook(self, bits: int, group: int) -> Point:
        """By the hook with groups of neighbours."""
        inputs = list(tensors((self.net.args, self.net.kwargs)))
        return self._point(partial(saving_neighbours, self.net.module, inputs, bits, group))

    def _point(self, hooks: Callable[[], AbstractContextManager[Any]]) -> Point:
        error = (self._gradient(hooks) - self._exact).norm() / self._exact.norm()
        return Point(measured(partial(self._loss, hooks), CPU).kept, float(error))

    def _loss(self, hooks: Callable[[], AbstractContextManager[Any]]) -> Tensor:
        with hooks():
            return self.net.loss(self.net.module)

    def _gradient(self, hooks: Callable[[], AbstractContextManager[Any]]) -> Tensor:
        self.net.module.zero_grad(set_to_none=False)
        self._loss(hooks).backward()
        return self.net.gradient()


def of_seed(net: Net) -> Values:
    """All values of one network: points of each way, and ratios of ours to the hook's."""
    meter = Meter(net)
    own = {bits: meter.ours(bits) for bits in BITS}
    rival = {(bits, group): meter.hook(bits, group) for group in GROUPS for bits in HOOK_BITS}
    points = {
        **{ours(bits): point for bits, point in own.items()},
        **{hook(*key): point for key, point in rival.items()},
    }
    values: Values = {(EACH, STOCK, KEPT): float(meter.stock)}
    for way, point in points.items():
        values |= {(EACH, way, KEPT): float(point.kept), (EACH, way, ERROR): point.error}
    for bits, point in own.items():
        at_bits = rival[bits, GROUPS[0]]
        values[SAME_BITS, ours(bits), KEPT_RATIO] = point.kept / at_bits.kept
        values[SAME_BITS, ours(bits), ERROR_RATIO] = point.error / at_bits.error
        if (least := at_bytes(rival, point.kept)) is not None:
            values[SAME_BYTES, ours(bits), ERROR_RATIO] = point.error / least
    return values


def at_bytes(rival: Mapping[tuple[int, int], Point], kept: int) -> float | None:
    """The hook's error where it keeps as many bytes, by its better groups; None if no number of bits keeps so few.

    Between two widths the logarithm of the error is linear in bytes, as if some tensors had more bits than others.
    """
    errors = []
    for group in {group for _, group in rival}:
        front = sorted(point for (_, of_group), point in rival.items() if of_group == group)
        if front[0].kept <= kept:
            errors.append(interpolated(front, kept))
    return min(errors, default=None)
