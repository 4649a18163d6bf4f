"""`python -m benchmarks.training`: data, models, arms, statistics, rows, refusals; never how well anything learns."""

import json
import math
import sys
from dataclasses import replace
from pydoc_data.topics import topics

import pytest
import torch
from scipy import stats
from torch import nn

from benchmarks.baselines import actnn
from benchmarks.training import __main__ as bench
from benchmarks.training import arms, statistics
from benchmarks.training import data as training_data
from benchmarks.training import gradients as training_gradients
from benchmarks.training import jobs as training_jobs
from benchmarks.training import page as training_page
from benchmarks.training import plots as training_plots
from benchmarks.training import rows as training_rows
from benchmarks.training import runs as training_runs
from benchmarks.training.rows import Row
from coefficients import command
from tests.kernels.saved import bytes_in_graph

CPU = torch.device("cpu")
QUICK = ("--quick", "--task", "text", "--seeds", "1")

pytestmark = pytest.mark.usefixtures("one_thread")


def run(*arguments):
    return command.run(bench.PROG, lambda: bench.main(arguments))


def quick(task, **changed):
    return training_jobs.settings(task, "quick", "cpu", 1, False, **changed)


@pytest.fixture
def undrawn(monkeypatch):
    """No pictures, which take seconds."""
    monkeypatch.setattr(training_plots, "save", lambda rows, path: [])


@pytest.fixture
def trained(monkeypatch, undrawn):
    """The arms and seeds that are trained from here on, in their order."""
    calls, train = [], training_runs.train

    def spy(settings, arm, seed):
        calls.append((arm, seed))
        return train(settings, arm, seed)

    monkeypatch.setattr(training_runs, "train", spy)
    return calls


# Data


def test_the_text_is_that_of_the_help_topics():
    found = training_data.text(16, CPU)
    whole = "".join(found.symbols[code] for code in [*found.train.tolist(), *found.held_out.tolist()])
    assert whole == "".join(text for _, text in sorted(topics.items()))
    assert len(found.train) == len(whole) * 9 // 10
    assert len(set(found.symbols)) == found.classes == len(set(whole))


def test_windows_of_text():
    found = training_data.text(16, CPU)
    x, wanted = found.batch(5, torch.Generator().manual_seed(0))
    assert x.shape == wanted.shape == (5, 16)
    assert torch.equal(x[:, 1:], wanted[:, :-1])
    x, wanted = found.judged()
    assert torch.equal(x.flatten(), found.held_out[: x.numel()])  # end to end, nothing twice
    assert torch.equal(wanted.flatten(), found.held_out[1 : x.numel() + 1])
    assert 0 <= len(found.held_out) - x.numel() - 1 < 16
    assert torch.equal(found.judged(4)[0], x[::4])


def test_digits_are_split_alike():
    found = training_data.digits(CPU)
    (images, digits), (held, held_digits) = found.train, found.held_out
    assert images.shape[1:] == held.shape[1:] == (1, 8, 8)
    assert len(digits) + len(held_digits) == 1797
    for digit in range(10):
        both = (torch.cat((digits, held_digits)) == digit).sum()
        assert (held_digits == digit).sum() == both // training_data.EVERY
    assert abs(float(images.double().mean())) < 1e-6  # the sum of 86272 numbers in float32, then 1 rounding each
    assert abs(float(images.double().std()) - 1) < 1e-6
    x, wanted = found.batch(7, torch.Generator().manual_seed(0))
    assert x.shape == (7, 1, 8, 8)
    assert wanted.shape == (7,)


def test_digits_need_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(command.Misuse, match=r"pip install scikit-learn, or --task text"):
        training_data.digits(CPU)


def test_a_digest_tells_data_and_split_apart():
    found = training_data.text(16, CPU)
    other = replace(found, train=found.train[:-1], held_out=torch.cat((found.train[-1:], found.held_out)))
    assert training_data.digest(found) == training_data.digest(training_data.text(32, CPU))
    assert training_data.digest(found) != training_data.digest(other)


# Models and arms


