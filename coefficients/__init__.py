"""Fitted approximations as files that carry their origin: JSON, versioned, hashed, checked on reading."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coefficients.schema import CoefficientError
    from coefficients.store import available, load, publish

__all__ = ["CoefficientError", "available", "load", "publish"]

MODULES = ("document", "schema", "store")  # that `import coefficients` gives the names of, besides

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A public name or a module, when it is first asked for: a command answers Ctrl-C before other imports."""
        if name in MODULES:
            return import_module(f"{__name__}.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from coefficients import store

        globals().update((key, getattr(store, key)) for key in __all__)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
