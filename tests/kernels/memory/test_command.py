"""`actfit memory`, and the numbers of the papers that it must give."""

import json
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import actfit
from actfit import KernelError, saved_bytes
from actfit.coefficients import command
from actfit.kernels.memory import Saved, zoo
from actfit.kernels.memory.__main__ import main

TRANSFORMERS = find_spec("transformers") is not None


def measured(name: str, accounting: str = "cuda", ours: bool = False, **options: Any) -> Saved:
    with FakeTensorMode():
        model, args, kwargs = zoo.build(name, **options)
    for parent in [*model.modules()] if ours else []:
        for place, child in parent.named_children():
            if type(child).__name__ in ("GELU", "GELUActivation"):
                setattr(parent, place, actfit.nn.GELU())
    return saved_bytes(model, *args, accounting=accounting, fake=True, **kwargs)


# The memory blog (bfloat16, batch 2, 4096 positions, width 1024), published; inputs counted.
@pytest.mark.parametrize(
    ("model", "act", "published"),
    [("mlp", "relu", 83886080), ("mlp", "gelu", 150994944), ("block", "relu", 201523216), ("block", "gelu", 268632080)],
)
def test_the_memory_blogs_bytes(model: str, act: str, published: int) -> None:
    """To the byte, but for one more number of FlashAttention's random state, which PyTorch has kept since.

    On the CPU the block's without 16 bytes of CUDA's seed, and with statistics in bfloat16.
    """
    saved = measured(model, act=act)
    assert saved.total + saved.inputs == published + (8 if model == "block" else 0)
    saved = measured(model, act=act, accounting="as-run")
    assert saved.total + saved.inputs == published - (65536 + 16 if model == "block" else 0)
    assert saved.unseen == 0


# What InvAct saves of stored activations, in percent. ViT has no dropout to count as CUDA does.
@pytest.mark.slow
@pytest.mark.skipif(not TRANSFORMERS, reason="transformers is not installed")
@pytest.mark.parametrize(
    ("model", "accounting", "percent"),
    [("bert", "cuda", 23.19), ("ast", "cuda", 24.06), ("vit", "as-run", 23.94), ("clip", "cuda", 23.99)],
)
def test_what_invact_saves(model: str, accounting: str, percent: float) -> None:
    act = "gelu" if model == "clip" else None
    stock, ours = (measured(model, accounting, ours, act=act) for ours in (False, True))
    assert round(100 * (1 - ours.total / stock.total), 2) == percent
    assert stock.unseen == ours.unseen == 0


# Bytes that the activations alone keep (FewBit, its tables on RoBERTa, GPT2 and CNNs), in MiB, to the tenth.
@pytest.mark.slow
@pytest.mark.skipif(not TRANSFORMERS, reason="transformers is not installed")
@pytest.mark.parametrize(
    ("model", "options", "mebibytes"),
    [
        ("roberta", {"seq": 256}, 36.0),
        ("gpt2", {"seq": 256}, 144.0),
        ("resnet18", {"image_size": 256}, 11.5),
        ("resnet50", {"image_size": 256}, 47.9),
        ("vgg11", {"image_size": 256}, 37.0),
    ],
)
def test_the_activations_own_share(model: str, options: dict, mebibytes: float) -> None:
    saved = measured(model, **options)
    acts = ("intermediate_act_fn", "mlp.act")  # of transformers
    kept = [
        tensor.bytes
        for tensor in saved.tensors
        if any(saver.module.endswith(acts) or saver.operation == "relu" for saver in tensor.by)
    ]
    # 47.875 is printed rounded up.
    assert sum(kept) / 2**20 == pytest.approx(mebibytes, abs=0.05 + 1e-9)


