"""What `benchmarks.gpu` measures: bytes, batches, models in several ways."""

import json

import pytest
import torch

from benchmarks.gpu import memory as gpu_memory
from benchmarks.gpu import models, training, ways
from benchmarks.gpu.device import CountedBooks
from benchmarks.rows import Row
from coefficients import command

CPU = torch.device("cpu")


@pytest.mark.slow
def test_counted_books_know_what_was_there() -> None:
    weight = torch.ones(8, 8)
    with CountedBooks() as books:
        view = weight.t()
        assert books.grown() == 0
        made = view @ weight
        assert books.grown() == made.nbytes
        del made
        assert (books.grown(), books.most()) == (0, 256)
    with pytest.raises(torch.OutOfMemoryError, match="of 100"), CountedBooks(100):
        torch.ones(8, 8)


def test_every_model_has_blocks_to_checkpoint_and_to_compile() -> None:
    for name, task in training.tasks(CPU, True).items():
        model, _, _ = task.model.built()
        assert list(ways.blocks(model)), name


@pytest.mark.parametrize("name", ["llama", "resnet50"])
def test_blocks_that_are_alike_share_what_is_compiled_of_them(name, monkeypatch) -> None:
    compiled_with = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda block, **options: compiled_with.append(options))
    model, args, kwargs = training.tasks(CPU, True)[name].model.built()
    assert ways.prepare(model, "coded 4 bits", args, kwargs) is not None
    assert len(compiled_with) == len(list(ways.blocks(model))) > 1
    assert all(
        options == compiled_with[0] for options in compiled_with
    )  # Dynamo compares them: another partitioner is another backend
    assert compiled_with[0]["options"]["custom_partitioner_fn"].method.bits == 4
    assert compiled_with[0]["dynamic"] is (None if name == "llama" else False)


@pytest.mark.slow
def test_what_is_kept_is_what_is_accounted() -> None:
    model = ways.Model("llama", CPU, seq=16, changed=ways.TINY["llama"])
    for way in (ways.STOCK, "compress 4 bits"):
        measured = {row.what: row.median for row in gpu_memory._of_way(model, way, {"device": "d"})}
        assert measured["kept, accounted"] == measured["kept, recorded"] == measured["kept, allocated"] > 0
        assert not [what for what in measured if what.startswith("kept by")]


@pytest.mark.slow
def test_the_largest_batch_is_the_largest_that_runs() -> None:
    task = training.tasks(CPU, True)["llama"]
    measured = {row.what: row for row in training.measured(task, ways.STOCK, {"device": "d"}, 1)}
    largest, too_large = measured["largest batch"], measured["batch too large"]
    assert too_large.median == largest.median + 1
    again = training.Training(task, ways.STOCK)
    assert again.runs(int(largest.median), task.counted)
    assert not again.runs(int(too_large.median), task.counted)


@pytest.mark.slow
def test_where_twice_the_batch_does_not_fit_what_is_measured_is_kept(monkeypatch):
    peak, seen = training.Training.peak, []

    def full(self: training.Training, batch: int, limit: float = float("inf")) -> int:
        seen.append(batch)
        if batch > 2:
            raise torch.OutOfMemoryError("no room")
        return peak(self, batch)

    monkeypatch.setattr(training.Training, "peak", full)
    task = training.tasks(CPU, True)["llama"]
    measured = {row.what: row.median for row in training.measured(task, ways.STOCK, {"device": "d"}, 1)}
    assert seen[:3] == [2, 4, 2]
    assert (measured["largest batch"], measured["batch too large"]) == (2, 3)
    assert {"step", "peak"} < set(measured)


@pytest.mark.slow
def test_a_way_that_raises_makes_the_status_and_loses_no_rows(monkeypatch, tmp_path, capsys):
    def broken(*_: object) -> list[Row]:
        raise RuntimeError("no way")

    monkeypatch.setattr(training, "_largest", broken)
    monkeypatch.setattr(training, "QUICK_WAYS", (ways.STOCK,))
    out = tmp_path / "rows.jsonl"
    assert training.main(["--device", "cpu", "--quick", "--models", "llama", "--out", str(out)]) == command.BAD
    assert [json.loads(line)["what"] for line in out.read_text().splitlines()] == ["step", "peak"]
    assert "llama, stock: RuntimeError: no way" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize("name", ["llama-bare", "vit-l"])
def test_whole_models_keep_less_exactly_and_still_less_in_few_bits(name):
    failed: list[str] = []
    groups = models.models([name], models.QUICK_WAYS, CPU, True, failed)
    medians = {rows[0].implementation: {row.what: row.median for row in rows} for rows in groups}
    assert not failed
    eager, exact, coded, checkpoint = (medians[way] for way in models.QUICK_WAYS)
    assert eager["error"] == exact["error"] == checkpoint["error"] == 0 < coded["error"]
    assert coded["kept"] < exact["kept"] < eager["kept"]
    assert {"peak", "first step", "step"} < set(coded)
