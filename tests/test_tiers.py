"""The tiers hold every test once, and the quick one looks at every package."""

from pathlib import Path
from types import ModuleType

import pytest

from actfit.coefficients import functions
from tests import tiers
from tests.modules import ALLOWED

ROOT = Path(__file__).parents[1]
TESTED = ("benchmarks", "codegen", "coefficients", "fitting", "kernels", "notebooks")


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """All tests of the project, before those of a tier are selected."""
    if [Path(argument).resolve() for argument in request.config.args] != [ROOT / "tests"]:
        pytest.skip("not all tests were collected; name no file: pytest -k tiers")
    return request.config.stash[tiers.COLLECTED]


def packages() -> set[str]:
    """Our packages, by their dotted names."""
    folders = (path.parent.relative_to(ROOT) for name in TESTED for path in (ROOT / name).rglob("__init__.py"))
    ours = {".".join([*["actfit"] * (folder.parts[0] in ALLOWED), *folder.parts]) for folder in folders}
    return ours - {"actfit.kernels.generated", "actfit.kernels.engine.templates"}  # which no test imports by name


def used(module: ModuleType) -> set[str]:
    """The modules whose names or members a module imports, and the packages around them."""
    names = set()
    for value in vars(module).values():
        source = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        parts = str(source).split(".")
        names |= {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return names


def test_each_test_is_in_one_tier(collected):
    quick, rest = tiers.select(collected, "quick"), tiers.select(collected, "rest")
    assert quick
    assert rest
    assert not set(quick) & set(rest)
    others = {item for item in collected if tiers.repeats(item)}
    assert others
    assert all(item.get_closest_marker("slow") for item in others)
    assert set(quick) | set(rest) == set(collected) - others
    assert set(tiers.select(collected, "all")) == set(collected)


def test_every_package_has_quick_tests(collected):
    modules = {item.module.__name__: item.module for item in tiers.select(collected, "quick")}
    assert packages() - set().union(*map(used, modules.values())) == set()


def test_a_file_without_quick_tests_is_marked_as_a_whole(collected):
    """So that the mark is visible in the file."""
    files = {item.path: item.getparent(pytest.Module) for item in collected}
    quick = {item.path for item in tiers.select(collected, "quick")}
    marked = {path for path, module in files.items() if any(mark.name == "slow" for mark in module.own_markers)}
    assert {path.relative_to(ROOT).as_posix() for path in set(files) - quick - marked} == set()


def test_the_handful_is_of_the_catalogue():
    assert set(tiers.HANDFUL) < set(functions.names())
