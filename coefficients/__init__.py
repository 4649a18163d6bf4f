"""Fitted approximations as files that carry their origin: JSON, versioned, hashed, checked on reading."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coefficients.schema import CoefficientError
    from coefficients.store import available, load, publish

__all__ = ["CoefficientError", "available", "load", "publish"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A public name, when it is first asked for: a command answers Ctrl-C before anything else is imported."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from coefficients import store

        globals().update((key, getattr(store, key)) for key in __all__)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
