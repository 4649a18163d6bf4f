"""`python -m benchmarks.forward_ad`: bytes, rows, refusals and page; not its speed."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks.forward_ad import __main__ as bench
from benchmarks.forward_ad import bytes as byte_counts
from benchmarks.forward_ad import cases, page
from benchmarks.forward_ad import times as timed
from benchmarks.rows import RESULTS, read_lines
from coefficients import command

pytestmark = pytest.mark.usefixtures("one_thread")
LINEAR, CONVOLUTION = byte_counts.WITHIN
WHERE = {"device": "d", "versions": {}, "revision": "r"}
COMMITTED = {
    (row["what"], row["implementation"], row["mode"], row["size"].get("n"), row["unit"]): row["median"]
    for path in RESULTS.glob("*/forward-ad-*.jsonl")
    for row in read_lines(path)
}


def run(*arguments):
    return command.run(bench.PROG, lambda: bench.main(arguments))


def medians(rows):
    return {(row.what, row.implementation, row.mode, row.size.get("n"), row.unit): row.median for row in rows}


def test_every_row_of_bytes_is_committed():
    names = {key[:3] for key in COMMITTED if key[-1] in ("units", "B") and key[2] in cases.METHODS}
    chains = {
        (f"kept by {block}", name, method)
        for block in byte_counts.WITHIN
        for name in cases.CHAINS
        for method in cases.METHODS
    }
    assert names == chains | {
        ("kept by a model", name, method) for name in byte_counts.MODELS for method in cases.METHODS
    }


def test_every_time_is_committed():
    names = {key[:2] for key in COMMITTED if key[-1] not in ("units", "B")}
    ratios = [f"{timed.OURS} / {name}" for name in cases.METHODS if name != timed.OURS]
    whats = [f"{chain}: {block}" for chain in timed.WRITTEN for block in timed.TIMED]
    assert names == {(what, name) for what in whats for name in (*cases.METHODS, *ratios)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "units"),  # by plain, nested, checkpoint, compiled, between linear layers
    [
        ("swish", (3, 2, 2, 2)),
        ("mish by log", (5, 2, 2, 2)),
        ("newgelu, dropout", (5.25, 2, 2, 2.25)),
        ("relu", (1, 1, 2, 1)),
    ],
)
def test_chains(name, units):
    """A BatchNorm also saves its input, mean and deviation; compiled, its output is computed again from those."""
    rows = byte_counts.chains([name], WHERE)
    counts = medians(rows)
    assert {key: COMMITTED[key] for key in counts} == counts
    assert tuple(row.median for row in rows if row.what == f"kept by {LINEAR}") == units
    statistics = 2 * cases.CHANNELS / cases.ELEMENTS
    besides = [1, 1, 1, 0 if name != "relu" else 1]
    assert [row.median for row in rows if row.what == f"kept by {CONVOLUTION}"] == [
        unit + more + statistics for unit, more in zip(units, besides, strict=True)
    ]


@pytest.mark.parametrize("method", ["plain", "nested", "checkpoint"])
@pytest.mark.parametrize("name", ["ResNet, mish by log", "GPT2, gelu_new", "BERT, gelu_new"])
def test_models_in_eager(name, method, monkeypatch):
    """A unit is an activation's output. Plain formulas save five units, nested ones and checkpoints two."""
    monkeypatch.setattr(byte_counts, "METHODS", (method,))
    ((key, count),) = medians(byte_counts.models([name], {**WHERE})).items()
    assert COMMITTED[key] == count
    plain = COMMITTED[(*key[:2], "plain", *key[3:])]
    unit, times = (16 * 32 * 32 * 32, 9) if name.startswith("ResNet") else (8 * 128 * 512, 4)
    assert count == plain - (0 if method == "plain" else 3 * 4 * unit * times)


@pytest.mark.slow
def test_a_compiled_model(monkeypatch):
    """The small compiled model runs for real, and saves less than the nested one."""
    monkeypatch.setattr(byte_counts, "METHODS", ("plain", "nested", "compiled"))
    monkeypatch.setitem(byte_counts.MODELS, "small", lambda: byte_counts.resnet("mish", batch=2))
    plain, nested, compiled = (row.median for row in byte_counts.models(["small"], WHERE))
    assert compiled < nested == plain - 9 * 4 * 2 * 32 * 32 * 32


