"""Who keeps what, as tables, JSON and pictures."""

import json
import os
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from actfit import KernelError
from actfit.kernels.memory import Group, SavedTensor, Saver, saved_bytes
from actfit.kernels.memory.saved import size
from tests.kernels.memory.models import TENSOR, X, mlp


def test_who_keeps_what() -> None:
    net = mlp(nn.GELU(), nn.LayerNorm(40))
    assert saved_bytes(net, X).groups() == [
        Group("2", "layer_norm", TENSOR + 2 * 33 * 4, 3),
        Group("1", "gelu", TENSOR, 1),
        Group("3", "linear", TENSOR, 1),
    ]


def test_a_tensor_that_two_keep_names_both() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    (kept,) = saved_bytes(net, torch.randn(4, 8)).tensors
    assert kept == SavedTensor(4 * 8 * 4, (4, 8), "float32", (Saver("1", "relu"), Saver("2", "linear")))


def test_like_modules_are_grouped() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(8, 8), "act": nn.GELU()}) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.h:
                x = layer["act"](layer["up"](x))
            return x

    x = torch.randn(4, 8)
    assert saved_bytes(Net(), x).groups() == [
        Group("h.*.act", "gelu", 3 * x.nbytes, 3),
        Group("h.*.up", "linear", 2 * x.nbytes, 2),
    ]


def test_the_result_as_table_and_json() -> None:
    saved = saved_bytes(mlp(nn.GELU()), X)
    table = str(saved)
    assert "| 1 | gelu | 1 | 5.2 KiB | 50.0% |" in table
    assert "| all |  | 2 | 10.3 KiB | 100.0% |" in table
    assert table.endswith("kept besides: inputs 3.1 KiB; parameters 2.5 KiB")
    assert saved.total == 2 * TENSOR
    document = json.loads(saved.to_json())
    assert document["total"] == sum(tensor["bytes"] for tensor in document["tensors"]) == saved.total
    assert document["groups"][0] == {"module": "1", "operation": "gelu", "bytes": TENSOR, "tensors": 1}


@pytest.mark.parametrize(
    ("count", "text", "enough"),
    [(1023, "1023 B", "1023 B"), (1025, "1.0 KiB", "1.1 KiB"), (2**20 - 1, "1.0 MiB", "1.0 MiB")],
)
def test_sizes_for_readers(count: float, text: str, enough: str) -> None:
    assert (size(count), size(count, up=True)) == (text, enough)


@pytest.mark.parametrize(("ending", "head"), [("svg", b"<?xml"), ("PDF", b"%PDF")])
def test_a_picture_has_the_same_bytes_each_time(ending: str, head: bytes, tmp_path: Any) -> None:
    paths = tmp_path / f"kept.{ending}", tmp_path / f"again.{ending}"
    with mock.patch.dict("os.environ"):
        for path, epoch in zip(paths, ("0", "100000000"), strict=True):
            os.environ["SOURCE_DATE_EPOCH"] = epoch  # the date that matplotlib would write
            saved_bytes(mlp(nn.GELU()), X).plot(path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert first.startswith(head)
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_a_picture_that_cannot_be(tmp_path: Any) -> None:
    saved = saved_bytes(mlp(nn.GELU()), X)
    for wrong in ("kept.jpg", "kept", ".svg"):
        with pytest.raises(KernelError, match=r"plot must be a file that ends in one of \.png, \.svg, \.pdf"):
            saved.plot(tmp_path / wrong)
    with pytest.raises(OSError, match=r"kept\.svg") as caught:
        saved.plot(tmp_path / "nowhere" / "kept.svg")
    assert caught.value.filename == str(tmp_path / "nowhere" / "kept.svg")
