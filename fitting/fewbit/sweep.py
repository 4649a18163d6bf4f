"""The whole catalogue at once: over the cores of this machine, or over a Dask cluster through joblib."""

from collections.abc import Iterator
from contextlib import ExitStack

from joblib import Parallel, delayed, parallel_config

from fitting.activations import get, names
from fitting.errors import InputError
from fitting.fewbit.fit import Fit, fit
from fitting.fewbit.weights import Weight

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
) -> Iterator[Fit]:
    """The fits of `tasks`, in their order, as they get done.

    jobs: worker processes; -1 for one a core. scheduler: address of a Dask scheduler that does the work
    instead; its workers must have this package. Raises `InputError` where the scheduler is not to be had.
    """
    with ExitStack() as stack:
        if scheduler is not None:
            stack.enter_context(_client(scheduler))
            stack.enter_context(parallel_config(backend="dask"))
        calls = (delayed(_fit)(name, bits, levels, weight, domain) for name, bits in tasks)
        yield from Parallel(n_jobs=-1 if scheduler else jobs, return_as="generator")(calls)


def _fit(name: str, bits: int, levels: str, weight: Weight | None, domain: tuple[float, float] | None) -> Fit:
    return fit(get(name), bits, levels=levels, weight=weight, domain=domain)


def _client(address: str):  # type: ignore[no-untyped-def]
    # Here and not at the top: dask is an extra, and few need it.
    try:
        from distributed import Client
    except ImportError:
        raise InputError("scheduler needs dask: pip install 'actfit[cluster]'") from None
    try:
        return Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise InputError(f"scheduler {address} does not answer: {error or type(error).__name__}") from None
