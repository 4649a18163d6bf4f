"""Names of a package that are imported when they are used (PEP 562)."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazily(
    package: str, homes: Mapping[str, Sequence[str]], modules: Sequence[str] = (), torch: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names are defined in modules of it.

    The first use of a name imports its module, and no other. Modules of `homes` and `modules` that are directly in the
    package are attributes of it too, as if they were imported.

    homes: the public names that each module defines, by the module's name within the package.
    modules: further modules of it.
    torch: the message of ImportError where PyTorch is missing.
    Raises `ImportError` by a use of a name, whatever its module raised: Python would hide an AttributeError as a
    name that is missing.
    """
    names = {name: home for home, of_home in homes.items() for name in of_home}
    direct = {name for name in (*homes, *modules) if "." not in name}

    def find(name: str) -> Any:
        if name not in names and name not in direct:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(f"{package}.{names.get(name, name)}")
            value = getattr(module, name) if name in names else module
        except ModuleNotFoundError as error:
            if error.name == "torch" and torch:
                raise ImportError(torch, name="torch") from None
            raise
        except AttributeError as error:
            raise ImportError(f"{package}.{name} cannot be imported: {error}", name=f"{package}.{name}") from error
        vars(sys.modules[package])[name] = value
        return value

    return find, lambda: sorted({*vars(sys.modules[package]), *names, *direct})
