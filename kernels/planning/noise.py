"""What the error of a gradient does to training, beside the noise that the gradient has anyway, as batches are few.

Samples that plans are made with and those that check them give two exact gradients, whose difference is noise. Both
errors, of codes and of few samples, fall alike as a batch grows, since samples are rounded independently.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

ELEMENTS = 4096  # of each weight, evenly spaced: enough for a sum over all weights, and few megabytes


@dataclass(frozen=True)
class Exact:
    """Elements of an exact gradient of some samples."""

    # Of each weight its elements, and how many of its own one stands for; None: it has no gradient.
    parts: Sequence[tuple[Tensor, float] | None]
    share: float  # of the batch, that the samples are


def exact_of(gradient: Sequence[Tensor | None], share: float) -> Exact:
    """Elements of a gradient of the samples that are such a share of the batch."""

    def part(whole: Tensor) -> tuple[Tensor, float]:
        dense = whole.to_dense() if whole.is_sparse else whole
        # An odd step, as of a power of two all elements would be of a few columns.
        few = dense.reshape(-1)[:: -(-dense.numel() // ELEMENTS) | 1].double().cpu()
        return few, dense.numel() / max(len(few), 1)

    return Exact([None if whole is None else part(whole) for whole in gradient], share)


def smaller_batch(error: float, norm: float, exact: Exact, other: Exact) -> float | None:
    """The share of a batch's samples that could be left out for as much noise as an error makes; None if not known.

    Of ||g' - g||² / ||g||², the error, and ||g||², the norm, of the samples of `exact`; `other` is of other samples.
    """
    if exact.share == 1.0 or other.share == 1.0:
        return None  # they are not different
    difference = sum(
        float((a[0] - b[0]).square().sum()) * a[1]
        for a, b in zip(exact.parts, other.parts, strict=True)
        if a is not None and b is not None
    )
    noise = difference * other.share / (exact.share + other.share)
    added = error * norm
    return added / (noise + added) if noise else None
