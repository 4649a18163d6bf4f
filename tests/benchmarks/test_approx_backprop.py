"""`python -m benchmarks.approx_backprop`: bytes, errors, batches, rows, refusals and page; not its speed."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from benchmarks.approx_backprop import __main__ as bench
from benchmarks.approx_backprop import batches as largest_batches
from benchmarks.approx_backprop import layers as single_layers
from benchmarks.approx_backprop import models as whole
from benchmarks.approx_backprop import nets, page
from benchmarks.approx_backprop import times as timed
from benchmarks.approx_backprop.nets import CHECKPOINT, EIGHT, FOUR, FUSED, GROUPS, PAPER, PAPER_EIGHT, STOCK
from benchmarks.rows import RESULTS, read_lines
from coefficients import command

pytestmark = pytest.mark.usefixtures("one_thread")
WHERE = {"device": "d", "versions": {}, "revision": "r"}
CPU = torch.device("cpu")
GELU, LINEAR = "GELU – linear", "linear"
OUTLIER = "linear, a feature 1000 times the others"
SMALL = largest_batches.Net(11, 4, (0, 0), (0.0, 0.0))


def key(row):
    size = row["size"]
    return row["what"], row["implementation"], row["mode"], row["unit"], size.get("depth"), size.get("width")


COMMITTED = {key(row): row["median"] for path in RESULTS.glob("*/approx-backprop-*.jsonl") for row in read_lines(path)}


def run(*arguments):
    return command.run(bench.PROG, lambda: bench.main(arguments))


def medians(rows):
    return {key({**vars(row)}): row.median for row in rows}


def test_every_count_is_committed():
    kept = {name[:3] for name in COMMITTED if name[0] == "kept"}
    assert kept == {("kept", way, name) for name, piece in single_layers.PIECES.items() for way in piece.ways}
    models = {name[1:3] for name in COMMITTED if name[0] == "kept by a model"}
    assert models == {(way, name) for name in whole.NAMES for way in whole.ways_of(name)}
    batches = {(name[1], *name[4:]) for name in COMMITTED if name[0] == "largest batch"}
    assert batches == {
        (way, net.depth, net.width) for way in largest_batches.WAYS for net in largest_batches.NETS.values()
    }


def test_every_error_and_time_is_committed():
    errors = {name[:3] for name in COMMITTED if name[3] in ("relative", single_layers.LOST)}
    worst = f"dW{single_layers.WORST}"
    grads = {name: ("dx", *piece.grads.values(), worst) for name, piece in single_layers.PIECES.items()}
    assert errors == {
        (f"error of {grad}", way, name)
        for name, piece in single_layers.PIECES.items()
        for way in piece.ways
        for grad in grads[name]
    }
    times = {name[:2] for name in COMMITTED if name[2] == timed.EAGER}
    ratios = [f"{way} / {STOCK}" for way in timed.WAYS if way != STOCK]
    assert times >= {(what, name) for what in timed.NETS["cpu"] for name in (*timed.WAYS, *ratios)}


# Layers


@pytest.mark.parametrize("name", [single_layers.FRIENDLY, single_layers.FAR_BIASES, single_layers.DEAD_CHANNELS])
def test_bytes_of_a_layer(name):
    counts = {way: single_layers.kept(single_layers.PIECES[name], way) for way in single_layers.PIECES[name].ways}
    assert counts == {
        **{STOCK: 1048832, FUSED: 524416, PAPER_EIGHT: 131200, PAPER: 65664},
        **{EIGHT: 147584, FOUR: 82048, GROUPS: 90240},
    }
    assert all(COMMITTED["kept", way, name, "B", None, None] == total for way, total in counts.items())


def test_bytes_of_transformers_pieces():
    assert (
        single_layers.kept(single_layers.PIECES[LINEAR], FOUR) / (4 * single_layers.TOKENS * single_layers.WIDTH)
        == 0.140625
    )
    assert single_layers.kept(single_layers.PIECES[GELU], STOCK) / (4 * single_layers.TOKENS * single_layers.WIDER) == 2
    assert (
        single_layers.kept(single_layers.PIECES[GELU], FOUR) / (4 * single_layers.TOKENS * single_layers.WIDER)
        == 0.265625
    )


@pytest.mark.parametrize("name", single_layers.PIECES)
def test_errors_of_gradients(name):
    """Exact ways err by rounding only, codes by at most what their bits allow; the paper's codes can break."""
    errors = single_layers.errors(single_layers.PIECES[name], 0, CPU)
    for (way, grad), error in errors.items():
        if way in (PAPER, PAPER_EIGHT) and name != single_layers.FRIENDLY:
            continue
        exact = way in (STOCK, FUSED) or grad == "dβ" or (name, grad) in ((LINEAR, "dx"), (OUTLIER, "dx"))
        most = {"dx": 0.04, "dγ": 0.2, "dβ": 0, "dW": 0.15, f"dW{single_layers.WORST}": 0.3}[grad]
        if (name, grad) == (single_layers.FAR_BIASES, f"dW{single_layers.WORST}"):
            most = 1.0001  # of a channel with hardly a positive number, which lie beyond the range
        assert error <= (2e-6 if exact else most)
    if name == single_layers.DEAD_CHANNELS:
        assert not any(errors[PAPER, grad] < 1 for grad in ("dx", "dγ", "dW"))
    if name == single_layers.FAR_BIASES:
        assert errors[PAPER, "dβ"] > 1e-3


