"""Fitted approximations as files that state their origin: JSON, versioned, hashed, checked when read."""

from typing import TYPE_CHECKING

from actfit.coefficients.lazy import lazily

if TYPE_CHECKING:
    from actfit.coefficients.schema import CoefficientError
    from actfit.coefficients.store import available, load, publish

__all__ = ["CoefficientError", "available", "load", "publish"]

if not TYPE_CHECKING:
    # Imported lazily: a command must handle Ctrl-C before anything else is imported.
    __getattr__, __dir__ = lazily(
        __name__,
        {"schema": ("CoefficientError",), "store": ("available", "load", "publish")},
        modules=("document",),
    )
