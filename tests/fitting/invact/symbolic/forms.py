"""Forms from text, and data of one branch."""

import numpy as np

from actfit.fitting.activations.grammar import parse_formula
from actfit.fitting.invact.formula import Form
from actfit.fitting.invact.symbolic import Data
from actfit.fitting.invact.symbolic.equations import to_form
from actfit.fitting.invact.variable import S, Y, constant

C = [constant(i) for i in range(9)]


def form(text: str) -> Form:
    return to_form(parse_formula(text, (Y, S)), "test")


def data(count: int = 300) -> Data:
    """s(1.5 - 2.25 s)/(1 + 0.4 s), where y = s² - 0.17."""
    s = np.linspace(0, 0.6, count)
    return Data(s**2 - 0.17, s, s * (1.5 - 2.25 * s) / (1 + 0.4 * s), np.full(count, 1 / count))
