"""The catalogue of activations, the safe expression parser and the 50-digit oracle."""

from fitting.activations.activation import Activation, Branch, Limits, Minimum
from fitting.activations.catalogue import get, names
from fitting.activations.custom import check_activation, from_expression

__all__ = ["Activation", "Branch", "Limits", "Minimum", "check_activation", "from_expression", "get", "names"]
