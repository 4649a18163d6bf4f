"""The whole catalogue at once: over the cores of this machine, or over a Dask cluster."""

from collections.abc import Generator

from actfit.fitting.activations import get, names
from actfit.fitting.fewbit.rules import MAX_BITS
from actfit.fitting.fewbit.solve import Fit, fit
from actfit.fitting.sweep import run
from actfit.fitting.weights import Weight

SHIPPED_BITS = range(1, MAX_BITS + 1)


def shipped() -> list[tuple[str, int]]:
    """(function, bits) of every table that the project ships."""
    return [(name, bits) for name in names() for bits in SHIPPED_BITS]


def sweep(
    tasks: list[tuple[str, int]],
    levels: str,
    weight: Weight | None,
    domain: tuple[float, float] | None,
    jobs: int = 1,
    scheduler: str | None = None,
    budget: float | None = None,
) -> Generator[Fit, None, None]:
    """The fits of `tasks`, in their order, as they get done.

    Parameters
    ----------
    tasks : list of (str, int)
        Functions and bits.
    levels, weight, domain, budget
        As in `fit`, for each of them.
    jobs, scheduler
        As in `fitting.sweep.run`.
    """
    return run(_fit, [(name, bits, levels, weight, domain, budget) for name, bits in tasks], jobs, scheduler)


def _fit(
    name: str,
    bits: int,
    levels: str,
    weight: Weight | None,
    domain: tuple[float, float] | None,
    budget: float | None,
) -> Fit:
    return fit(get(name), bits, levels=levels, weight=weight, domain=domain, budget=budget)
