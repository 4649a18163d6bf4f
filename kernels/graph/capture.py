"""The call of a module, whose graphs are captured at the first call with gradients, and run from then on."""

import inspect
import weakref
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import torch
from torch import nn

from actfit.kernels import private
from actfit.kernels.errors import KernelError
from actfit.kernels.graph.engine import Engine, Unit
from actfit.kernels.head.logits import Logits
from actfit.kernels.private import exporting, in_dispatch_mode, in_transform


class ScriptError(KernelError, AttributeError):
    """Raised when torch.jit.script asks for code; an AttributeError, as others only look whether there is some."""


class Captured(Unit):
    """In place of a module's `forward`: runs the captured graphs, or stock where there is nothing to save.

    Measures know it by `runs_graphs`.

    Parameters
    ----------
    module, name
        The module, held weakly, as it holds this object; and its name in the model.
    engine
        Shared by all modules of the model.
    own
        A `forward` that the instance had already; None: that of its class.
    """

    runs_graphs = True

    def __init__(self, module: nn.Module, name: str, engine: Engine, own: Callable[..., Any] | None = None) -> None:
        super().__init__(name, own)
        self._module, self.engine = weakref.ref(module), engine

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self._stock(*args, **kwargs) if exporting() else _inside_compile(self, args, kwargs)
        return self._stock(*args, **kwargs) if torch.jit.is_tracing() else self.run(args, kwargs)

    @property
    def __code__(self) -> CodeType:  # torch.export reads it
        code: CodeType = inspect.unwrap(type(self.module).forward).__code__
        return code

    @property
    def __globals__(self) -> Any:
        raise ScriptError(
            "model must be stock for torch.jit.script, which compiles the code of each forward, got one that"
            " compress(...) changed; call remove() of its handle, or use torch.compile or torch.export"
        )

    @property
    def __signature__(self) -> inspect.Signature:  # by which trainers choose what to give
        return inspect.signature(self.own or type(self.module).forward.__get__(self.module))

    @property
    def module(self) -> Any:
        """The module, which whoever calls it holds."""
        return self._module()

    def run(self, args: Any, kwargs: Any) -> Any:
        """Run the graphs, or stock."""
        engine = self.engine
        if not torch.is_grad_enabled() or self.name in engine.stock or in_transform() or self._lacks_sizes():
            return self._stock(*args, **kwargs)
        if any(isinstance(value, Logits) for value in (*args, *kwargs.values())):  # as a module for the loss gets
            return self._stock(*args, **kwargs)
        return self._by_graphs(*args, **kwargs)

    def _by_graphs(self, *args: Any, **kwargs: Any) -> Any:
        engine = self.engine
        module, before = self.module, engine.runs
        breaks = None if self.key in engine.entries else dict(private.counters["graph_break"])
        try:
            result = engine.call(self, module, args, kwargs)
        except Exception as error:
            if engine.runs == before:  # else it ran, and a checkpoint around it has computed again what it needs
                engine.entries.pop(self.key, None)  # Dynamo would skip it from now on
            if not isinstance(error, private.TorchDynamoException):
                raise
            return self._without_capture(error, args, kwargs)
        known = engine.skipped.pop(self.name, "no graph was captured")
        if engine.runs == before:
            mode = in_dispatch_mode()
            if mode:
                engine.entries.pop(self.key, None)  # Dynamo would skip it outside of the mode, too
            said = "within a TorchDispatchMode PyTorch runs no captured graphs" if mode else _said(breaks)
            reason = engine.skipped[self.name] = said or known
            engine.warn_once(f"{self.name} {reason}", f"{self.name or 'the model'} ran as stock: {reason}")
        return result

    def _without_capture(self, error: Exception, args: Any, kwargs: Any) -> Any:
        """Run stock, from now on if it raises nothing: an error of forward itself is raised as stock raises it."""
        result = self._stock(*args, **kwargs)
        reason, name = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}", self.name or "the model"
        self.engine.stock[self.name] = reason
        self.engine.warn_once(self.name, f"{name} runs as stock, as it cannot be captured: {reason}")
        return result

    def _lacks_sizes(self) -> bool:
        """Whether lazy layers have no weights yet; not once it was captured."""
        return self.kind is None and any(map(nn.parameter.is_lazy, self.module.parameters()))

    def _stock(self, *args: Any, **kwargs: Any) -> Any:
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def __reduce__(self) -> Any:
        return Captured, (self.module, self.name, self.engine, self.own)


def _said(before: Mapping[str, int] | None) -> str:
    """What Dynamo says of code that it could not capture, since its counts were these; nothing if it said that once."""
    if before is None:
        return ""
    new = [text for text, count in dict(private.counters["graph_break"]).items() if count > before.get(text, 0)]
    return "no graph was captured: " + new[-1].partition("\n")[0] if new else ""


INSIDE = (
    "torch.compile runs a model that compress(...) changed: its blocks run by graphs of their own, outside of the "
    "compiled ones; write compress(model, ..., compiled=True), which compiles them, and leave torch.compile out"
)


@torch.compiler.disable(reason=INSIDE)
def _inside_compile(call: Captured, args: Any, kwargs: Any) -> Any:
    """Run the blocks' own graphs beside those of a surrounding torch.compile, which would take them in unsaved."""
    if not torch.compiler.is_compiling():  # else another thread compiles, and this call is in no compiled code
        call.engine.warn_once("torch.compile", INSIDE)
    return call.run(args, kwargs)
