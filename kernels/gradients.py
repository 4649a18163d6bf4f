"""The error of a compressed or compiled model's gradient: it is compared with the exact one on the same batch."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import hypot, inf, isnan
from typing import Any

import torch
from torch import Tensor, nn

from actfit.kernels import private
from actfit.kernels.errors import KernelError, shown
from actfit.kernels.memory.compiled import is_captured, settings_with_codes
from actfit.kernels.memory.isolated import noting_writes, on_copies, random_states
from actfit.kernels.methods.stock import Stock
from actfit.kernels.modules import Activation
from actfit.kernels.text import percent, table

ROWS = 10  # parameters in the text


@dataclass(frozen=True)
class ParameterError:
    """The error of one parameter's gradient g.

    Attributes
    ----------
    name
        Its name in the model before compilation.
    error
        ||g' - g|| / ||g||; where g is 0, 0 or infinity.
    share
        ||g||² over that of the whole gradient; if it is small, the error matters little.
    """

    name: str
    error: float
    share: float


@dataclass(frozen=True)
class GradientError:
    """The error of a gradient; `str(...)` shows it and the worst parameters.

    Attributes
    ----------
    error
        ||g' - g|| / ||g|| of the whole gradient.
    parameters
        The parameters with a gradient, the worst first.
    """

    error: float
    parameters: tuple[ParameterError, ...]

    def __str__(self) -> str:
        if self.error == 0:
            return (
                "no error: the gradient is that of eager mode, bit by bit; "
                "either nothing but masks was coded, or loss does not call the model it is given, or the gradient is 0"
            )
        rows = [
            (parameter.name, percent(parameter.error), percent(parameter.share)) for parameter in self.parameters[:ROWS]
        ]
        lines = [f"error of the gradient: {percent(self.error)}"]
        lines += table([("parameter", "error", "share of |g|²"), *rows])
        more = self.parameters[ROWS:]
        return "\n".join([*lines, f"  and {len(more)} with {percent(more[0].error)} or less"] if more else lines)


def gradient_error(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> GradientError:
    """Measure the error of a model's gradient: that of codes and tables, and the rounding of compiled kernels.

    The gradient is computed twice, as PyTorch does in eager mode and as the model does, with the same random state, and
    both are held in memory. Gradients in `.grad`, buffers, attributes of modules and PyTorch's random states are
    restored; other objects that `loss` changes in place, as a list, stay changed.

    Compiled code draws other random numbers than eager mode: turn dropout off, and draw noise before, not in `loss`.
    Inductor's option "fallback_random" makes compiled code draw the same numbers, unless codes are rounded
    stochastically, which draws in between. Your own generators are not restored between the two runs.

    Parameters
    ----------
    model
        A model that `compress` changed, or that has activations of `actfit.nn`; or the result of torch.compile with
        `actfit.options(...)`, or a model some of whose modules were compiled so.
    loss
        Computes a tensor of one number from the model, without calling backward; it is called twice.

    Raises
    ------
    KernelError
        If `model` is not such a model, or wrapped by DDP or FSDP; if `loss` is no function, returns something else, or
        a number that depends on no parameter; if it draws random numbers and compiled code would draw others.
    RuntimeError
        PyTorch's own, for reentrant checkpoints, which support only backward().
    """
    _check(model)
    if not callable(loss):
        raise KernelError(f"loss must be a function of the model that gives its loss on a batch, got {shown(loss)}")
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    weights, may_draw = list(named.values()), _draws_as_eager_mode(model)
    with torch.enable_grad():
        with on_copies(model), torch.compiler.set_stance("force_eager"), noting_writes(model) as written:
            for module in _changed(model):
                _make_stock(module)
            before = random_states()
            exact = _gradient(loss(model), weights)
            if not may_draw and not all(map(torch.equal, before, random_states())):
                raise KernelError(
                    "loss must draw no random numbers, as compiled code draws others than eager mode, got some drawn; "
                    "turn dropout off, draw noise before, or compile with fallback_random=True and nearest rounding"
                )
        with on_copies(model, written), torch.compiler.set_stance("default"):
            coded = _gradient(loss(model), weights)
    return _compared([name.replace("_orig_mod.", "") for name in named], coded, exact)


def _check(model: Any) -> None:
    """Raises KernelError if it is not a module that we changed or compiled, or is spread over processes."""
    if not isinstance(model, nn.Module):
        raise KernelError(f"model must be a torch.nn.Module, which has parameters, got {shown(model)}")
    fsdp = sys.modules.get("torch.distributed.fsdp")  # if it was not imported, nothing is sharded
    wrappers = (
        nn.parallel.DistributedDataParallel,
        *((fsdp.FSDPModule, fsdp.FullyShardedDataParallel) if fsdp else ()),
    )
    for module in model.modules():
        if isinstance(module, wrappers):
            raise KernelError(
                "model must be one of a single process, as others would wait for its gradient, got "
                f"{type(module).__name__} in it; give a model that is not wrapped yet"
            )
    if not _changed(model) and not settings_with_codes(model):
        raise KernelError(
            "model must be what compress changed, or what torch.compile(model, options=actfit.options(...)) gave,"
            f" in whole or in part, got a {type(model).__name__} whose gradient is exact"
        )


def _changed(model: nn.Module) -> list[nn.Module]:
    """The modules that save otherwise than PyTorch's."""
    return [module for module in model.modules() if isinstance(module, Activation) or is_captured(module)]


