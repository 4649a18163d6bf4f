"""`python -m benchmarks.kernels`: rows, bytes and refusals; not its speed."""

import json
from dataclasses import asdict

import pytest
import torch

from actfit.coefficients import command
from benchmarks.clock import CpuClock, rounds
from benchmarks.kernels import __main__ as bench
from benchmarks.kernels import cases
from benchmarks.rows import read

QUICK = ("--device", "cpu", "--quick", "--fn", "gelu", "--dtypes", "bfloat16")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def run(*arguments):
    return command.run(bench.PROG, lambda: bench.main(arguments))


def test_the_command_writes_rows(tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    threads = torch.get_num_threads()
    assert run(*QUICK, "--out", str(out)) == command.GOOD
    assert torch.get_num_threads() == threads
    rows = read(out)
    assert [json.dumps(asdict(line)) for line in rows] == out.read_text("utf-8").splitlines()
    assert list(tmp_path.iterdir()) == [out]
    times = {(line.what, line.implementation, line.mode) for line in rows if line.unit == "s"}
    assert times == {("gelu", name, mode) for name in ("eager", *cases.OURS) for mode in cases.MODES}
    for line in rows:
        low, high = line.quantiles
        assert 0 < low <= line.median <= high
        assert line.runs == bench.QUICK_RUNS["cpu"]
        assert line.versions["torch"] == torch.__version__
        assert line.versions["threads"] == "1"
    assert "gelu, bfloat16, 1024: forward-ad / eager " in capsys.readouterr().out


def test_bytes_moved():
    """x, y; dy, x, dx. Of invact y besides, in place of x, and a bit an element both times."""
    assert [cases.moved("gelu", "eager", "bfloat16", mode) for mode in cases.MODES] == [4, 6, 10]
    assert [cases.moved("gelu", "invact", "bfloat16", mode) for mode in cases.MODES] == [4.125, 6.125, 10.25]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device", "tpu"), "device must be cuda or cpu, got 'tpu'"),
        ((*QUICK, "--sizes", "2^23"), "sizes must be a whole number from 1 to 4194304"),
        ((*QUICK, "--sizes", "8,,9"), "got ''"),
        ((*QUICK, "--runs", "-1"), "runs must be a whole number from 1 to 10000, got '-1'"),
        (("--device", "cpu", "--dtypes", "float64"), "dtypes must be of bfloat16, float16, float32, got 'float64'"),
        (("--device", "cpu", "--fn", "relu"), "fn must be gelu or silu, got 'relu'"),
        ((*QUICK, "--methods", "fewbit-5"), "methods must be of"),
        ((*QUICK, "--out", "/nowhere/rows"), "out must be in a folder that exists"),
    ],
)
def test_wrong_options(arguments, said, capsys):
    assert run(*arguments) == command.MISUSED
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]


def test_rounds_let_all_take_turns():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    times = rounds(CpuClock(), calls, 40)
    taken = ["".join(order[i : i + 3]) for i in range(0, len(order), 3)]
    assert len(taken) == 41  # the first is not timed
    assert set(taken) == {"abc", "acb", "bac", "bca", "cab", "cba"}  # each has had each before it
    assert all(len(seconds) == 40 for seconds in times.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu(tmp_path):
    out = tmp_path / "rows.jsonl"
    assert run("--quick", "--fn", "gelu", "--dtypes", "bfloat16", "--sizes", "2^16", "--out", str(out)) == command.GOOD
    shares = [row.median for row in read(out) if row.unit == "ratio of GB/s"]
    assert len(shares) == len(cases.METHODS) * len(cases.MODES)
    assert min(shares) > 0
