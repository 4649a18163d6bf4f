"""Norms written out in other libraries' modules: RMS and layer norms of the last dimension, recognised numerically.

    y = gain * a + bias,  a = (x - mean) / sqrt(mean((x - mean)^2) + eps),  gain = 1, w or 1 + w

Where such a module rounds, and in which order it multiplies, does not matter: its own forward computes y. Only the
formula of the gradient must be known; it is checked with random weights and inputs.
"""

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product

import torch
from torch import Tensor, nn

from kernels import private
from kernels.errors import KernelError
from kernels.modules import Activation

# Norms compute in float32 at least, with sums of some thousand squares and differences from a mean. Other formulas
# differ by far more: x / (std + eps), an unbiased variance, a gain that is rounded twice.
_CLOSE = 2.0**-16
_NARROW = 2.0**-5  # bfloat16 has 8 bits; gain and a may each be rounded before they are multiplied
_ROWS = 12


@dataclass(frozen=True)
class WrittenNorm:
    """The formula of a norm.

    Attributes
    ----------
    centred
        Whether the mean is subtracted.
    weight, bias
        Names of parameters, or "".
    plus_one
        Whether gain is 1 + w.
    eps
        Added to the variance.
    """

    centred: bool
    weight: str
    bias: str
    plus_one: bool
    eps: float = 0.0

    def parameters(self, module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
        """Gain and bias of a module; the gain is connected to the weight."""
        weight = getattr(module, self.weight) if self.weight else None
        gain = 1.0 + weight.float() if weight is not None and self.plus_one else weight
        return gain, getattr(module, self.bias) if self.bias else None

    def __call__(self, x: Tensor, params: dict[str, Tensor]) -> Tensor:
        """The formula."""
        a = x - x.mean(-1, keepdim=True) if self.centred else x
        a = a * torch.rsqrt(a.square().mean(-1, keepdim=True) + self.eps)
        a = a * (params[self.weight] + self.plus_one) if self.weight else a
        return a + params[self.bias] if self.bias else a


def written_norm(module: nn.Module) -> WrittenNorm | None:
    """The norm of the last dimension that a module of one tensor computes; None if it is none.

    A copy of the module runs, with other parameters and inputs.
    """
    if not _may_be(module):
        return None
    with (
        private.unset_fake_temporarily(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.device("cpu"),
        torch.autocast("cpu", enabled=False),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for width in _widths(module):
            try:
                return _judged(module, width)
            except Exception:  # the module may raise anything for such a tensor
                continue
    return None


def is_like_a_norm(module: nn.Module) -> bool:
    """Whether a module is called a norm and has vectors of parameters; reports name such modules that were left out."""
    return "norm" in type(module).__name__.lower() and not any(True for _ in module.children()) and _has_vectors(module)


def _may_be(module: nn.Module) -> bool:
    if isinstance(module, Activation | torch.jit.ScriptModule) or type(module).__module__.startswith("torch.nn."):
        return False
    if any(True for _ in module.children()) or any(True for _ in module.buffers()) or type(module).forward is None:
        return False
    # Element-wise functions, which have no vector of parameters, are recognised as activations instead.
    return _has_vectors(module) or "norm" in type(module).__name__.lower()


def _has_vectors(module: nn.Module) -> bool:
    shapes = [tuple(parameter.shape) for parameter in module.parameters()]
    return 1 <= len(shapes) <= 2 and len(shapes[0]) == 1 and shapes[0][0] > 1 and len(set(shapes)) == 1


def _widths(module: nn.Module) -> Iterator[int]:
    """Candidates for the number of features of a module."""
    shapes = [parameter.shape for parameter in module.parameters()]
    if shapes:
        if _has_vectors(module):
            yield shapes[0][0]
        return
    given = getattr(module, "normalized_shape", None)
    yield given[0] if isinstance(given, tuple) and len(given) == 1 and isinstance(given[0], int) else 24


def _judged(module: nn.Module, width: int) -> WrittenNorm:
    """The formula, checked; raises KernelError, or any other error of the module, if it is no such norm."""
    random = torch.Generator().manual_seed(0)
    params = {
        name: torch.rand(width, generator=random) + 0.25
        for name, param in module._parameters.items()
        if param is not None
    }
    formula = _formula(module, params, width)
    roots = formula.eps**0.5 * torch.tensor([0.0, 0.3, 1.0, 3.0])
    sizes = torch.cat([roots, torch.tensor([1e-3, 0.03, 0.3, 1.0, 1.0, 3.0, 30.0, 300.0])])[:_ROWS, None]
    x = (torch.randn(_ROWS, width, generator=random) + torch.arange(_ROWS)[:, None] / _ROWS) * sizes
    for shape, training in product(((_ROWS, width), (3, 4, width), (2, 2, 3, width)), (True, False)):
        trial = _trial(module, params).train(training)
        if not _agrees(trial, formula, x.reshape(shape)):
            raise KernelError("no norm")
    for dtype, wide in ((torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32)):
        trial = _trial(module, {name: param.to(wide) for name, param in params.items()})
        y = trial.forward(x[6:].to(dtype))
        if not _close(y, formula(x[6:].to(dtype).float(), params), _NARROW):
            raise KernelError("no norm in 16 bits")
    return formula


def _formula(module: nn.Module, params: dict[str, Tensor], width: int) -> WrittenNorm:
    """The formula that fits a module's results for large inputs, where eps does not matter, and then its eps."""
    random = torch.Generator().manual_seed(1)
    large = (torch.randn(_ROWS, width, generator=random) + 0.5) * 1e3
    y = _trial(module, params).forward(large)
    if not isinstance(y, Tensor) or y._is_view():  # a view that is a function's result cannot be changed in place
        raise KernelError("no norm")
    for centred, plus_one in product((False, True), (False, True)):
        for names in permutations([*params, "", ""], 2):
            formula = WrittenNorm(centred, *names, plus_one)
            used = {name for name in names if name}
            if used == params.keys() and (formula.weight or not plus_one) and _close(y, formula(large, params), _CLOSE):
                return WrittenNorm(centred, *names, plus_one, _eps(module, formula, params, width))
    raise KernelError("no norm")


def _eps(module: nn.Module, formula: WrittenNorm, params: dict[str, Tensor], width: int) -> float:
    """eps, from the result for inputs whose mean square is far below it; the module's own number if that is close."""
    size = 2.0**-27
    tiny = torch.linspace(-1, 1, width)
    tiny = size * (tiny - tiny.mean()) / tiny.std(correction=0)
    params = {name: torch.zeros_like(param) if name == formula.bias else param for name, param in params.items()}
    y = _trial(module, params).forward(tiny[None]).double()[0]
    gain = params[formula.weight].double() + formula.plus_one if formula.weight else torch.ones(width).double()
    tiny = tiny.double()
    scale = float((y * gain * tiny).sum() / (gain * tiny).square().sum())
    eps = scale**-2 - float(tiny.square().mean())
    numbers = [value for value in vars(module).values() if isinstance(value, float)]
    return next((value for value in numbers if abs(value - eps) <= 1e-4 * value), max(eps, 0.0))


def _trial(module: nn.Module, params: dict[str, Tensor]) -> nn.Module:
    """A copy with these parameters that shares nothing with the module, not even what it caches."""
    trial = copy.copy(module)
    attributes = {name: value for name, value in vars(module).items() if name not in ("_parameters", "forward")}
    vars(trial).update(copy.deepcopy(attributes, {id(module): trial}))
    trial._parameters = {name: nn.Parameter(param.clone()) for name, param in params.items()}
    trial.forward = partial(type(module).forward, trial)  # neither its replacement nor hooks
    return trial


def _agrees(trial: nn.Module, formula: WrittenNorm, x: Tensor) -> bool:
    """Whether values and all gradients match the formula's in float64."""
    x = x.clone().requires_grad_()
    wide = {name: param.detach().double().requires_grad_() for name, param in trial.named_parameters()}
    wide_x = x.detach().double().requires_grad_()
    y, expected = trial.forward(x), formula(wide_x, wide)
    if not isinstance(y, Tensor) or y.shape != x.shape or not _close(y, expected, _CLOSE):
        return False
    grad = torch.linspace(-1, 2, x.numel()).reshape(x.shape)
    gradients = torch.autograd.grad(y, [x, *trial.parameters()], grad.to(y.dtype))
    exact = torch.autograd.grad(expected, [wide_x, *wide.values()], grad.double())
    return all(
        _close(gradient, expected_gradient, 2.0**-10)
        for gradient, expected_gradient in zip(gradients, exact, strict=True)
    )


def _close(values: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether each row is close, relative to its largest number."""
    values, expected = values.detach().double(), expected.detach().double()
    size = expected.abs().amax(-1, keepdim=True)
    return values.shape == expected.shape and bool(((values - expected).abs() <= tolerance * (size + 1e-30)).all())
