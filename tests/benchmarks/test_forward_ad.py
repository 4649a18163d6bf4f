"""`python -m benchmarks.forward_ad`: its bytes, its rows, its refusals and its page; never how fast anything is."""

import json
from types import SimpleNamespace

import pytest
import torch

from benchmarks.forward_ad import __main__ as bench
from benchmarks.forward_ad import bytes as kept
from benchmarks.forward_ad import cases, page
from benchmarks.forward_ad import times as timed
from benchmarks.rows import RESULTS
from coefficients import command

pytestmark = pytest.mark.usefixtures("one_thread")
LINEAR, CONVOLUTION = kept.WITHIN
WHERE = {"device": "d", "versions": {}, "revision": "r"}
COMMITTED = {
    (row["what"], row["implementation"], row["mode"], row["size"].get("n"), row["unit"]): row["median"]
    for path in RESULTS.glob("*/forward-ad-*.jsonl")
    for row in map(json.loads, path.read_text("utf-8").splitlines())
}


def run(*arguments):
    return command.run(bench.PROG, lambda: bench.main(arguments))


def medians(rows):
    return {(row.what, row.implementation, row.mode, row.size.get("n"), row.unit): row.median for row in rows}


def test_every_row_of_bytes_is_committed():
    names = {key[:3] for key in COMMITTED if key[-1] in ("units", "B") and key[2] in cases.METHODS}
    chains = {
        (f"kept by {block}", name, how) for block in kept.WITHIN for name in cases.CHAINS for how in cases.METHODS
    }
    assert names == chains | {("kept by a model", name, how) for name in kept.MODELS for how in cases.METHODS}


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
    """A BatchNorm keeps its input, mean and deviation besides; compiled, its output is computed again from those."""
    rows = kept.chains([name], WHERE)
    found = medians(rows)
    assert {key: COMMITTED[key] for key in found} == found
    assert tuple(row.median for row in rows if row.what == f"kept by {LINEAR}") == units
    statistics = 2 * cases.CHANNELS / cases.ELEMENTS
    besides = [1, 1, 1, 0 if name != "relu" else 1]
    assert [row.median for row in rows if row.what == f"kept by {CONVOLUTION}"] == [
        one + more + statistics for one, more in zip(units, besides, strict=True)
    ]


@pytest.mark.parametrize("method", ["plain", "nested", "checkpoint"])
@pytest.mark.parametrize("name", ["ResNet, mish by log", "GPT2, gelu_new", "BERT, gelu_new"])
def test_models_in_eager(name, method, monkeypatch):
    """A unit is what an activation gives. The formulas keep five of them, the derivative and the checkpoint two."""
    monkeypatch.setattr(kept, "METHODS", (method,))
    ((key, found),) = medians(kept.models([name], {**WHERE})).items()
    assert COMMITTED[key] == found
    plain = COMMITTED[(*key[:2], "plain", *key[3:])]
    unit, times = (16 * 32 * 32 * 32, 9) if name.startswith("ResNet") else (8 * 128 * 512, 4)
    assert found == plain - (0 if method == "plain" else 3 * 4 * unit * times)


@pytest.mark.slow
def test_a_compiled_model(monkeypatch):
    """Counted for real, and not by its name: what is checkpointed and wrapped is torn down for it."""
    monkeypatch.setattr(kept, "METHODS", ("plain", "nested", "compiled"))
    monkeypatch.setitem(kept.MODELS, "small", lambda: kept.resnet("mish", batch=2))
    plain, nested, compiled = (row.median for row in kept.models(["small"], WHERE))
    assert compiled < nested == plain - 9 * 4 * 2 * 32 * 32 * 32


def test_rows_of_times(tmp_path, monkeypatch):
    """A tiny run of the real thing, without the compiler, which takes seconds."""
    monkeypatch.setattr(bench, "can_compile", lambda device: False)
    out = tmp_path / "rows.jsonl"
    assert run("--device", "cpu", "--quick", "--what", "times", "-o", str(out)) == command.GOOD
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert {row["mode"] for row in rows} == {"1 thread"}
    for what in {row["what"] for row in rows}:
        found = {row["implementation"]: row for row in rows if row["what"] == what}
        assert list(found) == ["plain", "nested", "checkpoint", "nested / plain", "nested / checkpoint"]
        for rival in ("plain", "checkpoint"):
            ratio = found["nested"]["median"] / found[rival]["median"]
            assert found[f"nested / {rival}"]["median"] == pytest.approx(ratio)
        assert {row["runs"] for row in found.values()} == {bench.QUICK_REPEATS}
        assert all(row["versions"]["threads"] == "1" for row in found.values())


@pytest.mark.parametrize("method", ["plain", "nested", "checkpoint"])
def test_methods_compute_the_same(method):
    """What is timed is the same mathematics, and the one of ours does keep less."""
    x = torch.randn(cases.shape(LINEAR, 1 << 16), requires_grad=True)
    torch.manual_seed(0)
    plain = cases.run_by("plain", LINEAR, "newgelu")
    torch.manual_seed(0)
    other = cases.run_by(method, LINEAR, "newgelu")
    (wanted,), (got,) = (torch.autograd.grad(one(x).square().sum(), x) for one in (plain, other))
    torch.testing.assert_close(got, wanted)


def test_the_device_is_asked_for_bytes(monkeypatch):
    """There is no GPU here, so its allocator is one that has given out 7 bytes before, 12 after, and 20 at most."""
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
    one = timed.Run("chain", "mish", "float32", 1 << 16, torch.device("cpu"))
    assert [(row.mode, row.unit, row.median) for row in timed.allocated(one, ["nested"], WHERE)] == [
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
    found = {
        "one": {"compiled": 1.0, "nested": 2.0},
        "two": {"compiled": 2.0, "nested": 2.0},
        "three": {"compiled": 2.25, "nested": 2.0},
    }
    text = page._beside_compiled(found)
    assert text == "Compiled keeps less than nested for one; as much as nested for two; more than nested for three."
    assert page._beside_compiled({"one": found["two"]}) == "Compiled keeps as much as nested for all."


def test_words_beside_the_times():
    """Those that get no time, as without a C++ compiler, are not counted."""
    rows = [
        {f"nested / {name}": {"median": ratio, "quantiles": [0.9 * ratio, 1.1 * ratio]} for name, ratio in one.items()}
        for one in (
            {"plain": 1.0, "checkpoint": 0.7, "compiled": 3.0},
            {"plain": 1.2, "checkpoint": 0.8},
            {"plain": 1.1, "checkpoint": 0.6, "compiled": 1.05},
        )
    ]
    runs = [page._Timed(("mish: chain", 1, "float32", "1 thread"), one) for one in rows]
    assert page._within("Chain", runs) == (
        "Chain: nested takes at most 1.15 × plain in 2 of 3; at most 0.75 × checkpoint in 2 of 3;"
        " compiled is faster in 1 of 2, slower in 0, the brackets hold 1 in 1."
    )
