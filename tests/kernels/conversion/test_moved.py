"""A converted model moved, copied and run in threads; and nothing is patched."""

import contextlib
import copy
import importlib
import io
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import convert, saved_bytes
from tests.kernels.conversion.torch_models import MODELS, Calls, Plain, batch, build, each_model, equal, gradients, near
from tests.kernels.saved import bytes_in_graph

pytestmark = pytest.mark.usefixtures("afresh")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@each_model
def test_to_another_dtype_after_conversion(kind: str, dtype: torch.dtype) -> None:
    model, other = build(kind), build(kind).to(dtype)
    convert(model, "fewbit")
    convert(other, "fewbit")
    got = gradients(model.to(dtype), model, batch().to(dtype))
    assert all(tensor.dtype == dtype for tensor in got[1:])
    assert equal(got, gradients(other, other, batch().to(dtype)))


@each_model
def test_a_model_on_meta(kind: str) -> None:
    """It is measured, and weights come afterwards."""
    with torch.device("meta"):
        model = build(kind)
    real = build(kind)
    report, expected = convert(model, inputs=batch().to("meta")), convert(real, inputs=batch())
    assert report.sites == expected.sites
    assert (report.before.total, report.after.total) == (expected.before.total, expected.after.total)
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device="cpu").load_state_dict(build(kind).state_dict())
    assert equal(gradients(model, model), gradients(real, real))


def test_autocast_chooses_by_bfloat16() -> None:
    """There the floor is higher, so that few bits are as good as the output is; before a cast they keep less."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.act(self.up(x))
            return self.down(y.float().sin() if y.dtype == torch.bfloat16 else y)

    model = Net()
    plain = convert(model, inputs=batch())
    plain.revert()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        report = convert(model, inputs=batch())
        assert report.after.total == saved_bytes(model, batch(), fake=False).total < report.before.total
    (site,), (other,) = plain.converted, report.converted
    assert site.now == "invact"
    assert other.now.startswith("fewbit")
    assert site.derivative_error < 2**-18 < other.derivative_error < torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("kind", ["a call", "calls"])
def test_threads(kind: str) -> None:
    """A model converted one way, in two threads, and one in another, and one that was not, at the same time."""
    conversions: list[dict[str, Any] | None] = [{"method": "fewbit", "bits": 1}, {"method": "forward-ad"}, None]
    models = [build(kind) for _ in conversions]
    for model, options in zip(models, conversions, strict=True):
        if options is not None:
            convert(model, **options)
    expected = [gradients(model, model) for model in models]
    assert not near(expected[0], expected[2], 1e-3)

    def many(index: int) -> bool:
        return all(equal(gradients(models[index], models[index]), expected[index]) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, (0, 0, 1, 2)))


def test_threads_that_run_their_calls_in_turn() -> None:
    """Each meets the other before its call, when both are within their forwards."""
    barrier = threading.Barrier(2, timeout=5)

    class Meeting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(8, 16)

        def forward(self, x: Tensor) -> Tensor:
            x = self.up(x)
            barrier.wait()
            y = F.gelu(x)
            barrier.wait()
            return y.exp()

    models = [Meeting() for _ in range(2)]
    for model in models:
        convert(model, "fewbit", bits=1)
    kept = 5 * 16 * 4 + 5 * 16 // 8  # what exp gives, and the bits

    def bytes_of(model: nn.Module) -> int:
        x = batch()
        return bytes_in_graph(model(x), [x, *model.parameters()])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(bytes_of, models)) == [kept] * 2


def world() -> dict[str, int]:
    """The identity of everything that a patch would replace."""
    owners: list[Any] = [F, torch, torch.Tensor, nn, nn.Module, *vars(nn).values(), Plain, Calls]
    if "transformers.activations" in sys.modules:
        activations = sys.modules["transformers.activations"]
        owners += [activations, *(kind for kind in vars(activations).values() if isinstance(kind, type))]
    owners = [
        owner for owner in owners if isinstance(owner, type) or owner in (F, torch, nn) or hasattr(owner, "ACT2FN")
    ]
    return {f"{owner.__name__}.{name}": id(value) for owner in owners for name, value in vars(owner).items()}


def test_nothing_is_patched() -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module("transformers.activations")
    models = [build(kind) for kind in MODELS]
    untouched = [build(kind) for kind in MODELS]
    expected = [gradients(model, model) for model in untouched]
    convert(build("calls"), "invact", inputs=batch())  # what is made at the first use
    before = world()
    assert "GELU.forward" in before
    assert "torch.nn.functional.gelu" in before
    for model in models:
        convert(model, "fewbit", inputs=batch())
        gradients(model, model)
    assert world() == before
    for model, stock in zip(untouched, expected, strict=True):
        assert equal(gradients(model, model), stock)
        assert "forward" not in vars(model)


def by_torch(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), by_torch])
@each_model
def test_copies(kind: str, copied: Callable[[nn.Module], nn.Module]) -> None:
    """A copy runs on its own weights."""
    model = build(kind)
    convert(model, "fewbit", bits=2)
    other = copied(model)
    expected = gradients(model, model)
    assert equal(gradients(other, other), expected)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    assert equal(gradients(other, other), expected)