def test_gradients_that_are_not_finite_are_counted():
    """JSON has no NaN."""
    rows = single_layers.layers([single_layers.DEAD_CHANNELS], CPU, WHERE, 1)
    (row,) = (row for row in rows if (row.what, row.implementation) == ("error of dx", PAPER))
    assert (row.unit, row.median) == (single_layers.LOST, 1)


# Models


def test_fused_models_are_exact():
    """`fused` leaves GELU alone, as no few-bit table of it is exact."""
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    x = torch.randn(4, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).square().sum(), x)
    nets.apply_way(model, FUSED, (x.detach(),))
    (got,) = torch.autograd.grad(model(x).square().sum(), x)
    torch.testing.assert_close(got, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "times"), [("ResNet-20, 8×8", 12), ("vgg16", 5)])
def test_a_model(name, times):
    """Without `inputs`, VGG's in-place ReLUs would not be converted."""
    stock, four = (whole.kept(name, way)[0] for way in (STOCK, FOUR))
    assert stock > times * four
    assert COMMITTED["kept by a model", STOCK, name, "B", None, None] == stock
    assert COMMITTED["kept by a model", FOUR, name, "B", None, None] == four


@pytest.mark.slow
def test_a_compiled_model(monkeypatch):
    """A compiled model shares codes as in eager mode; two layers only, as compiling takes long."""
    monkeypatch.setattr(whole, "_model", lambda name: (nets.digits(2), (torch.randn(64, 1, 8, 8),), {}))
    eager, compiled = (whole.kept(name, FOUR)[0] for name in ("ResNet-20, 8×8", whole.COMPILED))
    assert compiled == eager


# Batches


def test_what_lives_is_counted():
    with FakeTensorMode(), largest_batches.Living() as living:
        x = torch.empty(100)
        y = x.exp().view(10, 10)
        del y
        z = x + 1
    assert (living.now, living.peak) == (2 * x.nbytes, 2 * z.nbytes)


@pytest.mark.slow
def test_batches_that_are_counted():
    """The largest batch fits and one more does not; the line is exact at the batch."""
    memory = 2**28
    peak = largest_batches.counted(SMALL, FOUR)
    batch, each, besides = largest_batches.largest_of_line(peak, memory)
    assert peak(batch) <= memory < peak(batch + 1)
    assert peak(batch) == each * batch + besides
    assert largest_batches.largest_of_line(peak, 2**10)[0] == 0


@pytest.mark.parametrize("most", [0, 1, 2, 7, 1000])
@pytest.mark.parametrize("guess", [0, 1, 8, 999, 1500])
def test_batches_that_run(most, guess):
    """Each batch is run once."""
    tried = []
    assert largest_batches.largest_that_runs(lambda n: tried.append(n) or n <= most, guess) == most
    assert len(tried) == len(set(tried)) <= 40


@pytest.mark.slow
def test_running_until_memory_is_out(monkeypatch):
    """A stand-in for a GPU: steps run on the CPU, and more than 3 samples raise OutOfMemoryError."""
    fractions = []
    monkeypatch.setattr(
        torch,
        "cuda",
        SimpleNamespace(
            synchronize=lambda device: None,
            empty_cache=lambda: None,
            get_device_properties=lambda device: SimpleNamespace(total_memory=100),
            set_per_process_memory_fraction=lambda share, device: fractions.append(share),
        ),
    )
    running = largest_batches.Running(SMALL, FOUR, CPU)
    step = running.step

    def limited(batch):
        if batch > 3:
            raise torch.OutOfMemoryError
        step(batch)

    monkeypatch.setattr(running, "step", limited)
    base = {"implementation": FOUR, "size": {"memory": 40}, "dtype": "float32", **WHERE}
    batch, seconds = largest_batches.measured(running, 5, base)
    assert (batch.median, batch.mode, batch.unit) == (3, "run", "samples")
    assert (seconds.unit, seconds.runs) == ("s", largest_batches.STEPS)
    assert fractions == [0.4, 1.0]


