"""How many bytes a model or a function saves for backward."""

import inspect
from collections.abc import Callable, Mapping, Set
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from actfit.kernels.errors import KernelError, shown
from actfit.kernels.memory.accounting import Within, within_of
from actfit.kernels.memory.compiled import is_captured, is_compiled, saved_by_compiled
from actfit.kernels.memory.isolated import forget_fakes, hides_memory, noting_writes, on_copies, on_fakes, train
from actfit.kernels.memory.making import line
from actfit.kernels.memory.recorder import Births, Recorder
from actfit.kernels.memory.saved import Saved
from actfit.kernels.memory.storages import addresses


def saved_bytes(
    model: nn.Module | Callable[..., Any],
    /,
    *args: Any,
    fake: bool | None = None,
    accounting: str = "as-run",
    **kwargs: Any,
) -> Saved:
    """What a call of a model saves for backward.

    Gradients are on; autocast, and training or evaluation, are as they are when it is called.

    Parameters
    ----------
    model
        A module or a function. What torch.compile compiled runs for real twice, and is measured by its graph and by the
        allocator's statistics; what `compress` changed only if fake tensors do not work.
    *args, **kwargs
        What the model is called with. A single mapping is unpacked into keyword arguments, as for `inputs` of
        `make_plan`, if the module's forward takes these names; a single tuple, as there, if it takes so many arguments.
    fake
        Whether a copy of the module runs on fake tensors, which takes neither memory nor time; None: if it can. A real
        run leaves the module unchanged. A function runs for real.
    accounting
        "as-run", or "cuda": tensors on the CPU count as CUDA would save them, see `actfit.kernels.memory.accounting`.

    Returns
    -------
    Saved
        All saved tensors, each with its bytes and what saves it.

    Raises
    ------
    KernelError
        For invalid arguments. Exceptions of the model are passed on.
    """
    within = within_of(accounting)
    _check(model, fake, accounting)
    args, kwargs = unpacked(model, args, kwargs)
    if is_compiled(model):
        return saved_by_compiled(model, args, kwargs)
    owner = getattr(model, "__self__", None)  # of a method
    if isinstance(owner, nn.Module) and any(map(is_captured, owner.modules())):
        return saved_by_compiled(model, args, kwargs, owner)
    if isinstance(model, nn.Module):
        return trial(model, args, kwargs, within, fake=fake if accounting == "as-run" else True)
    return _recorded(model, args, kwargs)[0]


def _check(model: Any, fake: bool | None, accounting: str) -> None:
    """Raise KernelError for what cannot be measured, or not so."""
    if not callable(model):
        raise KernelError(f"model must be a module or a function, got {type(model).__name__}")
    if fake not in (None, True, False):
        raise KernelError(f"fake must be True, False or None, got {shown(fake)}")
    if isinstance(model, nn.Module) and not has_forward(model):
        raise KernelError(
            f"model must have a forward, got {type(model).__name__}; give the model that it is part of, or a function"
        )
    if is_compiled(model) and (fake or accounting != "as-run"):
        raise KernelError(
            "what torch.compile compiled must be run as it is, for real; leave fake and accounting out, or give the"
            " model that was compiled"
        )
    if accounting == "cuda" and (fake is False or not isinstance(model, nn.Module)):
        raise KernelError(
            "accounting='cuda' must go with a module on fake tensors, as CUDA's operations do not run on a CPU; got"
            f" {'fake=False' if fake is False else 'a function'}"
        )
    if fake and not isinstance(model, nn.Module):
        raise KernelError("fake=True must go with a module, whose parameters can be found; got a function")


def has_forward(model: nn.Module) -> bool:
    """Whether it can be called, unlike an nn.ModuleList."""
    return "forward" in vars(model) or getattr(type(model), "forward", None) is not nn.Module.forward


def unpacked(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments; a single mapping, tuple or list becomes the arguments if the module takes these."""
    if kwargs or len(args) != 1 or not isinstance(args[0], Mapping | tuple | list) or not isinstance(model, nn.Module):
        return args, kwargs
    if isinstance(args[0], Mapping):
        named = {name: value for name, value in args[0].items() if isinstance(name, str)}
        return ((), named) if len(named) == len(args[0]) and _takes(model, (), named) else (args, kwargs)
    several = tuple(args[0])
    # A list, as of images of several sizes, is more often one argument.
    is_one = isinstance(args[0], list) and _takes(model, args, {})
    return (several, {}) if not is_one and _takes(model, several, {}) else (args, kwargs)


def _takes(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a module's forward takes these arguments, by its signature."""
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return False
    return True


def trial(
    model: nn.Module,
    args: Any,
    kwargs: Any,
    within: Within = nullcontext,
    *,
    fake: bool | None = None,
    training: bool = False,
) -> Saved:
    """What a call saves, by `Recorder`; the model stays unchanged.

    Forward runs in what `within` makes, and with `training` in training mode. It runs on fake tensors if `fake`, which
    raises KernelError where these do not work, or if it is None and they do; else for real.
    """
    if fake or (fake is None and not hides_memory(model)):
        try:
            return _faked(model, args, kwargs, within, training)
        except LeakError:
            raise
        except Exception as error:  # of any kind; if fake tensors were not the cause, the real run raises it again
            if fake:
                raise KernelError(
                    f"model must run on fake tensors for fake=True or accounting='cuda', got {line(error)};"
                    " saved_bytes(model, inputs) runs it for real"
                ) from error
    if any(map(is_captured, model.modules())):
        return saved_by_compiled(model, args, kwargs)
    with on_copies(model), noting_writes(model):
        if training:
            train(model)
        return _recorded(model, args, kwargs, within)[0]


class LeakError(KernelError):
    """A model stored fake tensors outside of itself."""


def _faked(model: nn.Module, args: Any, kwargs: Any, within: Within, training: bool) -> Saved:
    births: Births | None = None
    try:
        with on_fakes(model, args, kwargs) as (copied, positional, named):
            if training:
                train(copied)
            # A closure, as in a wrapped forward, was not copied: it would run the original model.
            foreign = addresses(list(model.parameters())) - addresses(list(copied.parameters()))
            saved, births = _recorded(copied, positional, named, within, foreign)
        del copied, positional, named
    finally:
        torch.clear_autocast_cache()
        clean = births is None or forget_fakes(births.sizes)
    if not clean:
        raise LeakError(
            "model must hold what it computes within itself to be run on fake tensors, and has put some elsewhere (a"
            " hook's list, a module of Python); start without what puts it there, or with fake=False in saved_bytes"
        )
    return saved


def _recorded(
    model: Callable[..., Any], args: Any, kwargs: Any, within: Within = nullcontext, foreign: Set[int] = frozenset()
) -> tuple[Saved, Births]:
    recorder = Recorder(model if isinstance(model, nn.Module) else None, foreign)
    torch.clear_autocast_cache()  # cached copies of weights would count as inputs
    with torch.enable_grad():
        with recorder, within():
            output = model(*args, **kwargs)
        if recorder.births.refused is not None:
            raise recorder.births.refused
        return recorder.saved(output), recorder.births
