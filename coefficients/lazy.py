"""Names of a package that are imported when the first of them is used (PEP 562)."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def lazily(
    package: str, names: Sequence[str], homes: Sequence[str], modules: Sequence[str] = (), torch: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package, whose public `names` are in modules `homes` of it.

    The first use of a name imports all of them, except those that the package has already. Modules of `homes` and
    `modules` that are directly in the package are attributes of it too, as if they were imported.

    Parameters
    ----------
    package, names
        The package, and its public names.
    homes
        Modules of the package that define the names.
    modules
        Further modules of it.
    torch
        The message of ImportError where PyTorch is missing.
    """
    direct = {name for name in (*homes, *modules) if "." not in name}

    def find(name: str) -> Any:
        try:
            if name in names:
                known = vars(sys.modules[package])
                for home in homes:
                    for key, value in vars(import_module(f"{package}.{home}")).items():
                        if key in names:
                            known.setdefault(key, value)
                return known[name]
            if name in direct:
                return import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name == "torch" and torch:
                raise ImportError(torch, name="torch") from None
            raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted({*vars(sys.modules[package]), *names, *direct})
