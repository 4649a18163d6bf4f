"""The safety net: a gradient that errs more than predicted is told of, with the tensors that do it."""

import warnings
from math import inf, nan
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import KernelError, compress, gradient_error, make_plan
from actfit.kernels.methods.expected_error import expected_error
from actfit.kernels.planning.batches import Call, enough
from actfit.kernels.planning.decoded import LEAST, Decoded
from actfit.kernels.planning.safety import checked
from actfit.kernels.planning.step import Step
from tests.kernels.planning.nets import NETS, text


class Wrong(nn.Module):
    """A network with a sine of large phases, whose codes' steps are many radians; it counts its calls."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(64, 64), norm(64), nn.Linear(64, 64)
        self.drop, self.calls = nn.Dropout(0.1), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result: Tensor = self.last(self.drop(self.norm((50 * self.first(x)).sin()).tanh()))
        return result


@pytest.fixture
def steep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phases are coded, as they must not be."""
    monkeypatch.setattr("actfit.kernels.compression.exact.WAVES", ())


X = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
STEEP = "the gradient must err by at most 3 times what is predicted, .* by the saved tensors 'first: aten.addmm' "


@pytest.mark.usefixtures("steep")
@pytest.mark.parametrize("bits", [4, 8])
def test_a_tensor_that_magnifies_errors_is_named(bits: int) -> None:
    with pytest.warns(UserWarning, match=STEEP) as caught:
        handle = compress(Wrong(), bits=bits, inputs=X)
    assert caught[0].filename == __file__
    assert handle.checked is not None
    assert handle.checked.error is not None
    assert handle.checked.error > 3 * handle.checked.predicted
    assert [site for site, _ in handle.checked.guilty] == ["first: aten.addmm"]
    assert "Error of the gradient of samples, without your loss (give loss=): " in str(handle)


@pytest.mark.slow
@pytest.mark.usefixtures("steep")
def test_a_plan_and_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Step, "peak_with", lambda *given: 0)  # codes do not lower the peak of so shallow a model
    model = Wrong(norm=nn.LayerNorm)
    with pytest.raises(KernelError, match=STEEP):
        make_plan(model, X, 0.15, strict=True, goal="error")
    with pytest.warns(UserWarning, match=STEEP):
        plan = make_plan(model, X, 0.15, goal="error")
    for given in ({"plan": plan}, {"fit": 0.15}):
        with pytest.warns(UserWarning, match=STEEP) as caught:
            compress(model, inputs=X, **given).remove()
        assert caught[0].filename == __file__


@pytest.mark.slow
@pytest.mark.usefixtures("steep")
def test_a_plan_of_a_compiled_model() -> None:
    with pytest.raises(KernelError, match=STEEP):
        make_plan(Wrong(norm=nn.LayerNorm), X, 0.15, compiled=True, strict=True, samples=64, goal="error")


class Pair(nn.Module):
    """Results at two places that are close."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [F.gelu(self.layer(place)) @ torch.eye(64) for place in (x, x + 0.01)]


def test_the_loss_counts() -> None:
    """Of their difference, the exact gradient nearly cancels; the errors of its two parts do not."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "without your loss (give loss=): " in str(compress(Pair(), bits=4, inputs=X))
    with pytest.warns(UserWarning, match="by the saved tensors 'layer: aten.addmm' "):
        handle = compress(Pair(), bits=4, inputs=X, loss=lambda y, sign: (y[0] + sign * y[1]).sum(), targets=-1)
    assert "Error of the gradient of samples: " in str(handle)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bits"), [("text", 2), ("image", 8), ("mlp", 2)])
def test_networks_whose_gradient_is_as_predicted(name: str, bits: int) -> None:
    model, inputs = NETS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compress(model, bits=bits, inputs=inputs).checked
    assert found is not None
    assert found.error is not None
    # Codes do something, and not more than tensors' errors account for: the prediction bounds it here.
    assert 0.05 * found.predicted < found.error < found.predicted


def test_what_is_measured_is_the_error_of_the_model() -> None:
    """Of the same samples, which are all there are."""
    model, inputs = text(1)
    inputs = (inputs[0][:2],)
    found = compress(model, bits=4, inputs=inputs, loss=lambda y: y.square().mean()).checked
    assert found is not None
    assert found.error == pytest.approx(
        gradient_error(model, lambda model: model(*inputs).square().mean()).error,
        rel=0.02,  # by other groups of sums
    )


