"""Names of a package that are imported when the first of them is asked for (PEP 562)."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def lazily(
    package: str, names: Sequence[str], homes: Sequence[str], modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package, whose public `names` are in modules `homes` of it.

    All of them come with the first that is asked for. `homes` and `modules` are attributes of the package, too, as they
    are once they are imported.
    """

    def find(name: str) -> Any:
        if name in names:
            for home in homes:
                found = vars(import_module(f"{package}.{home}"))
                vars(sys.modules[package]).update((key, value) for key, value in found.items() if key in names)
            return vars(sys.modules[package])[name]
        if name in homes or name in modules:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted({*vars(sys.modules[package]), *names})