def test_rows_of_times(tmp_path, monkeypatch):
    """A tiny real run, without compiling, which takes seconds."""
    monkeypatch.setattr(bench, "can_compile", lambda device: False)
    out = tmp_path / "rows.jsonl"
    assert run("--device", "cpu", "--quick", "--what", "times", "-o", str(out)) == command.GOOD
    rows = read_lines(out)
    assert {row["mode"] for row in rows} == {"1 thread"}
    for what in {row["what"] for row in rows}:
        by_name = {row["implementation"]: row for row in rows if row["what"] == what}
        assert list(by_name) == ["plain", "nested", "checkpoint", "nested / plain", "nested / checkpoint"]
        for rival in ("plain", "checkpoint"):
            ratio = by_name["nested"]["median"] / by_name[rival]["median"]
            assert by_name[f"nested / {rival}"]["median"] == pytest.approx(ratio)
        assert {row["runs"] for row in by_name.values()} == {bench.QUICK_REPEATS}
        assert all(row["versions"]["threads"] == "1" for row in by_name.values())


@pytest.mark.parametrize("method", ["plain", "nested", "checkpoint"])
def test_methods_compute_the_same(method):
    """All timed methods have the same gradients."""
    x = torch.randn(cases.shape(LINEAR, 1 << 16), requires_grad=True)
    torch.manual_seed(0)
    plain = cases.run_by("plain", LINEAR, "newgelu")
    torch.manual_seed(0)
    other = cases.run_by(method, LINEAR, "newgelu")
    (expected,), (got,) = (torch.autograd.grad(module(x).square().sum(), x) for module in (plain, other))
    torch.testing.assert_close(got, expected)


def test_the_device_is_asked_for_bytes(monkeypatch):
    """A stand-in for a GPU's allocator, with 7 bytes before, 12 after, and a peak of 20."""
    given = iter([7, 12, 7])
    monkeypatch.setattr(
        torch,
        "cuda",
        SimpleNamespace(
            synchronize=lambda device: None,
            reset_peak_memory_stats=lambda device: None,
            memory_allocated=lambda device: next(given),
            max_memory_allocated=lambda device: 20,
        ),
    )
    measured = timed.Run("chain", "mish", "float32", 1 << 16, torch.device("cpu"))
    assert [(row.mode, row.unit, row.median) for row in timed.allocated(measured, ["nested"], WHERE)] == [
        ("kept", "B", 5),
        ("peak", "B", 13),
    ]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--device", "tpu"), "device"),
        (("--device", "cpu", "--runs", ""), "runs"),
        (("--what", "speed"), "what"),
        (("--runs", "0"), "runs"),
        (("--runs", "many"), "runs"),
        (("--threads", "1,0"), "threads"),
    ],
)
def test_refusals(options, word, capsys):
    assert run(*options) == command.MISUSED
    assert word in capsys.readouterr().err


def test_words_beside_the_chains():
    kept_by_chain = {
        "one": {"compiled": 1.0, "nested": 2.0},
        "two": {"compiled": 2.0, "nested": 2.0},
        "three": {"compiled": 2.25, "nested": 2.0},
    }
    text = page._beside_compiled(kept_by_chain)
    assert text == "Compiled keeps less than nested for one; as much as nested for two; more than nested for three."
    assert page._beside_compiled({"one": kept_by_chain["two"]}) == "Compiled keeps as much as nested for all."


def test_words_beside_the_times():
    """Methods without times, as without a C++ compiler, are not counted."""
    rows = [
        {
            f"nested / {name}": {"median": ratio, "quantiles": [0.9 * ratio, 1.1 * ratio]}
            for name, ratio in ratios.items()
        }
        for ratios in (
            {"plain": 1.0, "checkpoint": 0.7, "compiled": 3.0},
            {"plain": 1.2, "checkpoint": 0.8},
            {"plain": 1.1, "checkpoint": 0.6, "compiled": 1.05},
        )
    ]
    runs = [page._Timed(("mish: chain", 1, "float32", "1 thread"), ratios) for ratios in rows]
    assert page._within("Chain", runs) == (
        "Chain: nested takes at most 1.15 × plain in 2 of 3; at most 0.75 × checkpoint in 2 of 3;"
        " compiled is faster in 1 of 2, slower in 0, the brackets hold 1 in 1."
    )
