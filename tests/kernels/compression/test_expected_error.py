"""The expected error of codes."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn

from actfit.kernels.compression.crossing import Graph
from actfit.kernels.compression.layout import GROUP_SIZES
from actfit.kernels.compression.report import Report
from actfit.kernels.methods.expected_error import expected_error, squared_range
from tests.kernels.compression.cuts import through_codes
from tests.kernels.compression.graphs import code_from, compiled, gradients, partitioner

each_group = pytest.mark.parametrize("group", GROUP_SIZES)


@each_group
def test_the_squared_range_by_its_distribution(group: int) -> None:
    """R is below r with probability n times the integral of p(x) (P(x + r) - P(x))^(n - 1)."""
    x, r = np.linspace(-9, 9, 721)[:, None], np.linspace(0, 16, 641)
    below = group * stats.norm.pdf(x) * (stats.norm.cdf(x + r) - stats.norm.cdf(x)) ** (group - 1)
    above = 1 - integrate.simpson(below, x=x[:, 0], axis=0)
    assert squared_range(group) == pytest.approx(integrate.simpson(2 * r * above, x=r), rel=1e-7)


@each_group
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("bits", range(2, 9))
def test_the_error_of_normal_numbers(bits: int, rounding: str, group: int) -> None:
    """Of 1000 groups; the terms that the formula neglects are within 4 %, sampling well within 1 %."""
    torch.manual_seed(0)
    x = torch.randn(1000, group)
    error = float((through_codes(x, bits, rounding)[0] - x).norm() / x.norm())
    assert error == pytest.approx(expected_error(bits, group, rounding), rel=0.04)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_the_report_tells_it(rounding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For normal values; masks and statistics are exact."""
    code_from(64, monkeypatch)
    model, cut = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 8)), partitioner(rounding=rounding)
    gradients(model, compiled(model, cut), torch.randn(64, 32))
    rows = cut.graphs[0].crossings
    assert {row.error for row in rows if row.form == "whole"} == {0}
    assert {row.error for row in rows if row.form == "4 bits"} == {expected_error(4, 64, rounding)}
    text = str(Report(tuple(cut.graphs)))
    assert {"nearest": " 9.1 % ", "stochastic": " 13 % "}[rounding] in text
    assert "normally distributed" in text


def test_a_graph_that_saves_nothing_has_no_table() -> None:
    assert str(Report((Graph(()),))).startswith("graph 1: 0 B are saved for backward\n\nerror: ")
