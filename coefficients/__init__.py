"""Fitted approximations as files that carry their origin: JSON, versioned, hashed, checked on reading."""

from coefficients.schema import CoefficientError
from coefficients.store import available, load, publish

__all__ = ["CoefficientError", "available", "load", "publish"]
