"""The whole catalogue at once: over the cores of this machine, or over a Dask cluster."""

from collections.abc import Generator

from fitting.activations import get, names
from fitting.fewbit.solve import Fit, fit
from fitting.sweep import run
from fitting.weights import Weight

SHIPPED_BITS = (1, 2, 3, 4)
SHIPPED_MORE = {"gelu": (5, 6, 7, 8), "silu": (5, 6, 7, 8)}


def shipped() -> list[tuple[str, int]]:
    """(function, bits) of every table that the project ships."""
    return [(name, bits) for name in names() for bits in (*SHIPPED_BITS, *SHIPPED_MORE.get(name, ()))]


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
