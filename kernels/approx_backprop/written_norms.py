"""Norms that other people's modules write out: an RMS norm or a layer norm of the last dimension, told by its numbers.

    y = gain * a + bias,  a = (x - mean) / sqrt(mean((x - mean)^2) + eps),  gain = 1, w or 1 + w

Where such a module rounds, and in which order it multiplies, does not matter: its own forward gives y. What has to be
known is how the gradient is made of a copy of a, and that is judged with other weights and inputs.
"""

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

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
    """What norm of the last dimension a module writes out, which may be called by one tensor; None if it is none.

    A copy of it runs, with parameters and inputs of its own.
    """
    if not _may_be(module):
        return None
    with (
        unset_fake_temporarily(),
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
            except Exception:  # whatever a stranger's module raises when it is given such a tensor
                continue
    return None


def is_like_a_norm(module: nn.Module) -> bool:
    """Whether a module is called a norm and has parameters of features: for a report, which names what was left."""
    return "norm" in type(module).__name__.lower() and not any(True for _ in module.children()) and _has_vectors(module)


def _may_be(module: nn.Module) -> bool:
    if isinstance(module, Activation | torch.jit.ScriptModule) or type(module).__module__.startswith("torch.nn."):
        return False
    if any(True for _ in module.children()) or any(True for _ in module.buffers()) or type(module).forward is None:
        return False
    # By what it is made of: functions of a number each are found as activations, and have no feature to speak of.
    return _has_vectors(module) or "norm" in type(module).__name__.lower()


def _has_vectors(module: nn.Module) -> bool:
    shapes = [tuple(one.shape) for one in module.parameters()]
    return 1 <= len(shapes) <= 2 and len(shapes[0]) == 1 and shapes[0][0] > 1 and len(set(shapes)) == 1


def _widths(module: nn.Module) -> Iterator[int]:
    """Numbers of features that a module may be for."""
    shapes = [one.shape for one in module.parameters()]
    if shapes:
        if _has_vectors(module):
            yield shapes[0][0]
        return
    given = getattr(module, "normalized_shape", None)
    yield given[0] if isinstance(given, tuple) and len(given) == 1 and isinstance(given[0], int) else 24


def _judged(module: nn.Module, width: int) -> WrittenNorm:
    """Raises KernelError, or anything at all, for a module that is no such norm."""
    random = torch.Generator().manual_seed(0)
    params = {
        name: torch.rand(width, generator=random) + 0.25 for name, one in module._parameters.items() if one is not None
    }
    found = _formula(module, params, width)
    roots = found.eps**0.5 * torch.tensor([0.0, 0.3, 1.0, 3.0])
    sizes = torch.cat([roots, torch.tensor([1e-3, 0.03, 0.3, 1.0, 1.0, 3.0, 30.0, 300.0])])[:_ROWS, None]
    x = (torch.randn(_ROWS, width, generator=random) + torch.arange(_ROWS)[:, None] / _ROWS) * sizes
    for shape, training in product(((_ROWS, width), (3, 4, width), (2, 2, 3, width)), (True, False)):
        trial = _trial(module, params).train(training)
        if not _agrees(trial, found, x.reshape(shape)):
            raise KernelError("no norm")
    for dtype, wide in ((torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32)):
        trial = _trial(module, {name: one.to(wide) for name, one in params.items()})
        y = trial.forward(x[6:].to(dtype))
        if not _close(y, found(x[6:].to(dtype).float(), params), _NARROW):
            raise KernelError("no norm in 16 bits")
    return found


def _formula(module: nn.Module, params: dict[str, Tensor], width: int) -> WrittenNorm:
    """The formula that a module's numbers fit where eps is too small to tell, and then eps."""
    random = torch.Generator().manual_seed(1)
    large = (torch.randn(_ROWS, width, generator=random) + 0.5) * 1e3
    y = _trial(module, params).forward(large)
    if not isinstance(y, Tensor) or y._is_view():  # a view that is a function's result cannot be changed in place
        raise KernelError("no norm")
    for centred, plus_one in product((False, True), (False, True)):
        for names in permutations([*params, "", ""], 2):
            kind = WrittenNorm(centred, *names, plus_one)
            used = {name for name in names if name}
            if used == params.keys() and (kind.weight or not plus_one) and _close(y, kind(large, params), _CLOSE):
                return WrittenNorm(centred, *names, plus_one, _eps(module, kind, params, width))
    raise KernelError("no norm")


def _eps(module: nn.Module, kind: WrittenNorm, params: dict[str, Tensor], width: int) -> float:
    """eps, from the result for numbers whose mean square is far below it; as the module has it, if it has it."""
    size = 2.0**-27
    tiny = torch.linspace(-1, 1, width)
    tiny = size * (tiny - tiny.mean()) / tiny.std(correction=0)
    params = {name: torch.zeros_like(one) if name == kind.bias else one for name, one in params.items()}
    y = _trial(module, params).forward(tiny[None]).double()[0]
    gain = params[kind.weight].double() + kind.plus_one if kind.weight else torch.ones(width).double()
    tiny = tiny.double()
    scale = float((y * gain * tiny).sum() / (gain * tiny).square().sum())
    eps = scale**-2 - float(tiny.square().mean())
    own = [value for value in vars(module).values() if isinstance(value, float)]
    return next((value for value in own if abs(value - eps) <= 1e-4 * value), max(eps, 0.0))


def _trial(module: nn.Module, params: dict[str, Tensor]) -> nn.Module:
    """A copy with these parameters, which shares nothing with the module: what it caches is not the module's."""
    trial = copy.copy(module)
    own = {name: value for name, value in vars(module).items() if name not in ("_parameters", "forward")}
    vars(trial).update(copy.deepcopy(own, {id(module): trial}))
    trial._parameters = {name: nn.Parameter(one.clone()) for name, one in params.items()}
    trial.forward = partial(type(module).forward, trial)  # not what stands for it, nor hooks
    return trial


def _agrees(trial: nn.Module, kind: WrittenNorm, x: Tensor) -> bool:
    """Whether values and all gradients are the formula's, which is computed in float64."""
    x = x.clone().requires_grad_()
    wide = {name: one.detach().double().requires_grad_() for name, one in trial.named_parameters()}
    wide_x = x.detach().double().requires_grad_()
    y, expected = trial.forward(x), kind(wide_x, wide)
    if not isinstance(y, Tensor) or y.shape != x.shape or not _close(y, expected, _CLOSE):
        return False
    grad = torch.linspace(-1, 2, x.numel()).reshape(x.shape)
    got = torch.autograd.grad(y, [x, *trial.parameters()], grad.to(y.dtype))
    exact = torch.autograd.grad(expected, [wide_x, *wide.values()], grad.double())
    return all(_close(one, other, 2.0**-10) for one, other in zip(got, exact, strict=True))


def _close(got: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Row by row, as rows have sizes of their own."""
    got, expected = got.detach().double(), expected.detach().double()
    size = expected.abs().amax(-1, keepdim=True)
    return got.shape == expected.shape and bool(((got - expected).abs() <= tolerance * (size + 1e-30)).all())
