"""The rivals compute the same block, save the expected bytes, and are compared with float64."""

import shutil

import pytest
import torch

from actfit import KernelError, saved_bytes
from actfit.coefficients import command
from benchmarks.accuracy import __main__ as accuracy
from benchmarks.baselines import blocks
from benchmarks.baselines.blocks import ACT_LINEAR, CHECKPOINT, EAGER, GEGLU, LATE, LIGER, MLP, SWIGLU, Rivals
from benchmarks.rivals import __main__ as rivals
from benchmarks.rows import read_lines

CPU = torch.device("cpu")
NO_COMPILER = "torch.compile needs a C++ compiler"


def run(module, *arguments):
    return command.run(module.PROG, lambda: module.main(arguments), (KernelError,))


# Bytes kept in units of the input: Linear's input, and tensors of the hidden layer, each of 4 units.
KEPT = {
    (MLP, EAGER): 1 + 4 + 4,
    (MLP, CHECKPOINT): 1,
    (MLP, LATE): 1 + 4,
    (MLP, "invact"): 1 + 4 + 4 / 16,
    (MLP, "fewbit, 3 bits"): 1 + 4 + 3 * 4 / 16,
    (MLP, "fewbit, 1 bit"): 1 + 4 + 4 / 16,
    (MLP, ACT_LINEAR): 1 + 4,
    (SWIGLU, EAGER): 1 + 4 * 4,
    (SWIGLU, CHECKPOINT): 1,
    (SWIGLU, LATE): 1 + 2 * 4,
    (SWIGLU, "exact"): 1 + 3 * 4,
    (SWIGLU, "fewbit, 3 bits"): 1 + 3 * 4 + 3 * 4 / 16,
}


def test_what_each_keeps():
    counts = rivals.counted(Rivals(CPU, compiles=False, kinds=(MLP, SWIGLU)), rivals.origin(CPU))
    assert {(row.what, row.implementation): row.median for row in counts} == KEPT


# torch's own, inside it
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason=NO_COMPILER)
def test_the_flag_lets_torch_compile_keep_less_whoever_is_compiled_besides():
    torch.compiler.reset()
    blocks_of = {block.implementation: block for block in Rivals(CPU, compiles=True, kinds=(MLP,)).blocks(8)}
    made = {name: rivals.made(block, 16, "float32", CPU) for name, block in blocks_of.items() if block.compiled}
    kept = {}
    for name, (runs, x, _) in made.items():  # after all are made, as they are timed
        x = x.detach().requires_grad_()
        saved = saved_bytes(runs, x)
        kept[name] = (saved.total + saved.inputs) / x.nbytes
    bit = 4 / 32
    assert kept == {blocks.COMPILE: 9, blocks.RECOMPUTING: 5, "invact" + blocks.COMPILED: 5 + bit}


@pytest.mark.slow
def test_the_judge_is_of_the_same_weights():
    judged = rivals.accuracy(Rivals(CPU, compiles=False), rivals.origin(CPU))
    worst = {}
    for row in judged:
        key = row.implementation, row.dtype
        worst[key] = max(worst.get(key, 0.0), row.median)
    for (name, dtype), error in worst.items():
        eps = torch.finfo(getattr(torch, dtype)).eps
        if name.startswith("fewbit"):
            assert error > 0.01, "three bits are seen"
            continue
        # Rounding of some tensors on the way, each by half an eps: in all, less than four eps of the whole. In float32
        # y next to the minimum is off by up to four units, and f' with it: 1.5e-6 RMS, where f' is about 1/2.
        formula = 2.0**-18 if name in ("invact", ACT_LINEAR) and dtype == "float32" else 0.0
        assert 0 < error < 4 * eps + formula, (name, dtype)


def test_liger_is_asked_only_on_a_gpu(monkeypatch):
    monkeypatch.setattr(blocks, "find_spec", lambda _: object())
    names = [block.implementation for block in Rivals(CPU, compiles=False).blocks(8)]
    assert LIGER not in names
    gpu = [(block.kind, block.implementation) for block in Rivals(torch.device("cuda"), compiles=False).blocks(8)]
    assert [kind for kind, name in gpu if name == LIGER] == [SWIGLU, GEGLU]


def test_rivals_from_the_command_line(tmp_path, capsys):
    out = tmp_path / "rows"
    assert run(rivals, "--quick", "--device", "cpu", "--out", str(out)) == command.GOOD
    measured = read_lines(out)
    assert {row["unit"] for row in measured} == {"units", "relative error", "s", "ratio of times"}
    assert f"{len(measured)} rows, wrote {out}" in capsys.readouterr().out


def test_accuracy_from_the_command_line(tmp_path):
    out = tmp_path / "rows"
    assert run(accuracy, "--fn", "relu,tanh", "--device", "cpu", "--out", str(out), "--quick") == command.GOOD
    medians = {
        (row["mode"], row["implementation"], row["what"], row["unit"], row["dtype"]): row["median"]
        for row in read_lines(out)
    }
    # ReLU is exact by every method but in few bits, and there, too: its derivative has two values.
    assert medians["relu", "stock", "forward", "misses", "bfloat16"] == 0
    assert medians["relu", "invact", "derivative", "max", "float16"] == 0
    assert medians["relu", "fewbit, 1 bit", "derivative", "max", "float16"] == 0
    # More bits, less error; and exact methods are at the dtype's rounding, half a unit of numbers below 1.
    errors = [medians["tanh", f"fewbit, {bits} bits", "derivative", "rms", "float16"] for bits in (2, 3, 4)]
    assert errors == sorted(errors, reverse=True)
    assert medians["tanh", "forward-ad", "derivative", "max", "float16"] <= torch.finfo(torch.float16).eps / 4 * 1.001
    assert medians["tanh", "forward-ad", "forward", "ulp", "float16"] <= 1


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        (rivals, ("--what", "size"), "what must be of memory, accuracy, speed, got 'size'"),
        (rivals, ("--runs", "0"), "runs must be a whole number from 1"),
        (rivals, ("--out", "/nowhere/rows"), "out must be in a folder that exists"),
        (accuracy, ("--fn", "gelus"), "got 'gelus'"),
        (accuracy, ("--device", "cuda"), "torch sees no GPU"),
    ],
)
def test_wrong_options(module, arguments, said, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(module, *arguments) == command.MISUSED
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]
