"""The benchmark of bytes kept: all rows are committed, and measuring again gives the same bytes."""

import pytest

from benchmarks import memory
from benchmarks.rows import RESULTS, read_lines

COMMITTED = {
    (row["what"], row["implementation"], row["mode"]): row["median"]
    for path in RESULTS.glob("*/memory.jsonl")
    for row in read_lines(path)
}


def test_every_row_is_committed() -> None:
    models = {(memory.KEPT, way, model) for way in (memory.STOCK, *memory.WAYS) for model in memory.MODELS}
    assert models == set(COMMITTED)


@pytest.mark.slow
def test_a_model_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MODELS", ("mlp",))
    hidden = 2 * 4096 * 4096  # elements between the layers
    counts = {row.implementation: row.median for row in memory.models()}
    assert counts == {
        memory.STOCK: 4 * hidden,
        "exact": 2 * hidden,  # GELU's input alone, in bfloat16
        **{f"{bits} bits": hidden * bits // 8 + hidden // 16 for bits in (8, 4, 2)},  # 4 bytes for each 64 elements
        "invact": 2 * hidden + hidden // 8,
        "fewbit-3": 2 * hidden + 3 * hidden // 8,
    }
