"""The call of a module, whose graphs are captured at the first call with gradients, and run from then on."""

import inspect
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import nn

from actfit.kernels import private
from actfit.kernels.errors import KernelError
from actfit.kernels.graph.engine import Engine, Unit
from actfit.kernels.graph.frames import Breaks, are_ours
from actfit.kernels.graph.units import parts
from actfit.kernels.head.logits import Logits
from actfit.kernels.memory.saved import like
from actfit.kernels.private import exporting, in_dispatch_mode, in_transform

RECURRENT = "PyTorch's compiler captures no recurrent layers"


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
    is_part
        Whether it is inside of another one, whose graphs take it in.
    """

    def __init__(
        self,
        module: nn.Module,
        name: str,
        engine: Engine,
        own: Callable[..., Any] | None = None,
        is_part: bool = False,
    ) -> None:
        super().__init__(name, own)
        self.since: int | None = None  # how many graphs there were before its last call
        self._module, self.engine, self.is_part = weakref.ref(module), engine, is_part

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            inlined = exporting() or (self.is_part and are_ours())
            return self._stock(*args, **kwargs) if inlined else _inside_compile(self, args, kwargs)
        traced = torch.jit.is_tracing() or private.is_fx_symbolic_tracing()
        return self._stock(*args, **kwargs) if traced else self.run(args, kwargs)

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
    def is_given_up(self) -> bool:
        """Whether Dynamo cannot follow its forward."""
        return self.name in self.engine.stock

    @property
    def runs_graphs(self) -> bool:
        """Whether its calls run graphs, so that hooks and modes see none of the operations inside."""
        return not self.is_given_up

    @property
    def runs_compiled(self) -> bool:
        """Whether Inductor compiles them, of which modes see nothing."""
        return self.engine.compiles and self.runs_graphs

    @property
    def module(self) -> Any:
        """The module, which whoever calls it holds."""
        return self._module()

    def run(self, args: Any, kwargs: Any) -> Any:
        """Run the graphs, or stock."""
        if not torch.is_grad_enabled() or self.is_given_up or in_transform() or self._lacks_sizes():
            return self._stock(*args, **kwargs)
        if any(isinstance(value, Logits) for value in (*args, *kwargs.values())):  # as a module for the loss gets
            return self._stock(*args, **kwargs)
        return self._by_graphs(*args, **kwargs)

    def _by_graphs(self, *args: Any, **kwargs: Any) -> Any:
        engine, before, self.since = self.engine, self.engine.runs, len(self.engine.graphs)
        breaks = None if self.key in engine.entries else Breaks()
        try:
            try:
                result = engine.call(self, self.module, args, kwargs)
            except private.TorchDynamoException as error:
                self._forget(before)
                self.give_up(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}", self.module)
                result = self._stock(*args, **kwargs)
        except Exception:
            self._forget(before)
            inside = f"{self.name}." if self.name else ""
            for name in [name for name in engine.stock if name == self.name or name.startswith(inside)]:
                del engine.stock[name]  # an error of forward itself is none of its capture
            raise
        if self.is_given_up or engine.runs == before:
            self._tell(breaks)
        else:
            engine.skipped.pop(self.name, None)
        return result

    def _forget(self, before: int) -> None:
        """Capture it anew at its next call, as Dynamo would skip it, if no graph has run since there were so many."""
        if self.engine.runs == before:  # else it ran, and a checkpoint around it has computed again what it needs
            self.engine.entries.pop(self.key, None)

    def _tell(self, breaks: Breaks | None) -> None:
        """Warn, once, that it ran as stock."""
        engine, name = self.engine, self.name or "the model"
        is_cell, in_mode = isinstance(self.module, nn.RNNBase), in_dispatch_mode()
        if not self.is_given_up and breaks is not None and not is_cell and not in_mode:
            self.give_up(breaks.said or "no graph was captured", self.module)
        if self.is_given_up:
            what = (
                "cannot be captured whole, but in parts" if self.split() else "runs as stock, as it cannot be captured"
            )
            engine.warn_once(like(name), f"{name} {what}: {engine.stock[self.name]}")
            return
        reason = engine.skipped.get(self.name, "no graph was captured")
        if is_cell:
            reason = RECURRENT
        elif in_mode:
            engine.entries.pop(self.key, None)  # Dynamo would skip it outside of the mode, too
            reason = "within a TorchDispatchMode PyTorch runs no captured graphs"
        engine.skipped[self.name] = reason
        engine.warn_once(f"{name} {reason}", f"{name} ran as stock: {reason}")

    def give_up(self, reason: str, culprit: nn.Module) -> None:
        """Run it as stock from now on, and from the frame on that Dynamo is in; its parts are captured.

        Those are given up, too, that the culprit is in, a module whose forward cannot be captured.
        """
        self.engine.stock[self.name] = reason
        if self.since is not None:
            del self.engine.graphs[self.since :]  # of frames before that one
        for part in self.split():
            if culprit is not self.module and culprit in part.module.modules():
                part.give_up(reason, culprit)

    def split(self, deeply: bool = False) -> list["Captured"]:
        """Let its parts be captured where they are called outside of its graphs; and deeply, the parts of these."""
        split = []
        for name, part in parts(self.module, self.engine.method is not None):
            name = f"{self.name}.{name}" if self.name else name
            if not isinstance(own := vars(part).get("forward"), Captured):
                part.forward = own = Captured(part, name, self.engine, own, is_part=True)
            split.append(own)
            if deeply or own.is_given_up:
                own.split(deeply)
        return split

    def _lacks_sizes(self) -> bool:
        """Whether lazy layers have no weights yet; not once it was captured."""
        return self.kind is None and any(map(nn.parameter.is_lazy, self.module.parameters()))

    def _stock(self, *args: Any, **kwargs: Any) -> Any:
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def __reduce__(self) -> Any:
        return Captured, (self.module, self.name, self.engine, self.own, self.is_part)


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
