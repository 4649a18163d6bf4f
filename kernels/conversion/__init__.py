"""Convert a model's activations in place, with a report that can undo it."""

from kernels.conversion.model import convert
from kernels.conversion.report import Converted, Report

__all__ = ["Converted", "Report", "convert"]
