"""Many fits at once: over the cores of this machine, or over a Dask cluster through joblib."""

import os
import signal
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from actfit.fitting.errors import InputError

Result = TypeVar("Result")


def run(
    work: Callable[..., Result], tasks: Iterable[tuple[Any, ...]], jobs: int = 1, scheduler: str | None = None
) -> Generator[Result, None, None]:
    """`work(*task)` for each task, in their order, as they are done. Closing the generator stops the work.

    tasks: the arguments of `work` in each run.
    jobs: worker processes; -1 for one a core.
    scheduler: address of a Dask scheduler that does the work instead; its workers must have this package.
    Raises `InputError` if the scheduler cannot be reached.
    """
    from joblib import Parallel, delayed, parallel_config  # here, as most runs fit one table

    with ExitStack() as stack:
        if scheduler is not None:
            stack.enter_context(_client(scheduler))
            stack.enter_context(parallel_config(backend="dask"))
        calls = (delayed(work)(*task) for task in tasks)
        with _interrupts_held_back():
            results = Parallel(n_jobs=-1 if scheduler else jobs, return_as="generator")(calls)
        try:
            for result in results:  # noqa: UP028 - `yield from` would close it before `finally` does
                yield result
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # joblib warns of work that was stopped
                results.close()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Block Ctrl-C, also in the workers started meanwhile: this process handles it for them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # here, since it unblocks signals once it has started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    # joblib's own tracker of folders, started here, warns if an interrupt makes both of them clean up at once.
    wished = os.environ.get("PYTHONWARNINGS", "")
    os.environ["PYTHONWARNINGS"] = f"{wished},ignore:resource_tracker".lstrip(",")
    try:
        yield
    finally:
        os.environ["PYTHONWARNINGS"] = wished
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _client(address: str) -> Any:
    # Here and not at the top: dask is an extra, and few need it.
    try:
        from distributed import Client
    except ImportError:
        raise InputError("scheduler needs dask: pip install dask distributed") from None
    try:
        client = Client(address, timeout=5)
    except Exception as error:  # of any kind: each transport has its own for an address it cannot use
        raise InputError(f"scheduler {address!r} does not answer: {error or type(error).__name__}") from None
    try:
        client.wait_for_workers(1, timeout=10)
    except TimeoutError:
        client.close()
        raise InputError(f"scheduler {address!r} must have a worker; start one: dask worker {address}") from None
    return client
