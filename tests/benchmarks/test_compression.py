"""The ways of `benchmarks.compression`: their gradients, and their bytes by the allocator."""

import pytest
import torch

from benchmarks.baselines.hooked import EncodedStorage, saving_codes
from benchmarks.compression import __main__ as compression
from benchmarks.compression import page
from benchmarks.compression.meter import measured
from benchmarks.compression.models import LARGE, NORMAL, TINY, Size, _head_count, build
from benchmarks.compression.ways import CHECKPOINT, CONVERTED, EAGER, HOOKS, OURS, prepared, settings_of
from benchmarks.parsers import COMPRESSION_WAYS
from benchmarks.rows import read_lines
from coefficients import command
from kernels import KernelError

CPU = torch.device("cpu")
SIZE = Size(2, 8, 64, 64)


def run(*arguments):
    return command.run(compression.PROG, lambda: compression.main(arguments), (KernelError,))


def gradient(name, way):
    net = build(name, TINY[name], torch.float32, CPU)
    with settings_of(way):
        prepared(net, way)().backward()
    return net.gradient()


@pytest.mark.parametrize("name", [name for name in NORMAL if name != "ViT"])
def test_checkpointing_is_exact_and_hooks_err_by_their_bits(name):
    exact = gradient(name, EAGER)
    assert torch.equal(gradient(name, CHECKPOINT), exact)  # the same operations on the same numbers
    errors = [float((gradient(name, way) - exact).norm() / exact.norm()) for way in ("hook 8 bits", "hook 4 bits")]
    assert 0 < errors[0] < errors[1] / 4  # a step is 17 times as long


def test_vit_is_built():
    net = build("ViT", SIZE._replace(batch=2, length=32), torch.float32, CPU)
    net.loss(net.module).backward()
    assert net.gradient().isfinite().all()
    assert len(net.blocks) == SIZE.layers


def test_every_network_has_its_sizes_and_heads_that_attention_has_kernels_for():
    assert set(NORMAL) == set(LARGE) == set(TINY)
    assert [1024 // _head_count(1024), 256 // _head_count(256), 64 // _head_count(64)] == [64, 64, 16]


def test_the_ways_are_those_of_the_command_line():
    named = {*HOOKS, *CONVERTED, *OURS}
    assert named < set(COMPRESSION_WAYS)
    assert {way for way in COMPRESSION_WAYS if way.endswith(("bits", "exact"))} == named


@pytest.mark.slow
def test_captured_blocks_are_exact_or_err_by_their_bits():
    exact = gradient("Llama-like", EAGER)
    ways = ("compress exact", "compress graph 8 bits", "compress graph 4 bits")
    errors = [float((gradient("Llama-like", way) - exact).norm() / exact.norm()) for way in ways]
    assert errors[0] == 0 < errors[1] < errors[2] / 4  # a step is 17 times as long


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


def test_times_are_of_the_dtypes_that_are_asked_for(tmp_path):
    out = tmp_path / "rows.jsonl"
    words = ("--quick", "--what", "times", "--ways", "eager,checkpoint", "--dtypes", "bfloat16", "--out", str(out))
    assert run(*words) == command.GOOD
    rows = read_lines(out)
    assert {(row["dtype"], row["unit"]) for row in rows} == {("bfloat16", "s"), ("bfloat16", "ratio of times")}


def test_ways_whose_tests_fail_are_left_out(tmp_path):
    out = tmp_path / "rows.jsonl"
    asked = ("--quick", "--what", "bytes", "--dtypes", "float32", "--without", "hook 4 bits,coded 4 bits")
    assert run(*asked, "--out", str(out)) == command.GOOD
    assert {row["implementation"] for row in read_lines(out)} == {EAGER, CHECKPOINT}


def test_what_fails_is_said_and_does_not_stop_the_others(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(HOOKS, "hook 4 bits", "four")
    out = tmp_path / "rows.jsonl"
    assert run("--quick", "--what", "bytes", "--dtypes", "float32", "--out", str(out)) == command.BAD
    assert "compression: GELU MLP, float32, hook 4 bits: " in capsys.readouterr().err
    assert {row["implementation"] for row in read_lines(out)} == {EAGER, CHECKPOINT}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--models", "LSTM"), "models must be of GELU MLP, "),
        (("--ways", "hook 5 bits"), "ways must be of eager, "),
        (("--without", "hook 5 bits"), "without must be of eager, "),
        (("--dtypes", "float16"), "dtypes must be float32 or bfloat16, got 'float16'"),
        (("--what", "speed"), "what must be bytes or times, got 'speed'"),
        (("--ways", "checkpoint"), "ways must have eager or compiled, to which times are compared, got 'checkpoint'"),
    ],
)
def test_wrong_words(words, message, capsys):
    assert run(*words) == command.MISUSED
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_page(dtype, monkeypatch):
    base = {"what": "BERT", "size": SIZE._asdict(), "dtype": dtype, "device": "a-cpu", "versions": {"torch": "2"}}
    kept = {EAGER: (100.0, 200.0, 0.0), "coded 4 bits": (14.0, 50.0, 0.1)}
    rows = [
        {**base, "implementation": way, "mode": mode, "median": value, "unit": ""}
        for way, values in kept.items()
        for mode, value in zip(("kept", "peak", "error"), values, strict=True)
    ]
    times = [
        {**base, "implementation": f"coded 4 bits / {rival}", "mode": "time", "unit": "ratio of times", "median": value}
        | {"quantiles": (value - 0.01, value + 0.01), "runs": 9}
        for rival, value in ((EAGER, 0.9), ("compiled", 1.02))
    ]
    alone = [
        {**row, "what": "ViT"} for row in rows if row["implementation"] != EAGER
    ]  # without an eager row to compare with
    files = {"compression-bytes": {"a-cpu": alone + rows, "b-cpu": alone}, "compression-times": {"a-cpu": times}}
    monkeypatch.setattr(page, "read", files.__getitem__)
    text = page.section()
    assert "ViT" not in text
    assert f"BERT, 2 blocks 64 wide, inputs 8 × 64, {dtype}:" in text
    assert "| **coded 4 bits** | 0.140 | 0.250 | 1.0e-01 | 0.90 (0.89–0.91) | 1.02 (1.01–1.03) |" in text
    assert "| eager | 1.000 | 1.000 | 0.0e+00 | 1 | – |" in text
    text = page.readme()
    assert "|  | BERT: peak | BERT: time |" in text
    assert "| **ours**, coded 4 bits | 0.25 | 0.90 |" in text
    assert f"In {dtype} on a-cpu with torch 2" in text
