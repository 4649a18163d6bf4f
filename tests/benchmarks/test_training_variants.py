"""The data, models and variants of `benchmarks.training`; ActNN's rounding."""

import math

import pytest
import torch
from torch import nn

from benchmarks.baselines import actnn
from benchmarks.compression.meter import measured
from benchmarks.training import runs as training_runs
from benchmarks.training import variants
from benchmarks.training.models import loss
from tests.benchmarks.quick_training import CPU, quick

pytestmark = pytest.mark.usefixtures("one_thread")


# Models and variants


@pytest.mark.parametrize("task", ["text", "digits", *variants.CODED])
def test_variants_begin_with_the_same_weights(task):
    settings = quick(task)
    stock = training_runs.start(settings, "stock", 3).state_dict()
    for variant in variants.VARIANTS_OF[task]:
        state = training_runs.start(settings, variant, 3).state_dict()
        assert state.keys() == stock.keys()
        assert all(torch.equal(state[name], stock[name]) for name in stock)
    other = training_runs.start(settings, "stock", 4).state_dict()
    assert any(not torch.equal(other[name], stock[name]) for name in stock)


@pytest.mark.parametrize("task", ["text", "llama"])
def test_a_model_of_text_does_not_look_ahead(task):
    settings = quick(task)
    model, data = training_runs.start(settings, "stock", 0), training_runs.of(settings)
    x, _ = data.judged(64)
    other = x.clone()
    other[:, 9:] = (other[:, 9:] + 1) % data.classes
    logits, changed = model(x), model(other)
    assert logits.shape == (*x.shape, data.classes)
    assert torch.equal(logits[:, :9], changed[:, :9])
    assert not torch.equal(logits[:, 9:], changed[:, 9:])


@pytest.mark.parametrize("task", ["text", "digits", "small-vit"])
def test_recomputing_changes_no_bit(task):
    settings = quick(task)
    (stock, of_stock), (again, of_again) = (
        training_runs.train(settings, variant, 0) for variant in ("stock", "recompute")
    )
    # Batch norms' averages too, which a second pass over a batch would move again; counts of batches may differ.
    for name, value in stock.state_dict().items():
        assert name.endswith("num_batches_tracked") or torch.equal(value, again.state_dict()[name]), name
    assert of_again["curve"] == of_stock["curve"]
    assert of_again["kept"] < of_stock["kept"]


def test_forward_ad_differs_from_stock_by_rounding_only():
    """Its gradients' error against float64 is at most twice stock's: rounding f' adds to it."""
    settings = quick("text", width=16)
    x, target = training_runs.of(settings).batch(8, torch.Generator().manual_seed(0))
    exact = _gradients(training_runs.start(settings, "stock", 0).double(), x, target)
    misses = {}
    for variant in ("stock", "forward-ad"):
        gradients = _gradients(training_runs.start(settings, variant, 0), x, target)
        misses[variant] = math.hypot(*(float((a - b).norm() / b.norm()) for a, b in zip(gradients, exact, strict=True)))
    assert 0 < misses["stock"] < 1e-5
    assert misses["forward-ad"] <= 2 * misses["stock"]


def _gradients(model, x, target):
    logits = model(x)
    value = nn.functional.cross_entropy(logits.flatten(0, -2), target.flatten())
    return torch.autograd.grad(value, list(model.parameters()))


# Variants that encode every saved tensor


@pytest.mark.slow
def test_hooks_code_what_training_saves():
    settings = quick("llama", width=64)
    kept = {variant: training_runs.train(settings, variant, 0)[1] for variant in ("stock", "hook-4", "hook-2")}
    assert kept["stock"]["kept"] > kept["hook-4"]["kept"] > kept["hook-2"]["kept"]
    assert all(results["peak"] >= results["kept"] for results in kept.values())
    assert kept["hook-4"]["curve"] != kept["stock"]["curve"]


@pytest.mark.slow
def test_codes_of_a_compiled_model_train():
    settings = quick("llama", batch=64)  # of which more than 4096 elements are saved
    stock, coded = (training_runs.train(settings, variant, 0)[1] for variant in ("stock", "coded-8"))
    assert coded["kept"] < stock["kept"]
    assert coded["peak"] < stock["peak"]
    _trains_like(coded, stock)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["plan-5", "compiled-plan-5"])
def test_a_plan_trains_with_its_share_of_what_eager_mode_keeps(variant):
    settings = quick("llama", batch=64)
    data, (x, targets) = training_runs.of(settings), training_runs.first_batch(settings, 0)
    logits = torch.zeros(*x.shape, data.classes, requires_grad=True)
    of_loss = measured(lambda: loss(logits, targets), CPU).kept  # which is on top of a plan's bytes
    stock, planned = (training_runs.train(settings, name, 0)[1] for name in ("stock", variant))
    assert 0 < planned["kept"] - of_loss <= (stock["kept"] - of_loss) / 5
    assert planned["curve"] != stock["curve"]
    _trains_like(planned, stock)


def _trains_like(coded, stock):
    # Four steps from the same weights, and gradients that are off by a percent.
    for (_, batches, held_out), (_, coded_batches, coded_held_out) in zip(stock["curve"], coded["curve"], strict=True):
        assert coded_batches == pytest.approx(batches, rel=0.02)
        assert coded_held_out == pytest.approx(held_out, rel=0.02)


# ActNN


ROUNDING = 4 * 2.0**-24  # of a place and a value in float32, relative to a group's range


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("shape", [(1,), (3, 7), (256,), (5, 103), (2, 3, 4, 32)])
def test_a_value_is_kept_on_a_place_beside_it(bits, shape):
    x = torch.randn(shape) - 9  # zeros as padding would be the last group's maximum
    planes, ranges = actnn.quantise(x, bits)
    assert planes.shape == (bits, (x.numel() + 7) // 8)
    groups = x.flatten().split(actnn.GROUP)
    assert torch.equal(ranges, torch.tensor([[group.min() for group in groups], [group.max() for group in groups]]))
    steps = ((ranges[1] - ranges[0]) / (2**bits - 1)).repeat_interleave(actnn.GROUP)[: x.numel()].view(shape)
    miss = (actnn.restore(planes, ranges, x.shape) - x).abs()
    assert (miss <= steps + ROUNDING * x.abs().max()).all()


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_the_derivative_is_taken_where_x_was_kept(name):
    x, grad = torch.randn(7, 100, requires_grad=True), torch.randn(7, 100)
    torch.manual_seed(1)
    (gradient,) = torch.autograd.grad(variants.activation(name, "actnn-2")(x), x, grad)
    torch.manual_seed(1)
    at = actnn.restore(*actnn.quantise(x.detach(), 2), x.shape).requires_grad_()
    (expected,) = torch.autograd.grad(variants.activation(name, "stock")(at), at, grad)
    assert torch.equal(gradient, expected)
