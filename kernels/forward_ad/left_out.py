"""What torch.export and torch.fx silently leave out of a graph, which would change its gradients."""

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from kernels import private
from kernels.memory.compiled import nodes
from kernels.memory.isolated import on_fakes

_HARMLESS = ("kernels.", "torch.utils.checkpoint._NoopSaveInputs")


def left_out(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A module hook or custom backward of the model that a graph would lack, or ""."""
    for name, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            return f"a backward hook on {name or 'the model'}, which would be left out"
    try:
        with on_fakes(model, args, kwargs) as (copied, given, named), torch.enable_grad():
            made = nodes(copied(*given, **named))
            own = {_function(node) for node in made if isinstance(node, private.BackwardCFunction)}
    except Exception:  # whoever makes the graph raises a better error
        return ""
    finally:
        torch.clear_autocast_cache()  # it may hold fakes
    functions = sorted(name for name in own if not name.startswith(_HARMLESS))
    return f"the autograd.Function {functions[0]}, whose backward would be left out" if functions else ""


def _function(node: Any) -> str:
    function = type(node)._forward_cls
    return f"{function.__module__}.{function.__qualname__}"


class NoHooks(TorchFunctionMode):
    """Refuses hooks on tensors, which torch.export leaves out."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "hook" in getattr(func, "__name__", ""):
            raise RuntimeError("a hook on a tensor, which would be left out")
        return func(*args, **(kwargs or {}))