# The command.


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "block", "--rows", "2", "--peak"]) == command.GOOD
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "block (Block), bfloat16, input 2×4096×1024; as CUDA keeps it"
    assert [line.split(" | ")[0] for line in lines[4:8]] == ["| as it is", "| exact", "| invact", "| 4 bits"]
    assert lines[4] == "| as it is | 240.2 MiB |  | 344.2 MiB, 1.00× |"
    # Kept: the input of GELU, 64 MiB; query, key and value, 48; attention's output, 16; what goes into the second norm,
    # 16; 64 KiB of attention's logarithms, and random numbers.
    assert lines[5].startswith("| exact | 144.1 MiB | 40.02% |")
    assert lines[-1].startswith("kept besides: inputs 16.0 MiB; parameters ")
    assert sum("more" in line for line in lines) == 1


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    line = "--model mlp --policy fewbit-1 --policy exact --bits 2 --bits 8 --batch 1 --seq 8 --dtype float32"
    assert main([*line.split(), "--accounting", "as-run", "--format", "json"]) == command.GOOD
    document = json.loads(capsys.readouterr().out)
    hidden = 8 * 4096
    assert {entry["way"]: entry["total"] for entry in document["results"]} == {
        "as it is": 2 * hidden * 4,
        "fewbit-1": hidden * 4 + hidden // 8,
        "exact": hidden * 4,
        # And half a bit for the range of each group of 64.
        "2 bits": hidden * 2.5 // 8,
        "8 bits": hidden * 8.5 // 8,
    }
    assert document["inputs"] == {"input0": [1, 8, 1024]}
    assert document["parameters"] == 4 * (2 * 4 * 1024**2 + 4096 + 1024)
    assert document["results"][0]["groups"][0]["module"] == "act"


def mine() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)), torch.randn(4, 8)


def broken() -> tuple[nn.Module, torch.Tensor]:
    return nn.Linear(8, 32), torch.randn(4, 9)


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def branching() -> tuple[nn.Module, torch.Tensor]:
    return Branching(), torch.randn(4, 9)


@pytest.mark.slow
def test_llama_takes_seconds_and_no_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """7 billion parameters, whose layers share their graphs."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    assert main(["--model", "llama", "--policy", "exact", "--peak"]) == command.GOOD
    said, complained = capsys.readouterr()
    assert complained == ""
    assert "| as it is | 22.9 GiB |  | 23.7 GiB, 1.00× |" in said
    assert "| exact | 11.5 GiB | 49.69% | 12.3 GiB, 0.52× |" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model brt", "model must be one of bert, "),
        ("--model mlp --policy invakt", "policy must be one of fewbit-1, "),
        ("--model mlp --bits 3 --bits 1", "bits must be a whole number from 2 to 8, got '1'"),
        (f"--model mlp --seq {'9' * 5000}", "seq must be a whole number from 1 to 1073741824, got '999"),
        ("--model mlp --batch 0", "batch must be a whole number from 1 to 1073741824, got '0'"),
        ("--model mlp --dtype int8", "dtype must be one of float32, "),
        (
            "--model mlp --dtype bf16",
            "dtype must be one of float32, bfloat16, float16, float64, got 'bf16'; did you mean bfloat16",
        ),
        ("--model mlp --accounting gpu", "accounting must be one of as-run, cuda, got 'gpu'"),
        ("--model mlp --attention flash", "attention must be one of eager, sdpa, got 'flash'"),
        (f"--model mlp --batch {2**30} --seq {2**30}", "mlp must run with its inputs on fake tensors, as nothing is"),
        ("--model vgg11 --seq 5", "seq must be left out for vgg11"),
        ("--model mlp --plot /no/such/folder/x.png", "--plot must be in a folder that exists"),
        ("--model mlp --plot x.bogus", "plot must be a file that ends in one of "),
        ("--model tests.kernels.memory.test_command:broken", "model must run on fake tensors for fake=True"),
        ("--model tests.kernels.memory.test_command:branching", "model must run on fake tensors for fake=True"),
        ("--model no.such:thing", "model must be a function that can be imported"),
    ],
)
def test_bad_input_is_one_line(words: str, message: str) -> None:
    with pytest.raises((KernelError, command.Misuse)) as caught:
        main(words.split())
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
