"""The nets of `python -m benchmarks.training` whose layers save few bits, and the main claim of their paper."""

import math
from dataclasses import asdict

import pytest
import torch
from torch import nn

from benchmarks.baselines import naive as training_naive
from benchmarks.training import __main__ as bench
from benchmarks.training import approx_page as page
from benchmarks.training import gradients as training_gradients
from benchmarks.training import jobs as training_jobs
from benchmarks.training import page as training_page
from benchmarks.training import rows as training_rows
from benchmarks.training import runs as training_runs
from benchmarks.training import variants
from benchmarks.training.rows import TrainingRow
from coefficients import command
from tests.kernels.saved import bytes_in_graph

RESNETS = ("resnet20", "resnet56", "resnet164")

pytestmark = pytest.mark.usefixtures("one_thread")


def small(task, **changed):
    return training_jobs.settings(task, "small", "cpu", 1, False, **changed)


def quick(task):
    return training_jobs.settings(task, "quick", "cpu", 1, False)


# The paper's main claim


@pytest.fixture(scope="module", params=RESNETS)
def measured(request):
    """Gradients of 3 batches for a net of the study's size, at the first weights and after 3 steps."""
    gradients = {state: {} for state in training_gradients.STATES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(training_gradients.BATCHES, "small", 3)
        settings = small(request.param, steps=3)
        for state, variant, numbers in training_gradients.measure(settings, ("approx-4", "naive-4"), 0):
            gradients[state][variant] = numbers
    return int(request.param.removeprefix("resnet")), gradients.values()


@pytest.mark.slow
def test_errors_of_gradients_do_not_grow_with_depth(measured):
    _, states = measured
    for gradients in states:
        assert 0.01 < page.stem_error(gradients, "approx-4") <= 0.13
        assert page.stem_error(gradients, "naive-4") >= 1.0  # no better than no gradient at all


@pytest.mark.slow
def test_errors_of_gradients_are_far_below_the_noise_of_batches(measured):
    depth, states = measured
    for gradients in states:
        ratios = page.ratios(gradients, "approx-4")
        assert len(ratios) == depth  # all layers
        assert min(ratios) >= 8  # of squares; 8.7 and more on the processors that were tried


# Nets


@pytest.mark.parametrize("task", RESNETS)
def test_a_resnet_is_as_deep_as_its_name_says(task):
    model = training_runs.start(small(task), "stock", 0)
    weighted = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert len(weighted) == int(task.removeprefix("resnet"))
    shapes = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, y: shapes.append(tuple(y.shape[1:])))
    assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    assert list(dict.fromkeys(shapes)) == [(32, 8, 8), (64, 4, 4), (128, 2, 2)]
    assert not any(p.numel() for block in model.blocks for name, p in block.named_parameters() if "norm" in name)


def test_a_shortcut_halves_by_the_mean_and_widens_by_zeros():
    block = training_runs.start(small("resnet20"), "stock", 0).blocks[2]
    nn.init.zeros_(block.third[2].weight)
    x = torch.randn(5, 32, 8, 8)
    y = block(x)
    torch.testing.assert_close(y[:, :32], nn.functional.avg_pool2d(x, 2))
    assert not y[:, 32:].any()


def test_all_patches_of_a_vit_see_each_other():
    model = training_runs.start(quick("vit"), "stock", 0)
    seen = []
    model.blocks[0].register_forward_hook(lambda _, __, y: seen.append(y))
    x = torch.randn(2, 1, 8, 8)
    other = x.clone()
    other[:, :, -1, -1] += 1  # the last patch
    model(x), model(other)
    assert (seen[0] != seen[1]).any(-1).all()