@pytest.mark.parametrize("task", ["text", "digits"])
def test_arms_begin_with_the_same_weights(task):
    settings = quick(task)
    stock = training_runs.start(settings, "stock", 3).state_dict()
    for arm in arms.ARMS:
        state = training_runs.start(settings, arm, 3).state_dict()
        assert state.keys() == stock.keys()
        assert all(torch.equal(state[name], stock[name]) for name in stock)
    other = training_runs.start(settings, "stock", 4).state_dict()
    assert any(not torch.equal(other[name], stock[name]) for name in stock)


def test_a_gpt_does_not_look_ahead():
    settings = quick("text")
    model, found = training_runs.start(settings, "stock", 0), training_runs.of(settings)
    x, _ = found.judged(64)
    other = x.clone()
    other[:, 9:] = (other[:, 9:] + 1) % found.classes
    logits, changed = model(x), model(other)
    assert logits.shape == (*x.shape, found.classes)
    assert torch.equal(logits[:, :9], changed[:, :9])
    assert not torch.equal(logits[:, 9:], changed[:, 9:])


def test_a_resnet_halves_once():
    model = training_runs.start(quick("digits", layers=2), "stock", 0)
    shapes = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, y: shapes.append(tuple(y.shape[1:])))
    assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    assert shapes == [(4, 8, 8)] * 2 + [(8, 4, 4)] * 2


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_each_arm_has_its_activation(name):
    made = {arm: repr(arms.activation(name, arm)) for arm in arms.ARMS}
    assert made["stock"] == made["recompute"] == repr({"gelu": nn.GELU, "silu": nn.SiLU}[name]())
    assert len(set(made.values())) == len(arms.ARMS) - 1
    x = torch.linspace(-6, 6, 1001, requires_grad=True)
    for (
        arm
    ) in arms.ARMS:  # an ulp where |y| is largest, and half of one: all round an exact value once, up to stock's error
        assert (arms.activation(name, arm)(x) - arms.activation(name, "stock")(x)).abs().max() <= 1.5 * 2.0**-21


@pytest.mark.parametrize("task", ["text", "digits"])
def test_recomputing_changes_no_bit(task):
    settings = quick(task)
    (stock, of_stock), (again, of_again) = (training_runs.train(settings, arm, 0) for arm in ("stock", "recompute"))
    # With batch norm: averages too, which a second pass over a batch would move again. It may count batches.
    for name, value in stock.state_dict().items():
        assert name.endswith("num_batches_tracked") or torch.equal(value, again.state_dict()[name]), name
    assert of_again["curve"] == of_stock["curve"]
    assert of_again["kept"] < of_stock["kept"]


def test_a_run_is_the_same_each_time():
    settings = quick("text")
    for arm in ("stock", "fewbit-2", "actnn-2"):
        (first, once), (second, twice) = (training_runs.train(settings, arm, 5) for _ in range(2))
        assert {**once, "seconds": 0} == {**twice, "seconds": 0}
        assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert training_runs.train(settings, "stock", 6)[1]["loss"] != training_runs.train(settings, "stock", 5)[1]["loss"]


@pytest.mark.parametrize("task", ["text", "digits"])
def test_forward_ad_differs_from_stock_by_rounding_only(task):
    """Its gradients are as far from those in float64 as stock's are, up to twice: the roundings of f' come on top."""
    settings = quick(task, width=16)
    x, wanted = training_runs.of(settings).batch(8, torch.Generator().manual_seed(0))
    exact = _gradients(training_runs.start(settings, "stock", 0).double(), x if task == "text" else x.double(), wanted)
    misses = {}
    for arm in ("stock", "forward-ad"):
        found = _gradients(training_runs.start(settings, arm, 0), x, wanted)
        misses[arm] = math.hypot(*(float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)))
    assert 0 < misses["stock"] < 1e-5
    assert misses["forward-ad"] <= 2 * misses["stock"]


def _gradients(model, x, wanted):
    logits = model(x)
    value = nn.functional.cross_entropy(logits.flatten(0, -2), wanted.flatten())
    return torch.autograd.grad(value, list(model.parameters()))


