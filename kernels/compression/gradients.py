"""How far the gradient of a compiled model is from the exact one: both are computed on the same batch."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, inf, isnan
from typing import Any

import torch
from torch import Tensor, nn

from kernels.compression.report import configs, percent, table
from kernels.errors import KernelError, shown
from kernels.memory.isolated import on_copies

ROWS = 10  # parameters that are shown


@dataclass(frozen=True)
class ParameterError:
    """The error of one parameter's gradient g.

    Attributes
    ----------
    name
        In the model, before it was compiled.
    error
        ||g' - g|| / ||g||; where g is 0, 0 or infinity.
    share
        ||g||² over that of the whole gradient: where this is small, the error says little.
    """

    name: str
    error: float
    share: float


@dataclass(frozen=True)
class GradientError:
    """The error of a gradient; `str(...)` tells it, and the worst parameters.

    Attributes
    ----------
    error
        ||g' - g|| / ||g|| of the whole gradient.
    parameters
        Those that have a gradient, the worst first.
    """

    error: float
    parameters: tuple[ParameterError, ...]

    def __str__(self) -> str:
        if self.error == 0:
            return (
                "no error: the gradient is that of eager mode, bit by bit; "
                "either nothing but masks was coded, or loss does not call the model it is given, or the gradient is 0"
            )
        rows = [(one.name, percent(one.error), percent(one.share)) for one in self.parameters[:ROWS]]
        lines = [f"error of the gradient: {percent(self.error)}"]
        lines += table([("parameter", "error", "share of |g|²"), *rows])
        more = self.parameters[ROWS:]
        return "\n".join([*lines, f"  and {len(more)} with {percent(more[0].error)} or less"] if more else lines)


def gradient_error(compiled: nn.Module, loss: Callable[[nn.Module], Tensor]) -> GradientError:
    """Measure the error of a compiled model's gradient: what codes do to it, and the rounding of compiled kernels.

    The gradient is computed twice, in eager mode and as compiled, with the same random state, and both are held. What
    parameters have as `.grad`, buffers, attributes of modules and PyTorch's random states are afterwards what they
    were; what `loss` changes in place elsewhere, as in a list, stays changed.

    Compiled code draws other random numbers than eager mode: turn dropout off, and draw noise before, not in `loss`.
    Compiled with the option "fallback_random" of Inductor, it draws the same ones, unless codes are rounded
    stochastically, which draws between them. A generator of one's own goes on from the first run to the second,
    unnoticed.

    Parameters
    ----------
    compiled
        The model that torch.compile gave with `options(...)`, or a model some modules of which were compiled so.
    loss
        From the model that it is given to a tensor of one number, without a call of backward; it is called twice.

    Raises
    ------
    KernelError
        If `compiled` is no such model, or one under DDP or FSDP; if `loss` gives something else, or a number that
        depends on no parameter; if it draws random numbers and compiled code would draw others.
    RuntimeError
        PyTorch's own, for reentrant checkpoints, which only know backward().
    """
    _check(compiled)
    named = {name: one for name, one in compiled.named_parameters() if one.requires_grad}
    weights, may_draw = list(named.values()), all(map(_draws_as_eager_mode, configs(compiled)))
    with torch.enable_grad():
        with on_copies(compiled), torch.compiler.set_stance("force_eager"):
            before = _random_states()
            exact = _gradient(loss(compiled), weights)
            if not may_draw and not all(map(torch.equal, before, _random_states())):
                raise KernelError(
                    "loss must draw no random numbers, as compiled code draws others than eager mode, got some drawn; "
                    'turn dropout off, draw noise before, or compile with "fallback_random": True and nearest rounding'
                )
        with on_copies(compiled), torch.compiler.set_stance("default"):
            coded = _gradient(loss(compiled), weights)
    return _compared([name.replace("_orig_mod.", "") for name in named], coded, exact)


def _check(compiled: Any) -> None:
    """Raises KernelError for what has no parameters, or has them in other processes, too."""
    if not isinstance(compiled, nn.Module):
        raise KernelError(f"compiled must be a torch.nn.Module, which has parameters, got {shown(compiled)}")
    fsdp = sys.modules.get("torch.distributed.fsdp")  # without which nothing can be sharded
    wrappers = (
        nn.parallel.DistributedDataParallel,
        *((fsdp.FSDPModule, fsdp.FullyShardedDataParallel) if fsdp else ()),
    )
    for module in compiled.modules():
        if isinstance(module, wrappers):
            raise KernelError(
                "compiled must be a model of one process, as others would wait for its gradient, got "
                f"{type(module).__name__} in it; give a compiled model that is not wrapped yet"
            )


def _draws_as_eager_mode(config: Mapping[str, Any]) -> bool:
    return bool(config.get("fallback_random")) and config["custom_partitioner_fn"].method.rounding == "nearest"


def _gradient(loss: Tensor, weights: Sequence[Tensor]) -> list[Tensor | None]:
    """Not by backward(), which would add to what parameters hold, and run hooks such as an optimizer's."""
    if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point()):
        raise KernelError(f"loss must return a floating-point tensor of one number, got {shown(loss)}")
    found = torch.autograd.grad(loss, weights, allow_unused=True) if loss.requires_grad and weights else ()
    if all(one is None for one in found):
        raise KernelError("loss must depend on parameters of the model that it is given, got a number that does not")
    return list(found)


def _random_states() -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


def _compared(names: Sequence[str], coded: Sequence[Tensor | None], exact: Sequence[Tensor | None]) -> GradientError:
    norms: dict[str, tuple[float, float]] = {}
    for name, one, other in zip(names, coded, exact, strict=True):
        if one is not None or other is not None:
            norms[name] = _norms(one, other)
    off, whole = (hypot(*lengths) for lengths in zip(*norms.values(), strict=True))
    parameters = [ParameterError(name, _ratio(*pair), _ratio(pair[1], whole) ** 2) for name, pair in norms.items()]
    parameters.sort(key=lambda one: inf if isnan(one.error) else one.error, reverse=True)
    return GradientError(_ratio(off, whole), tuple(parameters))


def _norms(coded: Tensor | None, exact: Tensor | None) -> tuple[float, float]:
    """Of the difference, and of the exact gradient; None is 0."""
    a, b = (0.0 if one is None else one.double() for one in (coded, exact))
    return float(torch.as_tensor(a - b).norm()), float(torch.as_tensor(b).norm())


def _ratio(part: float, whole: float) -> float:
    if whole == 0:
        return 0.0 if part == 0 else inf
    return part / whole
