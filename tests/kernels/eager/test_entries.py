"""compress where a model is entered in another way than by forward in eager mode, and what it says where it cannot."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from kernels import KernelError, convert, saved_bytes
from kernels.eager import forward
from tests.kernels.eager.nets import Net, error, gradients

WIDTH = 256


def tower() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, WIDTH), nn.GELU(), nn.Linear(WIDTH, 64))


class Towers(nn.Module):
    """Two towers, of which other methods call one."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.texts = tower(), nn.ModuleList([tower()])

    def encode_image(self, x: Tensor) -> Tensor:
        return self.image(x)

    def encode_text(self, x: Tensor) -> Tensor:
        return checkpoint(self.texts[0], x, use_reentrant=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encode_image(x) @ self.encode_text(x).T


CODE = 256 * WIDTH * 4.25 / 8  # bytes of 4 bits and of minima and steps
HIDDEN = 256 * WIDTH * 4


def test_other_methods() -> None:
    model, x = Towers(), torch.randn(256, 64)
    exact = gradients(model, x, call=model.encode_image)[1]
    model.zero_grad()
    report = convert(model, "compress", bits=4, exclude="texts.0")
    assert saved_bytes(model.encode_image, x).total == CODE
    assert saved_bytes(model.texts[0], x).total == 2 * HIDDEN
    got = gradients(model, x, call=model.encode_image)[1]
    assert 0 < error([g for g in got if g is not None], [g for g in exact if g is not None]) < 0.1
    report.revert()
    assert saved_bytes(model.encode_image, x).total == 2 * HIDDEN


def test_a_checkpoint_in_another_method_runs_twice_alike() -> None:
    model, x = Towers(), torch.randn(256, 64, requires_grad=True)
    exact = gradients(model, x, call=model.encode_text)[1]
    model.zero_grad()
    convert(model, "compress", bits=4)
    got = gradients(model, x, call=model.encode_text)[1]
    assert error([g for g in got if g is not None], [g for g in exact if g is not None]) == 0


@pytest.mark.parametrize("first", ["convert", "compile"])
def test_compiled_code_says_once_what_to_write(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_warned", [])
    torch.compiler.reset()
    model = nn.Sequential(tower(), tower())
    if first == "convert":
        convert(model, "compress")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    if first == "compile":
        convert(compiled, "compress")
    with pytest.warns(UserWarning, match=r"write torch.compile\(model, options=kernels.compression.options"):
        compiled(torch.randn(64, 64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.randn(5, 64))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_a_trace_is_stock() -> None:
    model, x = tower(), torch.randn(256, 64)
    convert(model, "compress")
    traced = torch.jit.trace(model, x)  # it checks itself by a second trace
    torch.testing.assert_close(traced(x), model(x), rtol=0, atol=0)


def jagged() -> Tensor:
    return torch.nested.nested_tensor([torch.randn(100, 64), torch.randn(60, 64)], layout=torch.jagged)


def test_nested_tensors_stay_whole_with_the_reason() -> None:
    model = tower()
    report = convert(model, "compress", inputs=jagged())
    assert "- gelu (1 tensors): 160.0 KiB, a nested tensor, which has no codes" in str(report)
    report.revert()
    with pytest.raises(KernelError, match="inputs must be dense tensors for a budget, got a nested tensor"):
        convert(model, inputs=jagged(), budget=0.5)


def test_complex_numbers_stay_whole_with_the_reason() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        z = torch.fft.rfft(net[0](x))
        return (z * z.roll(1)).real

    report = convert(Net(forward, nn.Linear(64, WIDTH)), "compress", inputs=torch.randn(256, 64))
    assert {whole.reason for whole in report.whole} == {"complex numbers"}


class Odd(nn.Module):
    """A model that calls a function with its layers."""

    def __init__(self, call: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.call, self.layers = call, tower()

    def forward(self, x: Tensor) -> Any:
        return self.call(self.layers, x)


def without_hooks(layers: nn.Module, x: Tensor) -> Tensor:
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return layers(x)


@pytest.mark.parametrize("options", [{"method": "compress"}, {}, {"budget": 0.5}], ids=str)
def test_a_model_that_disables_hooks(options: dict[str, Any]) -> None:
    with pytest.raises(KernelError, match=r"model must allow saved-tensor hooks.*RuntimeError: not here"):
        convert(Odd(without_hooks), inputs=torch.randn(256, 64), **options)


def test_a_checkpoint_in_debug_mode() -> None:
    """Its second run by torch fails, too."""
    model = Odd(lambda layers, x: layers(checkpoint(layers, x, use_reentrant=False, debug=True)))
    with pytest.raises(KernelError, match="got a checkpoint in debug mode, which runs once; leave out debug=True"):
        convert(model, inputs=torch.randn(256, 64), budget=0.95)


def test_frozen_weights() -> None:
    model, x = tower().requires_grad_(False), torch.randn(256, 64)
    assert "nothing is kept for backward" in str(convert(model, "compress", inputs=x))
    with pytest.raises(KernelError, match="got 4 that are all frozen; call requires_grad_"):
        convert(tower().requires_grad_(False), inputs=x, budget=0.5)


def test_a_column_without_numbers_is_left_out() -> None:
    assert "error of f'" not in str(convert(tower(), "compress", inputs=torch.randn(256, 64)))
    assert "error of f'" in str(convert(tower(), "fewbit", inputs=torch.randn(256, 64)))


class Pair(nn.Module):
    """It takes two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, WIDTH)

    def forward(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        return F.gelu(self.linear(a) + (0 if b is None else self.linear(b)))


class Listed(Pair):
    """It takes a list of them, or two."""

    def forward(self, a: Any, b: Tensor | None = None) -> Tensor:
        return F.gelu(sum(self.linear(x) for x in a))


def test_saved_bytes_takes_what_convert_takes() -> None:
    x = torch.randn(256, 64)
    expected = convert(Pair(), "compress", inputs=(x, x)).before.total
    assert saved_bytes(Pair(), (x, x)).total == saved_bytes(Pair(), x, x).total == expected == HIDDEN
    assert saved_bytes(Listed(), [x, x]).total == HIDDEN
