"""Settings for every test: the same examples on every run in CI, no windows from matplotlib, an interpreted Triton."""

import gc
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from tests import tiers

# Fits of tests are none of the user's own; by environment, so that subprocesses have it too.
_DATA_HOME = tempfile.TemporaryDirectory(prefix="actfit-")
os.environ["XDG_DATA_HOME"] = _DATA_HOME.name
os.environ["MPLBACKEND"] = "Agg"  # by environment, so that subprocesses have it too

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

if "PYTEST_XDIST_WORKER" in os.environ:  # a process for each core, so a test must not use the other cores
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else torch warns where algorithms are to be deterministic

if not torch.cuda.is_available() and importlib.util.find_spec("triton"):
    # Triton decides while it is imported how its own functions run; afterwards, fixtures say when they do.
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.language  # noqa: F401

    del os.environ["TRITON_INTERPRET"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=tiers.TIERS, default="all", help="which tests are run; see tests/tiers.py")
    parser.addoption(
        "--programs", type=int, default=600, help="how many random programs are run (make programs: 10000)"
    )


def pytest_report_header(config: pytest.Config) -> str:
    return f"tier: {config.getoption('--tier')} (of quick and rest)"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests of a tier."""
    config.stash[tiers.COLLECTED] = list(items)
    selected = tiers.select(items, config.getoption("--tier"))
    left_out = set(items).difference(selected)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = selected


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Freeze objects of imports and collection, so that full garbage collections do not visit them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Freeze what modules and slow tests leave, too: a full collection took two seconds after many of them.

    Dynamo forgets its graphs before: objects that are frozen in cycles stay for ever.
    """
    if nextitem is None or nextitem.path != item.path or not tiers.is_quick(item):
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    gc.unfreeze()  # else objects destroyed at exit are reported as leaks


@pytest.fixture
def programs(request: pytest.FixtureRequest) -> int:
    """The number of random programs to run."""
    return int(request.config.getoption("--programs"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """So that other processes slow the tests as little as possible."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
