"""What an error of a gradient is beside the noise between samples."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import compress, make_plan
from actfit.kernels.planning.noise import ELEMENTS, exact_of, smaller_batch

ROWS, BATCH = 4096, 256


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters())))


def squares(parts: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return sum(float((a - b).double().square().sum()) for a, b in zip(parts, others, strict=True))


def test_the_noise_of_pairs_is_the_variance_of_samples() -> None:
    """Half the squared distance of two samples is on average, over all pairs, the variance of one."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(8, 4).double(), torch.randn(6, 8).double(), torch.randint(4, (6,))
    every = [gradient(model, x[row : row + 1], y[row : row + 1]) for row in range(6)]
    mean = [torch.stack(parts).mean(0) for parts in zip(*every, strict=True)]
    variance = sum(squares(one, mean) for one in every) / (len(every) - 1)
    exact = [exact_of([*one, None], share=1 / 6) for one in every]
    shares = [smaller_batch(0.5, 2.0, one, other) for one, other in itertools.combinations(exact, 2)]
    noises = [1 / share - 1 for share in shares if share is not None]  # an error of 1 in all
    assert sum(noises) / len(shares) == pytest.approx(variance, rel=1e-12)  # of float64 in sums of some 40 numbers


def test_more_samples_have_less_noise() -> None:
    """That of a samples and of b has 1 / a + 1 / b of one sample's; here one of 1 and one of 3."""
    few, many = exact_of([torch.zeros(3)], 0.1), exact_of([torch.full((3,), 2.0)], 0.3)
    assert smaller_batch(1.0, 1.0, many, few) == pytest.approx(1 / (1 + 12 * 0.1 / 0.4))
    assert smaller_batch(1.0, 1.0, few, many) == pytest.approx(1 / (1 + 12 * 0.3 / 0.4))
    assert smaller_batch(1.0, 1.0, few, exact_of([torch.zeros(3)], 1.0)) is None
    assert smaller_batch(1.0, 1.0, few, few) is None


def test_large_weights_count_by_some_of_their_elements() -> None:
    whole = torch.arange(3.0 * ELEMENTS - 1)
    [part] = exact_of([whole], 0.5).parts
    assert part is not None
    assert len(part[0]) == ELEMENTS
    assert len(part[0]) * part[1] == pytest.approx(len(whole))


def test_weights_of_any_kind_count() -> None:
    """Empty ones, those with sparse gradients, and each column of a square one."""
    indices, values = torch.tensor([[1, 3]]), torch.ones(2, 4)
    square = torch.zeros(1 << 7, 1 << 7)
    square[:, 1] = 1.0
    parts = exact_of(
        [torch.zeros(0, 4), torch.sparse_coo_tensor(indices, values, (5, 4), check_invariants=True), square], 0.5
    ).parts
    sums = [float(part[0].sum()) * part[1] for part in parts if part is not None]
    assert sums == pytest.approx([0.0, 8.0, 1 << 7], rel=0.1)  # some of 16,384 elements were taken, evenly


@pytest.mark.slow
def test_a_plan_says_what_its_error_does() -> None:
    """Beside the error and the noise of whole batches: "about" promises a factor of 2, as few samples can tell."""
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.GELU())]
    model, x = nn.Sequential(*layers, nn.Linear(64, 10)), torch.randn(ROWS, 64)
    y = (x @ torch.randn(64, 10)).argmax(-1)
    plan = make_plan(model, x, 0.2, loss=F.cross_entropy, targets=y, samples=16, max_gradient_error=0.1, goal="error")
    assert plan.errors.smaller_batch is not None
    assert " (as if the batch were about 0." in str(plan)
    batches = [(x[start : start + BATCH], y[start : start + BATCH]) for start in range(0, ROWS, BATCH)]
    exact, full = [gradient(model, *batch) for batch in batches], gradient(model, x, y)
    noise = sum(squares(one, full) for one in exact) / (len(batches) - 1)
    compress(model, plan=plan)
    coded = [gradient(model, *batch) for batch in batches]
    error = sum(squares(one, other) for one, other in zip(coded, exact, strict=True)) / len(batches)
    share = error / (noise + error)
    assert share / 2 <= plan.errors.smaller_batch <= 2 * share


def test_without_a_loss_nothing_is_said() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
    plan = make_plan(model, torch.randn(256, 64), 0.5, goal="error")
    assert plan.errors.smaller_batch is None
    assert "as if" not in str(plan)
