"""`actfit memory --gpu`: bytes beside those of peak_bytes and of an H100, the largest batch, what it says."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from actfit import KernelError, compress, peak_bytes
from actfit.coefficients import command
from actfit.kernels import private
from actfit.kernels.memory import gpu, zoo
from actfit.kernels.memory.__main__ import main
from actfit.kernels.memory.accounting import cuda_like
from actfit.kernels.memory.card import Before, Card, Row
from actfit.kernels.memory.gpu import before_step
from actfit.kernels.memory.step import Living, run_step
from actfit.kernels.planning.batches import Call
from actfit.kernels.planning.blocks import recomputing, repeated_blocks

HERE = "tests.kernels.memory.test_gpu"
ROWS = Path(__file__).resolve().parents[3] / "benchmarks/results/nvidia-h100-80gb-hbm3/gpu-models.jsonl"
BATCH, WIDTH, BLOCKS = 256, 64, 4
WEIGHTS = BLOCKS * (WIDTH * 4 * WIDTH * 2 + 5 * WIDTH) * 4


def net() -> nn.Sequential:
    def block() -> nn.Sequential:
        return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    return nn.Sequential(*(block() for _ in range(BLOCKS)))


def mine() -> tuple[nn.Module, torch.Tensor]:
    return net(), torch.randn(BATCH, WIDTH)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.net(x) * scale


def unlike() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Two(), (torch.randn(BATCH, WIDTH), torch.randn(1))


def answered(capsys: pytest.CaptureFixture[str], words: str) -> dict[str, Any]:
    assert main([*words.split(), "--format", "json"]) == command.GOOD
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def ways(model: nn.Module) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    return {
        "as it is": nullcontext,
        "exact": partial(compressed, model),
        "8 bits": partial(compressed, model, bits=8),
        "4 bits": partial(compressed, model, bits=4),
        "checkpoint": partial(recomputing, model, repeated_blocks(model)),
    }


@contextmanager
def compressed(model: nn.Module, **how: Any) -> Iterator[None]:
    handle = compress(model, **how)
    yield
    handle.remove()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mebibytes", "optimizer", "samples", "measured"),
    [
        (3, "sgd", BATCH, ("as it is", "exact", "4 bits", "checkpoint")),
        (30, "sgd", BATCH, ("4 bits",)),
        (5, "adamw", 2, ("as it is", "8 bits")),
    ],
)
def test_the_largest_batch_fits_and_one_more_does_not(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    mebibytes: int,
    optimizer: str,
    samples: int,
    measured: tuple[str, ...],
) -> None:
    """By other batches than the two that the line goes through; below the given one; and where AdamW's step takes more
    than two samples do, so that the peak of both is the same."""
    monkeypatch.setattr(f"{HERE}.BATCH", samples)
    gpu = mebibytes * 2**20
    words = f"--model {HERE}:mine --gpu {gpu} --optimizer {optimizer}"
    rows = {row["way"]: row for row in answered(capsys, words)["results"]}
    model = net()
    before = before_step(model, optimizer)

    def peak(batch: int) -> int:
        x = torch.randn(batch, WIDTH)
        return before.held + max(x.nbytes + peak_bytes(model, x, accounting="cuda"), before.passing)

    assert (peak(samples) == peak(2 * samples)) == (optimizer == "adamw")

    for way in measured:
        with ways(model)[way]():
            assert rows[way]["peak"] == peak(samples)
            assert rows[way]["fits"] == (peak(samples) <= gpu)
            assert peak(rows[way]["largest"]) <= gpu < peak(rows[way]["largest"] + 1)
    assert (rows["as it is"]["largest"] < samples) == (mebibytes == 3)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "adamw-fused", "sgd", "none"])
def test_what_an_optimizer_takes(optimizer: str) -> None:
    model, state = net(), 0
    before = before_step(model, optimizer)
    if "adam" in optimizer:
        real = torch.optim.AdamW(model.parameters())
        model(torch.randn(2, WIDTH)).sum().backward()
        real.step()
        state = sum(x.nbytes for one in real.state.values() for x in one.values())
        assert state == 2 * WEIGHTS + 4 * 4 * BLOCKS  # and a number of steps for each tensor
    assert before[:3] == (WEIGHTS, WEIGHTS, state)
    # PyTorch's documentation: foreach takes about as much as the parameters more than a loop, by its intermediates.
    assert (before.passing >= WEIGHTS) if optimizer in ("adamw", "adam") else not before.passing


def test_frozen_weights_have_no_gradients() -> None:
    model = net()
    model[:2].requires_grad_(False)
    assert before_step(model, "none") == (WEIGHTS, WEIGHTS // 2, 0, 0)
    assert before_step(model.requires_grad_(False), "adamw") == (WEIGHTS, 0, 0, 0)


@pytest.mark.slow
def test_a_plan_of_an_own_model_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    document = answered(capsys, f"--model {HERE}:mine --gpu 3MiB --optimizer none")
    rows = {row["way"]: row for row in document["results"]}
    assert not rows["as it is"]["fits"]
    assert rows["plan"]["fits"]
    assert rows["plan"]["gradient"] == "exact"
    assert rows["plan"]["largest"] >= max(BATCH, rows["exact"]["largest"], rows["checkpoint"]["largest"])


@pytest.mark.slow
def test_inputs_without_a_common_length_have_no_largest_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"--model {HERE}:unlike --gpu 1GiB".split()) == command.GOOD
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{HERE}:unlike (Two), float32, input 256×64, 1"
    assert lines[1].startswith("GPU of 1.0 GiB; there before a step: weights 517.0 KiB, gradients ")
    assert all(line.split(" | ")[3] == "–" for line in lines if line.startswith("| ") and " | yes" in line)
    assert "It fits as it is." in lines


def row(way: str, peak: int, time: float, gradient: str = "exact", largest: int = 0) -> Row:
    return Row(way, peak, largest, time, gradient)


@pytest.mark.parametrize(
    ("gpu", "before", "rows", "verdict"),
    [
        (20, (5, 5, 10, 0), [], "No batch fits: 20 B are there before a step. Train fewer weights, as LoRA does."),
        (30, (5, 5, 10, 15), [], "No batch fits: the optimizer's step itself takes 15 B, but nothing with AdamW(fused"),
        (40, (5, 5, 10, 0), [row("as it is", 41, 1.0)], "This batch does not fit. Shorten the samples."),
        (40, (5, 5, 10, 0), [row("as it is", 41, 1.0, largest=1)], "This batch does not fit. A smaller one does."),
        (41, (5, 5, 10, 0), [row("as it is", 41, 1.0)], "It fits as it is."),
        (
            40 * 2**20,
            (5 * 2**20, 5 * 2**20, 10 * 2**20, 0),
            [row("as it is", 41 * 2**20, 1.0), row("8 bits", 30, 1.17, "approximate"), row("checkpoint", 30, 1.3)],
            "It does not fit as it is. Of what fits, 8 bits is fastest, and checkpoint of those with exact gradients."
            ' A plan for your training: compress(model, fit="20MiB", inputs=batch).',
        ),
    ],
)
def test_the_verdict(gpu: int, before: tuple[int, ...], rows: list[Row], verdict: str) -> None:
    card = Card(gpu, "adamw", Before(*before), tuple(rows), ())
    assert card.verdict.startswith(verdict)
    assert card.verdict in str(card)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"), [("llama", ("as it is", "exact", "4 bits")), ("vit-l", ("as it is", "8 bits", "checkpoint"))]
)
def test_peaks_of_an_h100(name: str, told: tuple[str, ...]) -> None:
    """What the allocator of an H100 counted, without gradients before a step; docs/how-to/gpu.md says it."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    from benchmarks.gpu.models import LLAMA, VIT

    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    peaks = {row["implementation"]: row["median"] for row in rows if row["mode"] == name and row["what"] == "peak"}
    options: Any = {"batch": 4, "seq": 2048, **LLAMA} if name == "llama" else {"batch": 128, **VIT}
    with private.FakeTensorMode():
        model, args, kwargs = zoo.build(name.removesuffix("-l"), dtype=torch.bfloat16, **options)
        kwargs["labels"] = kwargs["input_ids"] if name == "llama" else torch.zeros(128, dtype=torch.long)
    spoken = {"as it is": "eager", "checkpoint": "checkpoint"}
    decoded = 4 * 2048 * 8192 * 2 if name == "llama" else 0  # by 4 bits, one tensor that the GPU does not hold
    for way in told:
        measured, living = peaks[spoken.get(way, f"compress {way}")], Living()
        with ways(model)[way]():
            run_step(living, model, args, kwargs, within=cuda_like, prepare=lambda copied: copied.zero_grad())
        # Llama's agree to 20 KiB. On ViT-L 132 of 19347 MiB are in no tensor: workspaces, as of its convolution.
        assert 0.99 * measured <= living.peak <= 1.01 * measured + decoded * (way == "4 bits")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--gpu 24", "gpu must be the bytes of its memory, as 24GiB, got '24'"),
        ("--gpu h100", "gpu must be the bytes of its memory, as 24GiB, got 'h100'"),
        ("--gpu 0.5", "gpu must be the bytes of its memory, as 24GiB, got '0.5'"),
        ("--gpu 24GiB --optimizer lion", "optimizer must be one of adamw, adam, sgd, adamw-fused, none, got 'lion'"),
        (
            "--gpu 24GiB --model my/models.py:net",
            "model must be module:function, as my.models:net, got 'my/models.py:net'",
        ),
        (
            "--gpu 24GiB --budget 0.5",
            "budget must be left out with --gpu, which shows the usual ways; ask for it witho",
        ),
        ("--gpu 24GiB --bits 4", "bits must be left out with --gpu"),
        ("--gpu 24GiB --accounting cuda", "accounting must be left out with --gpu"),
    ],
)
def test_bad_input_is_one_line(words: str, message: str) -> None:
    with pytest.raises((KernelError, command.Misuse)) as caught:
        main(["--model", "mlp", *words.split()])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("few", [lambda n: 600 - 50 * n, lambda n: 10 * n], ids=["falls", "bends"])
def test_the_largest_batch_where_small_tensors_have_no_codes(
    few: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peak of the first two batches says little of larger ones: 4 bytes of the input, and 100, a sample."""
    monkeypatch.setattr(gpu, "peak_bytes", lambda _, x, **__: few(len(x)) if len(x) <= 4 else 100 * len(x))
    peak, largest = gpu._peaks(nn.Identity(), Call((torch.zeros(2, 1),), {}), Before(0, 0, 0, 0), 10_000)
    assert (peak, largest) == (few(2) + 8, 10_000 // 104)
