"""The safety net: a gradient that errs more than predicted is told of, with the tensors that do it."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernels import KernelError, convert, gradient_error
from kernels.conversion.report import Report
from kernels.methods.expected_error import expected_error
from kernels.planning import make_plan
from kernels.planning.batches import Call, enough
from kernels.planning.decoded import LEAST, Decoded
from tests.kernels.planning.nets import NETS, text


class Steep(torch.autograd.Function):
    """sin(50 x) of a tensor that it saves: a step of the code is many radians. No rule knows it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (50 * x).sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 50 * (50 * x).cos()


class Wrong(nn.Module):
    """A network with a steep function in it; it counts its calls, and keeps results in a list."""

    def __init__(self, steep: bool = True, norm: type[nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(64, 64), norm(64), nn.Linear(64, 64)
        self.steep, self.drop, self.results, self.calls = steep, nn.Dropout(0.1), list[Tensor](), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.first(x)
        y = self.drop(self.norm(Steep.apply(y) if self.steep else y.tanh()).tanh())
        self.results.append(y.detach())
        result: Tensor = self.last(y)
        return result


X = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
STEEP = "the gradient must err by at most 3 times what is predicted, .* by the saved tensors ': Steep.apply' "


def of_compress(bits: int, **given: Any) -> Report:
    return convert(Wrong(), "compress", bits=bits, inputs=X, **given)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_tensor_that_magnifies_errors_is_named(bits: int) -> None:
    with pytest.warns(UserWarning, match=STEEP) as caught:
        report = of_compress(bits)
    assert caught[0].filename == __file__
    assert report.checked is not None
    assert report.checked.error is not None
    assert report.checked.error > 3 * report.checked.predicted
    assert [site for site, _ in report.checked.guilty] == [": Steep.apply"]
    assert "Error of the gradient of samples, without your loss (give loss=): " in str(report)


def test_strict_raises_and_leaves_the_model() -> None:
    model = Wrong()
    with pytest.raises(KernelError, match=STEEP):
        convert(model, "compress", inputs=X, strict=True)
    assert "forward" not in vars(model)


def test_a_plan_and_a_budget() -> None:
    model = Wrong(norm=nn.LayerNorm)
    with pytest.warns(UserWarning, match=STEEP):
        plan = make_plan(model, X, 0.3)
    with pytest.raises(KernelError, match=STEEP):
        make_plan(model, X, 0.3, strict=True)
    with pytest.raises(KernelError, match=STEEP):
        convert(model, inputs=X, budget=0.3, strict=True)
    with pytest.warns(UserWarning, match=STEEP):
        convert(model, inputs=X, plan=plan)


@pytest.mark.slow
def test_a_plan_of_a_compiled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which codes phases here, as it must not."""
    monkeypatch.setattr("kernels.compression.exact.WAVES", ())
    with pytest.raises(
        KernelError, match=r"at most 3 times what is predicted, .* by the saved tensors 'first: aten.addmm' "
    ):
        make_plan(Wrong(norm=nn.LayerNorm), X, 0.3, compiled=True, strict=True, samples=64)


class Gate(torch.autograd.Function):
    """A sigmoid that saves its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sigmoid()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        y = ctx.saved_tensors[0].sigmoid()
        return gradient * y * (1 - y)


class Masking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Gate.apply(self.layer(x).masked_fill(x > 2, torch.finfo().min))
        return result


def test_a_gradient_that_is_not_a_number() -> None:
    """Groups of codes with the least number of all become NaN."""
    with pytest.warns(UserWarning, match="got inf on samples, by the saved tensors ': Gate.apply' "):
        convert(Masking(), "compress", bits=8, inputs=X)


class Cube(torch.autograd.Function):
    """x³ of a tensor that it saves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3 * ctx.saved_tensors[0] ** 2


class Cubed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Cube.apply(self.layer(x))
        return result


def divided(output: Tensor) -> Tensor:
    return (output.abs() + 1e-6).log().mean()


def test_the_loss_counts() -> None:
    """The derivative of a cube is small where that of its logarithm is large."""
    torch.manual_seed(0)
    model = Cubed()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = convert(model, "compress", inputs=X)
    assert "Error of the gradient of samples, without your loss (give loss=): " in str(report)
    report.revert()
    with pytest.warns(UserWarning, match="by the saved tensors ': Cube.apply'"):
        report = convert(model, "compress", inputs=X, loss=divided)
    assert "Error of the gradient of samples: " in str(report)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("bits", [2, 8])
def test_networks_whose_gradient_is_as_predicted(name: str, bits: int) -> None:
    model, inputs = NETS[name]()
    report = convert(model, "compress", bits=bits, inputs=inputs, strict=True)
    assert report.checked is not None
    assert report.checked.error is not None
    # Codes do something, and not more than tensors' errors account for: the prediction bounds it here.
    assert 0.05 * report.checked.predicted < report.checked.error < report.checked.predicted


def test_what_is_measured_is_the_error_of_the_model() -> None:
    """Of the same samples, which are all there are."""
    model, inputs = text(1)
    inputs = (inputs[0][:2],)
    checked = convert(model, "compress", bits=4, inputs=inputs, loss=lambda y: y.square().mean()).checked
    assert checked is not None
    assert checked.error == pytest.approx(
        gradient_error(model, lambda model: model(*inputs).square().mean()).error,
        rel=0.02,  # by other groups of sums
    )


def test_only_what_is_converted_counts() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), Wrong())
    with pytest.warns(UserWarning, match=r"by the saved tensors '\*: Steep.apply'"):
        convert(model, "compress", inputs=X).revert()
    for include, exclude in ((None, "2"), ("1", None)):
        report = convert(model, "compress", inputs=X, strict=True, include=include, exclude=exclude)
        assert report.checked is not None
        assert report.checked.error is not None
        assert 0 < report.checked.error < 0.1
        report.revert()


def test_nothing_is_changed() -> None:
    model = Wrong(steep=False)
    model(X).sum().backward()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = [weight.grad for weight in model.parameters()]
    values = [gradient.clone() for gradient in gradients if gradient is not None]
    state = torch.get_rng_state()
    report = convert(model, "compress", inputs=X)
    assert report.checked is not None
    assert report.checked.error is not None
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(weight.grad is gradient for weight, gradient in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(gradients, values, strict=True) if a is not None)
    assert (len(model.results), model.calls) == (1, 1)


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
    model = Stubborn(256)
    report = convert(model, "compress", inputs=X)
    assert report.checked is not None
    assert report.checked.error is not None
    assert report.checked.error > 0


def test_a_model_that_cannot_be_measured_is_told_of() -> None:
    frozen = nn.Sequential(nn.Linear(64, 64), nn.GELU()).requires_grad_(requires_grad=False)
    message = "must be measured, got .*: KernelError: model must have parameters .* or call gradient_error later"
    with pytest.raises(KernelError, match=message):
        convert(frozen, "compress", inputs=X.clone().requires_grad_(), strict=True)
    with pytest.warns(UserWarning, match=message) as caught:
        report = convert(frozen, "compress", inputs=X.clone().requires_grad_())
    assert caught[0].filename == __file__
    assert "Error of the gradient: not measured, as the model cannot run so: KernelError: model must have" in str(
        report
    )


def test_a_model_that_does_not_train() -> None:
    on_meta = nn.Sequential(nn.Linear(64, 64, device="meta"), nn.GELU())
    frozen = nn.Sequential(nn.Linear(64, 64), nn.GELU()).requires_grad_(requires_grad=False)
    for model, inputs, note in (
        (on_meta, X.to("meta"), "as its tensors have no numbers"),
        (frozen, X, "as nothing wants a gradient"),
    ):
        with pytest.raises(KernelError, match=f"must be measured, got .*, {note}"):
            convert(model, "compress", inputs=inputs, strict=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert f"not measured, {note}" in str(convert(model, "compress", inputs=inputs))


class Doubled(nn.Module):
    """Blocks of a batch norm, and probabilities in two orders."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.Tanh(), nn.Linear(256, 64)) for _ in range(6)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        result: Tensor = Cube.apply(5 * x)
        return result


def test_a_batch_norm_of_a_plan_is_checked_on_enough_samples() -> None:
    with pytest.raises(KernelError, match=r"by the saved tensors ': Cube.apply' "):
        convert(Doubled(), inputs=X, budget=0.3, loss=divided, strict=True)
    assert enough(Doubled(), (Call((X,), {}), None), 2) == 32
    assert enough(Doubled(), (Call((X[:20],), {}), None), 2) is None  # two times 10 are too few
    assert enough(Wrong(norm=nn.LayerNorm), (Call((X,), {}), None), 2) == 2


def test_a_warning_of_a_budget_points_to_its_caller() -> None:
    layers = nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)
    for plan in (make_plan, lambda model, x, budget: convert(model, inputs=x, budget=budget)):
        with pytest.warns(UserWarning, match="budget must leave the peak") as caught:
            plan(nn.Sequential(*layers), X, 0.1)
        assert caught[0].filename == __file__


@pytest.mark.parametrize("error", [0.0, 1e-6, 0.1, 1.0])
def test_the_error_that_is_foreseen(error: float) -> None:
    """At least three quarters of what normally distributed numbers have; a tensor of zeros keeps none."""
    decoded, usual = Decoded(), expected_error(4, 64, "nearest")
    decoded.note("a", 4, error, torch.float32, 64, "nearest")
    assert decoded.foreseen["a"][4] == max(error, LEAST * usual)
    expected = 0.0 if not error else 3.0 * max(1.0, LEAST * usual / error) ** 2
    errors = decoded.foreseen_errors({"a": {2: 0.0 if not error else 3.0}})
    assert errors["a"][2] == pytest.approx(expected)


def test_errors_of_losses_are_foreseen_to_grow() -> None:
    decoded = Decoded()
    names = ["0.act: gelu", ": cross_entropy 2", "head: aten._log_softmax_backward_data", "loss: mul"]
    for name in names:
        decoded.note(name, 4, 1.0, torch.float32, 64, "nearest")
    errors = decoded.foreseen_errors({name: {4: 1e-6} for name in names})
    assert [errors[name][4] for name in names] == pytest.approx([1e-6, 1e-4, 1e-4, 1e-6])
