"""Histograms of the inputs of a model's activations, counted while the model runs."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from actfit.coefficients.files import whole
from actfit.coefficients.functions import CATALOGUE
from actfit.kernels.errors import KernelError

PER_OCTAVE = 32  # bins from each power of two to the next: each is 2 % to 3 % wide
OCTAVES = range(-24, 24)  # of |x|; smaller values count as 0, larger ones in the last bin
BINS = PER_OCTAVE * len(OCTAVES)
SAMPLES = 1 << 14  # by default; a fit to so many takes about a second


def _edges() -> NDArray[np.float64]:
    """Edges of the bins: 2 * BINS + 2 increasing numbers, with the bin of 0 in the middle."""
    octaves = np.repeat(np.array(OCTAVES, dtype=np.float64), PER_OCTAVE)
    parts = 1 + np.tile(np.arange(PER_OCTAVE), len(OCTAVES)) / PER_OCTAVE
    positive = np.append(parts * 2.0**octaves, 2.0**OCTAVES.stop)
    return np.concatenate([-positive[::-1], positive])


EDGES = _edges()


class Histogram:
    """How often x fell into each bin.

    Attributes
    ----------
    counts : int64 tensor (2 * BINS + 1,)
        On the CPU; an infinite x counts in the first or last bin, NaN does not count.
    """

    def __init__(self) -> None:
        self.counts = torch.zeros(len(EDGES) - 1, dtype=torch.int64)

    def add(self, x: Tensor) -> None:
        """Count the elements of a floating-point tensor."""
        flat = x.detach().reshape(-1).float()
        bins = torch.bucketize(flat, torch.tensor(EDGES[1:-1], dtype=torch.float32, device=x.device), right=True)
        self.counts += torch.bincount(bins[~flat.isnan()], minlength=len(self.counts)).cpu()

    def __add__(self, other: "Histogram") -> "Histogram":
        total = Histogram()
        total.counts = self.counts + other.counts
        return total

    def samples(self, count: int = SAMPLES) -> NDArray[np.float64]:
        """Float64 values that represent the histogram, so many, for `fitting.weights.from_samples`.

        They are quantiles at equal steps, with x taken as uniform within a bin. Raises KernelError if it is empty.
        """
        counts = self.counts.numpy()
        total = counts.sum()
        if not total:
            raise KernelError("histogram must have counted something, got none; run the model while it records")
        below = np.concatenate([[0.0], np.cumsum(counts) / total])
        places = (np.arange(count) + 0.5) / count
        bins = np.searchsorted(below, places, side="right") - 1
        inside = (places - below[bins]) / (below[bins + 1] - below[bins])
        values: NDArray[np.float64] = EDGES[bins] + inside * (EDGES[bins + 1] - EDGES[bins])
        values[bins == BINS] = 0.0
        return values

    def save(self, path: str | PathLike[str], count: int = SAMPLES) -> None:
        """Write `samples` to a .npy file, whole or not at all, as --weight of `actfit fewbit` takes it."""
        if Path(path).suffix != ".npy":
            raise KernelError(f"path must end in .npy, got {str(path)!r}")
        samples = self.samples(count)
        with whole(Path(path)) as unfinished:
            np.save(unfinished, samples, allow_pickle=False)


@contextmanager
def recorded(model: nn.Module) -> Iterator[dict[str, Histogram]]:
    """Count the inputs of the model's activations inside the context; the model is not changed.

    Gives histograms by the name of the module and the function called in it, as "layers.0.act.gelu"; they fill as the
    model runs. Raises KernelError for anything but a module.
    """
    if not isinstance(model, nn.Module):
        raise KernelError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    histograms: dict[str, Histogram] = defaultdict(Histogram)
    running: list[str] = []
    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(partial(_begin, running, name)).remove)
            stack.callback(module.register_forward_hook(partial(_end, running), always_call=True).remove)
        with _Watching(histograms, running):
            yield histograms


def _begin(running: list[str], name: str, *_: Any) -> None:
    running.append(name)


def _end(running: list[str], *_: Any) -> None:
    running.pop()


class _Watching(TorchFunctionMode):
    """Adds the input of each call of a catalogue function to its histogram."""

    def __init__(self, histograms: dict[str, Histogram], running: list[str]) -> None:
        super().__init__()
        self.histograms, self.running = histograms, running

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = _called(func, kwargs)
        x = args[0] if args else kwargs.get("input")
        if name and self.running and isinstance(x, Tensor) and x.is_floating_point():
            self.histograms[".".join(filter(None, (self.running[-1], name)))].add(x)
        return func(*args, **kwargs)


def _called(func: Any, kwargs: dict[str, Any]) -> str:
    """The catalogue's name of a function of PyTorch, or ""."""
    named = getattr(func, "__name__", "").removesuffix("_")
    if named not in _NAMES:
        return ""
    options = {key: value for key, value in kwargs.items() if isinstance(value, str) and value != "none"}
    return next((name for name, row in _NAMES[named] if dict(row.torch_options) == options), "")


_NAMES = {
    row.torch: [(name, namesake) for name, namesake in CATALOGUE.items() if namesake.torch == row.torch]
    for row in CATALOGUE.values()
    if row.torch and hasattr(F, row.torch)
}