@pytest.mark.parametrize("arm", arms.ARMS)
def test_bytes_counted_are_those_in_the_graph(arm):
    model = nn.Sequential(nn.Linear(8, 33), arms.activation("gelu", arm), nn.Linear(33, 8))
    x = torch.randn(61, 8)
    y, counted = training_runs.counted(lambda: model(x), model)
    assert counted == bytes_in_graph(y, without=model.parameters())
    n = 61 * 33
    hidden = {"stock": 8 * n, "recompute": 8 * n, "forward-ad": 8 * n, "invact": 4 * n + (n + 7) // 8}
    method, _, bits = arm.rpartition("-")
    if bits.isdigit():
        ends = 2 * 4 * math.ceil(n / actnn.GROUP) if method == "actnn" else 0
        hidden[arm] = 4 * n + int(bits) * ((n + 7) // 8) + ends
    assert counted == x.nbytes + hidden[arm]


# ActNN


ROUNDING = 4 * 2.0**-24  # of a place and of a value in float32, as a share of a group's ends


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_stochastic_rounding_has_the_right_mean(bits):
    torch.manual_seed(bits)
    x, repeats = torch.randn(2, actnn.GROUP), 4000
    many = x.expand(repeats, -1, -1).contiguous()
    planes, ends = actnn.quantise(many, bits)
    mean = actnn.restore(planes, ends, many.shape).double().mean(0)
    step = (x.amax(1) - x.amin(1)) / (2**bits - 1)
    # Hoeffding: a mean of values within one step is off by more than this with a chance of 1e-9 for any element.
    bound = step * math.sqrt(math.log(2 * x.numel() / 1e-9) / (2 * repeats)) + ROUNDING * x.abs().amax(1)
    assert ((mean - x).abs() <= bound[:, None]).all()


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("shape", [(1,), (3, 7), (256,), (5, 103), (2, 3, 4, 32)])
def test_a_value_is_kept_on_a_place_beside_it(bits, shape):
    x = torch.randn(shape) - 9  # zeros that fill up the last group would be its largest
    planes, ends = actnn.quantise(x, bits)
    assert planes.shape == (bits, (x.numel() + 7) // 8)
    groups = x.flatten().split(actnn.GROUP)
    assert torch.equal(ends, torch.tensor([[one.min() for one in groups], [one.max() for one in groups]]))
    steps = ((ends[1] - ends[0]) / (2**bits - 1)).repeat_interleave(actnn.GROUP)[: x.numel()].view(shape)
    miss = (actnn.restore(planes, ends, x.shape) - x).abs()
    assert (miss <= steps + ROUNDING * x.abs().max()).all()


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_what_lies_on_a_place_is_kept(bits):
    places = 2**bits - 1
    x = torch.arange(1024).remainder(places + 1) * 0.25 - 1  # 0.25: no rounding in float32
    assert torch.equal(actnn.restore(*actnn.quantise(x, bits), x.shape), x)
    same = torch.full((300,), 0.3)
    assert torch.equal(actnn.restore(*actnn.quantise(same, bits), same.shape), same)


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_the_derivative_is_taken_where_x_was_kept(name):
    x, grad = torch.randn(7, 100, requires_grad=True), torch.randn(7, 100)
    torch.manual_seed(1)
    (found,) = torch.autograd.grad(arms.activation(name, "actnn-2")(x), x, grad)
    torch.manual_seed(1)
    at = actnn.restore(*actnn.quantise(x.detach(), 2), x.shape).requires_grad_()
    (wanted,) = torch.autograd.grad(arms.activation(name, "stock")(at), at, grad)
    assert torch.equal(found, wanted)


def test_ends_have_the_dtype_of_x():
    x = torch.randn(512, dtype=torch.bfloat16)
    planes, ends = actnn.quantise(x, 4)
    assert ends.dtype == actnn.restore(planes, ends, x.shape).dtype == torch.bfloat16
    assert ends.nbytes * 8 / len(x) == 0.125  # bits an element, as FewBit has it


# Gradients beside noise


def test_gradients_are_compared_as_said():
    stock = [[torch.tensor([3.0, 4.0])], [torch.tensor([3.0, -4.0])]]
    arm = [[torch.tensor([3.0, 5.0])], [torch.tensor([3.0, -7.0])]]
    mean = [torch.tensor([3.0, 0.0])]
    found = training_gradients.compare(iter(arm), stock, mean)
    assert found["of batch"] == [pytest.approx((1 / 5 + 3 / 5) / 2)]
    assert found["error"] == [pytest.approx(math.sqrt((1 + 9) / 2) / 3, rel=1e-3)]  # four digits are kept
    assert found["bias"] == [pytest.approx(1 / 3, rel=1e-3)]
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
    arm = {seed: None if d is None else STOCK[seed] + d for seed, d in enumerate(differences)}
    found = statistics.compare(arm, STOCK)
    assert found.verdict == verdict
    assert found.seeds == len(differences)
    if not found.diverged and found.seeds > 1:
        assert found.margin == pytest.approx(stats.tstd(list(STOCK.values())))


# The command


def test_the_command_writes_rows_and_pictures(tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    threads = torch.get_num_threads()
    assert run("--quick", "--arms", "fewbit-3,recompute", "--out", str(out)) == command.GOOD
    assert torch.get_num_threads() == threads
    rows = training_rows.load(out)
    assert [json.dumps(row.line(), ensure_ascii=False) for row in rows] == out.read_text("utf-8").splitlines()
    trainings = {(row.what, row.implementation, row.seed) for row in rows if row.mode == "run"}
    both = ("training text", "training digits")
    assert trainings == {
        (what, arm, seed) for what in both for arm in ("stock", "fewbit-3", "recompute") for seed in (0, 1)
    }
    states = {(row.implementation, row.mode) for row in rows if row.what == "gradients text"}
    assert states == {(arm, mode) for arm in ("noise", "fewbit-3", "recompute") for mode in ("initial", "final")}
    for row in rows:
        assert row.versions["torch"] == torch.__version__
        assert row.versions["threads"] == "1"
        if row.mode == "run":
            assert row.found["curve"][-1][0] == row.settings["steps"] == len(row.found["curve"])
            assert min(row.found["kept"], row.found["seconds"], row.found["loss"]) > 0
            assert 0 <= row.found["accuracy"] <= 1
    pictures = {tmp_path / f"rows-{name}.png" for name in training_page.PICTURES}
    assert set(tmp_path.iterdir()) == {out, *pictures}
    assert "| recompute |" in capsys.readouterr().out


def test_a_run_that_is_broken_off_is_taken_up_again(tmp_path, trained, monkeypatch, capsys):
    out = str(tmp_path / "rows.jsonl")
    spy = training_runs.train

    def stop(settings, arm, seed):
        if arm == "fewbit-2":
            raise KeyboardInterrupt
        return spy(settings, arm, seed)

    wanted = (*QUICK, "--arms", "fewbit-1,fewbit-2", "--out", out)
    monkeypatch.setattr(training_runs, "train", stop)
    assert run(*wanted) == command.INTERRUPTED
    before = {row.key: row for row in training_rows.load(tmp_path / "rows.jsonl")}
    monkeypatch.setattr(training_runs, "train", spy)
    trained.clear()
    assert run(*wanted) == command.GOOD
    assert trained == [("fewbit-2", 0)]
    after = {row.key: row for row in training_rows.load(tmp_path / "rows.jsonl")}
    assert before.items() <= after.items()
    assert "3 of 4 trainings are taken from the file" in capsys.readouterr().err
    trained.clear()
    assert run(*wanted, "--fresh") == command.GOOD
    assert {("stock", 0), ("fewbit-1", 0), ("fewbit-2", 0)} == set(trained)


def test_rows_of_other_settings_are_not_taken(tmp_path, undrawn, capsys):
    out = tmp_path / "rows.jsonl"
    common = (*QUICK, "--arms", "stock", "--out", str(out))
    assert run(*common) == command.GOOD
    before = out.read_bytes()
    assert run(*common, "--steps", "3") == command.MISUSED
    assert "with other settings; give another --out, or --fresh to replace them" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert run(*common, "--steps", "3", "--fresh") == command.GOOD
    assert {row.settings["steps"] for row in training_rows.load(out)} == {3}


def test_quick_writes_nothing_by_itself(capsys):
    results = training_page.RESULTS
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*")}
    assert run(*QUICK, "--arms", "stock", "--steps", "1") == command.GOOD
    assert {path: path.stat().st_mtime_ns for path in results.rglob("*")} == before
    assert "wrote" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--task", "speech"), "task must be of text, digits, resnet20, resnet56, resnet164, vit, got 'speech'"),
        (("--arms", "invact,"), "got ''"),
        (("--task", "vit", "--arms", "fewbit-3"), "arms of vit must be of stock, approx-8, approx-4, narrow, got 'few"),
        (("--seeds", "0"), "seeds must be a whole number from 1 to 1000, got '0'"),
        (("--steps", "1e3"), "steps must be a whole number"),
        (("--jobs", "-1"), "jobs must be a whole number"),
        (("--threads", "²"), "threads must be a whole number"),
        (("--size", "huge"), "size must be small or large, got 'huge'"),
        (("--device", "tpu"), "device must be cuda or cpu, got 'tpu'"),
        (("--digits-activation", "relu"), "digits-activation must be silu or gelu, got 'relu'"),
        (("--out", "/nowhere/rows"), "out must be in a folder that exists"),
        (("--quick", "--out", __file__), "must hold rows of this benchmark"),
    ],
)
def test_wrong_options(arguments, said, capsys):
    assert run(*arguments) == command.MISUSED
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(capsys):
    assert run("--device", "cuda") == command.MISUSED
    assert "use --device cpu" in capsys.readouterr().err


@pytest.mark.parametrize("arm", ["stock", "invact", "fewbit-3", "actnn-2", "recompute"])
def test_autocast_keeps_less(arm):
    settings = quick("digits")
    half = training_runs.train(replace(settings, amp=True), arm, 0)[1]
    assert half["kept"] < training_runs.train(settings, arm, 0)[1]["kept"]
    assert math.isfinite(half["loss"])


def test_digits_with_gelu():
    model = training_runs.start(quick("digits", activation="gelu"), "stock", 0)
    assert {type(one) for one in model.modules()} & {nn.GELU, nn.SiLU} == {nn.GELU}


# The page


def test_the_page_says_what_was_measured():
    page = training_page.PAGE.read_text(encoding="utf-8")
    assert training_page.rendered(page) == page


def test_a_page_of_made_up_rows(tmp_path):
    settings = training_runs.key(quick("text"))
    rows = [
        Row("training text", arm, "run", seed, settings, _found(arm, loss), "d", {}, "r")
        for arm, losses in {"stock": [1.0, 2.0, 3.0], "fewbit-1": [1.1, 2.2, 3.3], "actnn-1": [1.0, None, 3.0]}.items()
        for seed, loss in enumerate(losses)
    ]
    folder = tmp_path / "machine"
    folder.mkdir()
    training_rows.save(rows, folder / "training.jsonl")
    page = training_page.rendered(f"before\n{training_page.BEGIN}old\n{training_page.END}after\n", tmp_path)
    assert page.startswith(f"before\n{training_page.BEGIN}**text**")
    assert page.endswith(f"{training_page.END}after\n")
    lines = page.splitlines()
    assert "| stock | 2.00 MB, 100 % | 2.0000 | – | – | what is compared with | 1.00× |" in lines
    (fewbit,) = [line for line in lines if line.startswith("| fewbit-1")]
    p = statistics.equivalence([0.1, 0.2, 0.3], 1.0)
    assert fewbit.startswith("| fewbit-1 | 1.00 MB, 50 % | 2.2000 | +0.200 (-0.048 to +0.448) |")
    assert fewbit.endswith(f"| {p:.2g} | equivalent | 2.00× |")
    assert "Equivalent: fewbit-1. Diverged with 1 of 3 seeds: actnn-1." in lines
    assert any(line.startswith("| actnn-1 |") and "diverged with 1 of 3 seeds" in line for line in lines)


def _found(arm, loss):
    stock = arm == "stock"
    return {"loss": loss, "accuracy": 0.5, "kept": 2e6 if stock else 1e6, "seconds": 1.0 if stock else 2.0, "curve": []}
