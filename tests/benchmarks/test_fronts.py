"""`benchmarks.fronts`: compress beside the generic hook, at equal bits and at equal bytes."""

import pytest
import torch

from benchmarks.baselines.hooked import saving_neighbours
from benchmarks.compression.models import Size
from benchmarks.fronts import __main__ as fronts
from benchmarks.fronts import errors, page
from benchmarks.fronts.errors import Meter, Point
from benchmarks.fronts.nets import CONFIGURATIONS, SMALL, TINY, UNSEEN, build
from benchmarks.options import torch_threads
from benchmarks.parsers import FRONT_MODELS
from benchmarks.rows import read_lines
from coefficients import command
from kernels import KernelError

SIZES = {
    "BERT": TINY["BERT"],
    "Llama": TINY["BERT"],
    "ResNet": TINY["ResNet"],
    "T5": TINY["T5"],
    "ConvNeXt": Size(2, 2, 64, 64),
}


def run(*arguments):
    return command.run(fronts.PROG, lambda: fronts.main(arguments), (KernelError,))


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_in_no_more_bytes_than_the_hook_the_error_is_no_larger(name):
    """There is no margin: ratios spread by less than a tenth over seeds, and T5's are the largest, 0.92 at most.

    With the same bits ours keeps less, so it may also take more of them where the hook has fewer than 8. T5 at this
    size keeps more than the hook with 2 bits: its position biases stay whole.
    """
    with torch_threads(1):
        meter = Meter(build(name, SIZES[name], 0))
        own = {bits: meter.ours(bits) for bits in (8, 6, 4)}
        for bits in (8, 4):
            rival = meter.hook(bits, errors.GROUPS[0])
            assert own[bits].kept < rival.kept
            assert own[bits].error < rival.error
            most_bits = next(point for point in own.values() if point.kept <= rival.kept)  # the widest come first
            assert most_bits.error <= own[bits].error


def test_networks_are_those_of_the_command_line():
    assert tuple(SMALL) == FRONT_MODELS
    assert set(UNSEEN) == set(CONFIGURATIONS)
    assert set(TINY) < set(SMALL)


@pytest.mark.parametrize("name", UNSEEN)
def test_networks_that_nothing_was_tuned_on_are_built(name):
    net = build(name, Size(2, 2, 64, 32), 0)
    net.loss(net.module).backward()
    gradients = [weight.grad for weight in net.module.parameters() if weight.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert len(gradients) > len(list(net.module.parameters())) / 2


def test_the_strong_hook_codes_parts_and_fills_groups_but_no_inputs():
    """Of a product cut in three, two parts are saved; 4097 elements do not fill groups."""
    layer = torch.nn.Linear(32, 3 * 64)
    x = torch.randn(128, 32)
    odd = torch.randn(5000)[:4097].requires_grad_()

    def loss(saved):
        a, b, _ = layer(x).chunk(3, -1)
        saved.extend((a * b, odd * odd))
        return sum(part.square().sum() for part in saved)

    loss([]).backward()
    exact = [layer.weight.grad.clone(), odd.grad.clone()]
    layer.weight.grad = odd.grad = None
    with saving_neighbours(layer, [x], 8, 64):
        result = loss([])
    result.backward()
    for gradient, right in zip((layer.weight.grad, odd.grad), exact, strict=True):
        assert 0 < (gradient - right).norm() / right.norm() < 0.05


def test_the_hook_at_equal_bytes():
    """Of groups of 64, half-way between two widths: the geometric mean; groups of 128 are better in more bytes."""
    rival = {
        (2, 64): Point(100, 1.0),
        (4, 64): Point(200, 0.01),
        (2, 128): Point(120, 0.9),
        (4, 128): Point(160, 0.005),
    }
    assert errors.at_bytes(rival, 99) is None
    assert errors.at_bytes(rival, 110) == pytest.approx(10**-0.2)
    assert errors.at_bytes({key: rival[key] for key in ((2, 64), (4, 64))}, 150) == pytest.approx(0.1)
    assert errors.at_bytes(rival, 200) == pytest.approx(0.005)


@pytest.mark.slow
def test_quick_rows_and_their_page(tmp_path, capsys, monkeypatch):
    out = tmp_path / "rows.jsonl"
    assert run("--quick", "--models", "BERT,T5", "--out", str(out)) == command.GOOD
    rows = read_lines(out)
    assert {row["mode"] for row in rows} == {errors.EACH, errors.SAME_BITS, errors.SAME_BYTES}
    assert "BERT: error by compress 8 bits" in capsys.readouterr().out
    monkeypatch.setattr(page, "read", lambda name: {"a-cpu": rows})
    text = page.section()
    assert "| BERT | 8 |" in text
    assert "| T5* | 4 |" in text
    assert "the error is larger than the hook's nowhere. In as many bytes it is at most" in text


def test_where_the_error_is_larger_is_said(monkeypatch):
    base = {"what": "BERT", "device": "a-cpu", "versions": {"torch": "2"}, "runs": 3, "quantiles": (1.1, 1.3)}
    rows = []
    for bits, ratio in zip(errors.BITS, (1.2, 1.0, 0.9), strict=True):
        way = {**base, "implementation": errors.ours(bits)}
        rows += [
            {**way, "mode": errors.EACH, "unit": errors.ERROR, "median": 0.1},
            {**way, "mode": errors.SAME_BITS, "unit": errors.ERROR_RATIO, "median": ratio},
            {**way, "mode": errors.SAME_BITS, "unit": errors.KEPT_RATIO, "median": 0.5},
        ]
    rows.append({**rows[0], "mode": errors.SAME_BYTES, "unit": errors.ERROR_RATIO, "quantiles": (0.1, 0.3)})
    monkeypatch.setattr(page, "read", lambda name: {"a-cpu": rows})
    text = page.section()
    assert "larger than the hook's in 1 of 3: BERT (1.20 times at most). In as many bytes it is at most 0.30" in text
    assert f"| BERT | 4 | 1.0e-01 | 1.00 (1.10–1.30) | 0.50 | {page.FEWER} |" in text


def test_no_rows_no_table(monkeypatch):
    monkeypatch.setattr(page, "read", lambda name: {})
    assert page.section() == "No rows yet.\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--models", "LSTM"), "models must be of BERT, GPT-2,"),
        (("--quick", "--models", "Mamba"), "models must be of BERT, ResNet, T5, got 'Mamba'"),
        (("--seeds", "0"), "seeds must be a whole number from 1 to 100, got '0'"),
    ],
)
def test_wrong_words(words, message, capsys):
    assert run(*words) == command.MISUSED
    assert message in capsys.readouterr().err