@pytest.mark.parametrize("task", variants.NETS)
def test_variants_of_nets_begin_alike(task):
    settings = quick(task)
    stock = training_runs.start(settings, "stock", 3)
    batch = training_runs.of(settings).batch(8, torch.Generator().manual_seed(0))
    value = training_runs.forward(settings, stock, *batch)
    for variant in (*variants.VARIANTS_OF[task], variants.FUSED):
        model = training_runs.start(settings, variant, 3)
        if variant == variants.NARROW:
            assert _hidden(model) * 4 == _hidden(stock)
            continue
        assert all(map(torch.equal, model.parameters(), stock.parameters()))
        same = training_runs.forward(settings, model, *batch).equal(value)
        assert same != variant.startswith("naive")  # whose forward is another


def _hidden(model):
    return model.head.in_features


@pytest.mark.parametrize("task", ["resnet20", "vit"])
def test_the_fewer_bits_the_fewer_bytes(task):
    settings = quick(task)
    kept = {}
    for variant in ("stock", variants.FUSED, "approx-8", "approx-4"):
        model = training_runs.start(settings, variant, 0)
        x, target = training_runs.of(settings).batch(16, torch.Generator().manual_seed(0))
        call = lambda model=model, x=x, target=target: training_runs.forward(settings, model, x, target)  # noqa: E731
        value, kept[variant] = training_runs.counted(call, model)
        assert kept[variant] == bytes_in_graph(value, without=[*model.parameters(), *model.buffers()])
    assert kept["stock"] > kept[variants.FUSED] > kept["approx-8"] > kept["approx-4"]


# Naive


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_values_are_put_in_the_middle_of_steps(bits):
    torch.manual_seed(bits)
    gain, bias = torch.tensor([1.0, -0.5, 3.0]), torch.tensor([0.0, 0.7, -2.0])
    a = torch.randn(64, 3, 5).double() * gain[:, None] + bias[:, None]
    rounded = training_naive.rounded(a, gain.double(), bias.double(), bits)
    for channel in range(3):
        values, step = rounded[:, channel], 6 / 2**bits * abs(float(gain[channel]))
        assert len(values.unique()) <= 2**bits
        near = (a[:, channel] - bias[channel]).abs() < 3 * abs(gain[channel]) - step
        assert near.float().mean() > 0.5
        assert ((values - a[:, channel])[near].abs() <= step / 2 * (1 + 1e-9)).all()
        assert ((values - bias[channel]).abs() <= 3 * abs(gain[channel]) + step / 2).all()
        places = values / step - 0.5
        torch.testing.assert_close(places, places.round())


def test_a_gain_of_zero_leaves_the_bias():
    a = torch.full((4, 1, 2), 0.25)
    assert training_naive.rounded(a, torch.zeros(1), torch.tensor([0.25]), 4).equal(a)


def test_a_naive_net_is_tested_exactly_unless_told():
    settings = quick("resnet20")
    naive, stock = (training_runs.start(settings, variant, 0) for variant in ("naive-4", "stock"))
    x = torch.randn(32, 1, 8, 8)
    for model in (naive, stock):
        model.eval()
    assert naive(x).equal(stock(x))
    with training_naive.quantised(naive) as rounds:
        assert rounds
        assert not naive(x).equal(stock(x))
    assert naive(x).equal(stock(x))
    with training_naive.quantised(stock) as rounds:
        assert not rounds


def test_a_naive_gradient_goes_straight_through():
    norm = training_naive.NaiveNorm(3, 4)
    exact = nn.BatchNorm2d(3)
    x, grad = torch.randn(8, 3, 4, 4, requires_grad=True), torch.randn(8, 3, 4, 4)
    gradient, expected = (torch.autograd.grad(module(x), x, grad)[0] for module in (norm, exact))
    assert gradient.equal(expected)


# Rows and the page


