"""Convert a model's activations in place, with a report and a way back."""

from kernels.conversion.model import convert
from kernels.conversion.report import Converted, Report

__all__ = ["Converted", "Report", "convert"]
