"""The ways of `benchmarks.compression`: their gradients, and their bytes by the allocator."""

import pytest
import torch

from actfit import KernelError
from actfit.coefficients import command
from benchmarks.baselines.hooked import EncodedStorage, saving_codes
from benchmarks.compression import __main__ as compression
from benchmarks.compression.meter import measured
from benchmarks.compression.models import NORMAL, TINY, Size, build
from benchmarks.compression.ways import CHECKPOINT, EAGER, HOOKS, OURS, prepared, settings_of
from benchmarks.parsers import COMPRESSION_WAYS
from benchmarks.rows import read_lines

CPU = torch.device("cpu")
SIZE = Size(2, 8, 64, 64)


def run(*arguments):
    return command.run(compression.PROG, lambda: compression.main(arguments), (KernelError,))


NAMES = [name for name in NORMAL if not name.startswith("narrow")]  # these differ in size alone


def gradient(name, way):
    net = build(name, TINY[name], torch.float32, CPU)
    with settings_of(way):
        prepared(net, way)().backward()
    return net.gradient()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ViT"])
def test_checkpointing_is_exact_and_hooks_err_by_their_bits(name):
    exact = gradient(name, EAGER)
    assert torch.equal(gradient(name, CHECKPOINT), exact)  # the same operations on the same numbers
    errors = [float((gradient(name, way) - exact).norm() / exact.norm()) for way in ("hook 8 bits", "hook 4 bits")]
    assert 0 < errors[0] < errors[1] / 4  # a step is 17 times as long


def test_the_ways_are_those_of_the_command_line():
    named = {*HOOKS, *OURS}
    assert named < set(COMPRESSION_WAYS)
    assert {way for way in COMPRESSION_WAYS if way.startswith(("hook", "compress", "fit", "coded", "planned"))} == named


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bits"), [("BERT", 8), ("Llama-like", 4)])
def test_compress_keeps_less_than_hooks_and_errs_less(name, bits):
    """By the ways of the benchmark; what compress does for these models is in tests/kernels/graph/test_models.py."""

    def taken(way):
        net = build(name, TINY[name], torch.float32, CPU)
        with settings_of(way):
            loss = prepared(net, way)
            loss().backward()
            error = float((net.gradient() - exact).norm() / exact.norm())
            return measured(loss, CPU).kept, error

    exact = gradient(name, EAGER)
    kept, error = taken("compress exact")
    assert kept < taken(EAGER)[0]
    assert error == 0
    ours, hooks = taken(f"compress {bits} bits"), taken(f"hook {bits} bits")
    assert ours[0] < hooks[0] < kept
    assert 0 < ours[1] < hooks[1]


def test_a_hook_codes_a_storage_once_and_no_weights(monkeypatch):
    made = []
    monkeypatch.setattr(
        "benchmarks.baselines.hooked.EncodedStorage",
        lambda flat, bits: made.append(flat.numel()) or EncodedStorage(flat, bits),
    )
    layer = torch.nn.Linear(128, 128)
    x = torch.randn(64, 128)
    with saving_codes(layer, 4):
        y = torch.relu(layer(x))  # encodes x and y; the weight is as large, but is not encoded
        z = layer(y)  # y, encoded already
    z.sum().backward()
    assert made == [x.numel(), y.numel()]


def test_bytes_are_the_allocators():
    """The loss is the sum of squares of x y: x and y exist before, and the product is saved."""
    x, y = torch.randn(2, 1 << 16)
    x.requires_grad_()
    x.grad = torch.zeros_like(x)
    bytes = measured(lambda: (x * y).square().sum(), CPU)
    assert x.nbytes <= bytes.kept <= x.nbytes + 4096  # and a few numbers
    # At most, in backward: the product, its gradient and, before it, 2 times the product.
    assert 2 * x.nbytes <= bytes.peak <= 5 * x.nbytes


@pytest.mark.slow
def test_quick_and_its_rows(tmp_path, capsys):
    assert run("--quick", "--out", str(tmp_path / "rows.jsonl")) == command.GOOD
    rows = read_lines(tmp_path / "rows.jsonl")
    assert {row["mode"] for row in rows} == {"kept", "peak", "error", "time"}
    exact = [row["median"] for row in rows if row["mode"] == "error" and row["dtype"] == "float32"]
    assert exact[0] == exact[1] == 0 < exact[2]
    assert {row["dtype"] for row in rows if row["mode"] == "time"} == {"float32"}
    said = capsys.readouterr().out
    assert "GELU MLP, float32, checkpoint: kept" in said
    assert "GELU MLP, float32: checkpoint / eager" in said


def test_what_fails_is_said_and_does_not_stop_the_others(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(HOOKS, "hook 4 bits", "four")
    out = tmp_path / "rows.jsonl"
    ways = ("--ways", f"{EAGER},{CHECKPOINT},hook 4 bits")
    assert run("--quick", "--what", "bytes", "--dtypes", "float32", *ways, "--out", str(out)) == command.BAD
    assert "compression: GELU MLP, float32, hook 4 bits: " in capsys.readouterr().err
    assert {row["implementation"] for row in read_lines(out)} == {EAGER, CHECKPOINT}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--models", "LSTM"), "models must be of GELU MLP, "),
        (("--ways", "hook 5 bits"), "ways must be of eager, "),
        (("--dtypes", "float16"), "dtypes must be float32 or bfloat16, got 'float16'"),
        (("--what", "speed"), "what must be bytes or times, got 'speed'"),
        (("--ways", "checkpoint"), "ways must have eager or compiled, to which times are compared, got 'checkpoint'"),
    ],
)
def test_wrong_words(words, message, capsys):
    assert run(*words) == command.MISUSED
    assert message in capsys.readouterr().err