@pytest.mark.slow
def test_nets_are_trained_by_their_own_variants(tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    options = ["--quick", "--seeds", "1", "--steps", "2", "--arms", "naive-4,approx-4", "--out", str(out)]
    assert command.run(bench.PROG, lambda: bench.main([*options, "--task", "resnet20,vit"])) == command.GOOD
    rows = training_rows.load(out)
    trained = {(row.task, row.implementation) for row in rows if row.mode == "run"}
    common = {(task, variant) for task in ("resnet20", "vit") for variant in ("stock", "approx-4")}
    assert trained == common | {("resnet20", "naive-4")}
    for row in rows:
        assert ("quantised" in row.results) == (row.mode == "run" and row.implementation == "naive-4")
    counted = {row.implementation: row.results["kept"] for row in rows if row.what == "gradients resnet20"}
    trainings = training_rows.runs(rows, "resnet20")
    assert counted["approx-4"] == trainings["approx-4"][0].results["kept"]
    assert counted["noise"] == trainings["stock"][0].results["kept"] > counted["fused"] > counted["approx-4"]
    assert set(tmp_path.iterdir()) == {out, tmp_path / "rows-approx.png"}
    assert "| naive-4 (tested as trained) |" in capsys.readouterr().out


def test_without_a_task_those_that_have_the_variants():
    assert bench._variants(None, "approx-4,paper-4") == {
        **{task: ["stock", "approx-4", "paper-4"] for task in ("resnet20", "resnet56")},
        **{task: ["stock", "approx-4"] for task in ("resnet164", "vit")},
    }
    assert list(bench._variants(None, None)) == list(training_jobs.TASKS) == list(bench._variants(None, "stock"))
    assert bench._variants("text", "approx-4,invact") == {"text": ["stock", "invact"]}


def test_a_page_of_made_up_rows_of_nets(tmp_path):
    settings = training_runs.key(quick("resnet20"))
    errors = {"stock": [1.0, 2.0, 3.0], "approx-4": [1.5, 2.5, 3.5], "naive-4": [5.0, None, 7.0], "narrow": [9, 9, 9]}
    errors["approx-8"] = errors["stock"]
    rows = [
        TrainingRow("training resnet20", variant, "run", seed, settings, _results(variant, error), "d", {}, "r")
        for variant, of_seeds in errors.items()
        for seed, error in enumerate(of_seeds)
    ]
    folder = tmp_path / "machine"
    folder.mkdir()
    training_rows.save(rows, folder / "training.jsonl")
    markers = f"{training_page.BEGIN}{training_page.END}between\n{page.BEGIN}old\n{page.END}after\n"
    text = training_page.rendered(markers, tmp_path)
    assert text.startswith(f"{training_page.BEGIN}{training_page.END}between\n{page.BEGIN}**resnet20**")
    assert text.endswith(f"{page.END}after\n")
    lines = text.splitlines()
    start = "| approx-4 | 1.00 MB | 2.0× | – | 2.50 ± 1.00 | +0.50 (+0.50 to +0.50) | < 0.001 | equivalent, but meas"
    assert any(line.startswith(start) for line in lines)
    assert "| naive-4 | – | – | – | 6.00 ± 1.41 | – | – | diverged with 1 of 3 seeds | 2.00× |" in lines
    assert any(line.startswith("| naive-4 (tested as trained) | – | – | – | 2.00 ± 1.41 |") for line in lines)
    assert any(line.startswith("| approx-8 |") and "as many errors with each seed" in line for line in lines)
    assert any(
        line.startswith("Mean test errors at most the margin above stock's: approx-8, approx-4") for line in lines
    )


def _results(variant, error):
    of = lambda error: {"loss": None if error is None else 1.0, "accuracy": 1 - (error or 0) / 100}  # noqa: E731
    stock = variant == "stock"
    results = {**of(error), "kept": 2e6 if stock else 1e6, "seconds": 1.0 if stock else 2.0, "curve": []}
    return results | ({"quantised": of(None if error is None else error - 4)} if variant.startswith("naive") else {})


def test_rows_of_nets_are_numbers():
    for path in training_page.RESULTS.glob(training_page.ROWS):
        for row in training_rows.load(path):
            if row.task in variants.NETS and row.mode == "run":
                assert math.isfinite(row.results["loss"]), asdict(row)