def test_nothing_is_changed() -> None:
    model = Wrong()
    model(X).sum().backward()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = [weight.grad for weight in model.parameters()]
    values = [gradient.clone() for gradient in gradients if gradient is not None]
    state = torch.get_rng_state()
    compress(model, bits=4, inputs=X).remove()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(weight.grad is gradient for weight, gradient in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(gradients, values, strict=True) if a is not None)
    assert model.calls == 1
    assert not any("forward" in vars(module) for module in model.modules())


class Stubborn(nn.Module):
    """Runs on whole batches only, or not at all."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.layer, self.lines = count, nn.Linear(64, 64), iter(())

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] != self.count:
            raise ValueError("a whole batch, please")
        result: Tensor = self.layer(self.layer(x).sigmoid())
        return result


def test_a_model_that_does_not_run_on_samples() -> None:
    found = compress(Stubborn(256), bits=4, inputs=X).checked
    assert found is not None
    assert found.error


def test_a_model_that_cannot_be_measured_is_told_of() -> None:
    frozen = nn.Sequential(nn.Linear(64, 64), nn.GELU()).requires_grad_(requires_grad=False)
    message = "must be measured, got .*: KernelError: model must have parameters .* or call gradient_error later"
    with pytest.warns(UserWarning, match=message) as caught:
        handle = compress(frozen, bits=4, inputs=X.clone().requires_grad_())
    assert caught[0].filename == __file__
    assert "Error of the gradient: not measured, as the model cannot run so: KernelError: model must have" in str(
        handle
    )


def test_a_model_that_does_not_train() -> None:
    on_meta = nn.Sequential(nn.Linear(64, 64, device="meta"), nn.GELU())
    frozen = nn.Sequential(nn.Linear(64, 64), nn.GELU()).requires_grad_(requires_grad=False)
    for model, inputs, note in (
        (on_meta, X.to("meta"), "as its tensors have no numbers"),
        (frozen, X, "as nothing wants a gradient"),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert f"not measured, {note}" in str(compress(model, bits=4, inputs=inputs))


def test_a_gradient_that_is_not_a_number() -> None:
    """As where groups of codes have infinities."""
    decoded = Decoded()
    decoded.note("a: b", 8, 0.01, torch.float32, 64, "nearest")
    gradients = SimpleNamespace(sites={"a: b"}, decoded=decoded, of_loss=True, error=lambda bits: nan)
    assert checked(cast("Any", gradients), {"a: b": 8}).guilty == (("a: b", inf),)


def test_a_batch_norm_is_checked_on_enough_samples() -> None:
    assert enough(Wrong(), (Call((X,), {}), None), 2) == 32
    assert enough(Wrong(), (Call((X[:20],), {}), None), 2) is None  # two times 10 are too few
    assert enough(Wrong(norm=nn.LayerNorm), (Call((X,), {}), None), 2) == 2


@pytest.mark.parametrize("error", [0.0, 1e-6, 0.1, 1.0])
def test_the_error_that_is_foreseen(error: float) -> None:
    """At least three quarters of what normally distributed numbers have; a tensor of zeros keeps none."""
    decoded, usual = Decoded(), expected_error(4, 64, "nearest")
    decoded.note("a", 4, error, torch.float32, 64, "nearest")
    assert decoded.foreseen["a"][4] == max(error, LEAST * usual)
    expected = 0.0 if not error else 3.0 * max(1.0, LEAST * usual / error) ** 2
    errors = decoded.foreseen_errors({"a": {2: 0.0 if not error else 3.0}})
    assert errors["a"][2] == pytest.approx(expected)


def test_a_gradient_is_foreseen_to_depend_on_each_tensor() -> None:
    """By a tenth of the tensor's own error or more, squared; other widths grow as much."""
    decoded = Decoded()
    for bits, error in ((2, 0.8), (8, 0.02)):
        decoded.note("a", bits, error, torch.float32, 64, "nearest")
    assert decoded.foreseen_errors({"a": {2: 1e-4, 4: 1e-5, 8: 1e-8}})["a"] == pytest.approx(
        {2: 64e-4, 4: 64e-5, 8: 64e-8}
    )
    assert decoded.foreseen_errors({"a": {2: 0.1, 8: 1e-4}})["a"] == pytest.approx({2: 0.1, 8: 1e-4})