def _make_stock(module: nn.Module) -> None:
    """Make a module save as PyTorch's own, until its attributes are restored."""
    if is_captured(module):
        own = vars(module).pop("forward").own
        if own is not None:
            module.forward = own
    if isinstance(module, Activation):
        module.method, module.bits, module.coefficients = Stock.name, None, None


def _draws_as_eager_mode(model: nn.Module) -> bool:
    """Whether what is compiled of it draws the same random numbers."""
    settings = settings_with_codes(model)
    by_method = [(config.get("fallback_random"), config["custom_partitioner_fn"].method) for config in settings]
    engines = [module.forward.engine for module in model.modules() if is_captured(module)]
    compiling = [engine.method for engine in engines if engine.compiles]
    by_method += [(private.inductor_config.fallback_random, method) for method in compiling]
    return all(falls_back and (not method or method.rounding == "nearest") for falls_back, method in by_method)


def _gradient(loss: Tensor, weights: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradient; not by backward(), which would add to `.grad` and run hooks such as an optimizer's."""
    if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point()):
        raise KernelError(f"loss must return a floating-point tensor of one number, got {shown(loss)}")
    gradients = torch.autograd.grad(loss, weights, allow_unused=True) if loss.requires_grad and weights else ()
    if all(gradient is None for gradient in gradients):
        raise KernelError("loss must depend on parameters of the model that it is given, got a number that does not")
    return list(gradients)


def _compared(names: Sequence[str], coded: Sequence[Tensor | None], exact: Sequence[Tensor | None]) -> GradientError:
    norms: dict[str, tuple[float, float]] = {}
    for name, approximate, reference in zip(names, coded, exact, strict=True):
        if approximate is not None or reference is not None:
            norms[name] = _norms(approximate, reference)
    off, whole = (hypot(*lengths) for lengths in zip(*norms.values(), strict=True))
    parameters = [ParameterError(name, _ratio(*pair), _ratio(pair[1], whole) ** 2) for name, pair in norms.items()]
    parameters.sort(key=lambda parameter: inf if isnan(parameter.error) else parameter.error, reverse=True)
    return GradientError(_ratio(off, whole), tuple(parameters))


def _norms(coded: Tensor | None, exact: Tensor | None) -> tuple[float, float]:
    """Norms of the difference and of the exact gradient; None is 0."""
    a, b = (0.0 if gradient is None else gradient.double() for gradient in (coded, exact))
    return float(torch.as_tensor(a - b).norm()), float(torch.as_tensor(b).norm())


def _ratio(part: float, whole: float) -> float:
    if whole == 0:
        return 0.0 if part == 0 else inf
    return part / whole
