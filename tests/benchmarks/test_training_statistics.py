"""Statistics of `benchmarks.training`: errors of gradients and noise, equivalence, verdicts."""

import math

import pytest
import torch
from scipy import stats

from benchmarks.training import gradients as training_gradients
from benchmarks.training import statistics

pytestmark = pytest.mark.usefixtures("one_thread")


def test_gradients_are_compared_as_said():
    stock = [[torch.tensor([3.0, 4.0])], [torch.tensor([3.0, -4.0])]]
    variant = [[torch.tensor([3.0, 5.0])], [torch.tensor([3.0, -7.0])]]
    mean = [torch.tensor([3.0, 0.0])]
    compared = training_gradients.compare(iter(variant), stock, mean)
    assert compared["of batch"] == [pytest.approx((1 / 5 + 3 / 5) / 2)]
    assert compared["error"] == [pytest.approx(math.sqrt((1 + 9) / 2) / 3, rel=1e-3)]  # four digits are kept
    assert compared["bias"] == [pytest.approx(1 / 3, rel=1e-3)]
    assert training_gradients._noise(stock, mean) == [pytest.approx(math.sqrt(32) / 3, rel=1e-3)]


def test_gradients_that_are_not_numbers_are_left_out():
    zero = [torch.zeros(2)]
    assert training_gradients.compare(iter([zero]), [zero], zero)["error"] == [None]


# Statistics

CASES = [[0.1, -0.2, 0.15, 0.05, 0.0], [1.0, 1.1, 0.9, 1.05], [-0.5, 0.7], [0.02, 0.03, 0.01, 0.02, 0.025, 0.015]]


@pytest.mark.parametrize("margin", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("differences", CASES)
def test_equivalence_is_scipys(differences, margin):
    above = stats.ttest_1samp(differences, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, margin, alternative="less").pvalue
    assert statistics.equivalence(differences, margin) == pytest.approx(max(above, below), rel=1e-9)
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    mean, *ends = statistics.interval(differences)
    assert mean == pytest.approx(sum(differences) / len(differences))
    assert ends == pytest.approx([low, high], rel=1e-9)


STOCK = dict(enumerate([1.0, 2.0, 3.0, 2.0, 1.0]))  # standard deviation 0.84


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0, 0, 0, 0, 0], "the same to the last bit"),
        ([0.1, -0.1, 0.05, 0, 0], "equivalent"),
        ([0.1, 0.11, 0.12, 0.1, 0.1], "equivalent, but measurably worse"),
        ([-0.1, -0.11, -0.12, -0.1, -0.1], "equivalent, but measurably better"),
        ([3, -3, 2, -2, 0], "not shown to be equivalent"),
        ([1, 1.1, 0.9, 1, 1], "worse by more than the margin"),
        ([-1, -1.1, -0.9, -1, -1], "better by more than the margin"),
        ([0.9, 1, 0.7, 0.8, 0.6], "measurably worse, not shown to be equivalent"),
        ([1, None, 0.9, None, 1], "diverged with 2 of 5 seeds"),
        ([0.1], "too few seeds"),
    ],
)
def test_verdicts(differences, verdict):
    variant = {seed: None if d is None else STOCK[seed] + d for seed, d in enumerate(differences)}
    comparison = statistics.compare(variant, STOCK)
    assert comparison.verdict == verdict
    assert comparison.seeds == len(differences)
    if not comparison.diverged and comparison.seeds > 1:
        assert comparison.margin == pytest.approx(stats.tstd(list(STOCK.values())))
