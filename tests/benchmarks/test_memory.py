"""The benchmark of bytes kept: all rows are committed, and measuring again gives the same bytes."""

import pytest
from torch import nn

import kernels
from benchmarks import memory
from benchmarks.rows import RESULTS, read_lines

COMMITTED = {
    (row["what"], row["implementation"], row["mode"]): row["median"]
    for path in RESULTS.glob("*/memory.jsonl")
    for row in read_lines(path)
}


def test_every_row_is_committed() -> None:
    compressed = ("as it is", *memory.COMPRESSED)
    ways = {"kept for backward": (*compressed, *memory.CONVERSIONS), memory.HALVED: compressed}
    models = {(what, way, model) for what, of_what in ways.items() for way in of_what for model in memory.MODELS}
    assert {("kept by an MLP", act, mode) for act in memory.ACTS for mode in memory.MODES} | models == set(COMMITTED)


@pytest.mark.slow
def test_an_mlp_in_eager_and_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor saves both tensors around a GELU unless it may compute it again; ours saves one and a bit."""
    monkeypatch.setattr(memory, "ACTS", {"nn.GELU": nn.GELU, "invact": kernels.GELU})
    rows = memory.mlps()
    assert [row.median for row in rows] == [9, 9, 5, 1, 5.125, 5.125, 5, 1]
    assert all(COMMITTED[row.what, row.implementation, row.mode] == row.median for row in rows)


def test_a_model_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MODELS", ("mlp",))
    hidden = 2 * 4096 * 4096  # elements between the layers
    counts = {row.implementation: row.median for row in memory.models()}
    assert counts == {
        "as it is": 4 * hidden,
        "invact": 2 * hidden + hidden // 8,
        "fewbit, 3 bits": 2 * hidden + 3 * hidden // 8,
        "auto": 2 * hidden + hidden // 8,
        "auto, error 0.05": 2 * hidden + hidden // 8,
        # GELU's input alone, with 4 bytes for each 128 elements; bfloat16 both times.
        **{f"compress, {bits} bits": hidden * bits // 8 + hidden // 32 for bits in (8, 4, 2)},
    }