# The command


@pytest.mark.slow
def test_a_quick_run(tmp_path, monkeypatch, capsys):
    """All kinds of rows, in one file."""
    monkeypatch.setattr(bench, "QUICK_NETS", ("11",))
    monkeypatch.setitem(largest_batches.NETS, "11", SMALL)
    out = tmp_path / "rows.jsonl"
    assert run("--device", "cpu", "--quick", "--memory", "1", "-o", str(out)) == command.GOOD
    rows = read_lines(out)
    assert {"kept", "error of dW", "kept by a model", "largest batch"} < {row["what"] for row in rows}
    times = [row for row in rows if row["what"] in timed.NETS["cpu"]]
    ratios = [f"{way} / {STOCK}" for way in timed.WAYS if way != STOCK]
    assert [row["implementation"] for row in times] == [*timed.WAYS, *ratios]
    assert {row["runs"] for row in times} == {bench.QUICK_RUNS}
    assert {row["versions"]["threads"] for row in times} == {"1"}
    assert "largest batch: 4 bits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--device", "tpu"), "device"),
        (("--device", "cpu", "--runs", ""), "runs"),
        (("--what", "speed"), "what"),
        (("--runs", "0"), "runs"),
        (("--runs", "many"), "runs"),
        (("--memory", "-1"), "memory"),
        (("--out", "no/such/folder/rows"), "out"),
    ],
)
def test_refusals(options, word, capsys):
    assert run(*options) == command.MISUSED
    said = capsys.readouterr().err
    assert word in said
    assert said.count("\n") == 1


def test_a_gpu_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run("--device", "cuda") == command.MISUSED
    assert "no GPU" in capsys.readouterr().err


@pytest.mark.parametrize("way", timed.WAYS)
def test_ways_compute_the_same(way):
    """All timed ways have the same loss, bit for bit."""
    torch.manual_seed(0)
    model, x = timed.NETS["cpu"]["ViT, 64 wide, 4 layers, 64 images"]()
    expected = model.train()(x)
    nets.apply_way(model, way, (x,))
    assert torch.equal(model(x), expected)


# The page


def test_rows_of_a_gpu_are_shown(monkeypatch):
    """The page has batches that ran beside counted ones, and the time of a sample."""
    size = {"depth": 164, "width": 16, "memory": 11 * bench.GIB}
    base = {"size": size, "quantiles": [1, 1], "versions": {"torch": "t"}, "runs": 1}
    counted, run_, time = (
        [{**base, "what": what, "mode": mode, "unit": unit, "implementation": way, "median": median}
         for way, median in zip((FUSED, PAPER, FOUR), medians, strict=True)]
        for what, mode, unit, medians in (
            ("largest batch", "counted", "samples", (900, 6000, 5400)),
            ("largest batch", "run", "samples", (800, 4000, 3200)),
            ("step, of each sample", "run", "s", (0.001, 0.002, 0.0025)),
        )
    )  # fmt: skip
    each = [{**row, "what": "each sample", "unit": "B"} for row in counted]
    rows = {"here": counted + each, "gpu": counted + each + run_ + time}
    monkeypatch.setattr(page, "read", lambda name: rows)
    text = page.batches_section()
    assert text.count("counted on fake tensors") == 1
    assert "within 11 GiB, run on gpu" in text
    assert "| 164 | 800 | 4000 | 3200 | 5.0× | 4.0× | 688 | 2522 | 3.7× |" in text
    assert "| 164 | 1.00 ms | 2.00 ms | 2.50 ms | 4.1 ms | 4.3 ms |" in text


def test_words_beside_the_times():
    rows = [
        [{"implementation": f"{way} / {STOCK}", "median": ratio} for way, ratio in ratios.items()]
        for ratios in ({EIGHT: 2.0, CHECKPOINT: 1.25}, {EIGHT: 0.5})
    ]
    assert page._words(rows) == (
        "8 bits takes 0.50 to 2.00 × stock's time, checkpoint takes 1.25 to 1.25 × stock's time."
    )
    assert page._words(rows[:1]).startswith("All are slower than stock here: 8 bits takes 2.00 to 2.00 ×")
