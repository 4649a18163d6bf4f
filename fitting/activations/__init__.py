"""The catalogue of activations, the safe expression parser and the 50-digit oracle."""

from actfit.fitting.activations.activation import Activation, Branch, Limits, Minimum
from actfit.fitting.activations.catalogue import get, names
from actfit.fitting.activations.custom import check_activation, from_expression

__all__ = ["Activation", "Branch", "Limits", "Minimum", "check_activation", "from_expression", "get", "names"]
