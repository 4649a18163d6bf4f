"""The call of a module, whose graphs are captured at the first call with gradients, and run from then on."""

import copy
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Self

import torch
from torch import Tensor, nn

from kernels.graph import private
from kernels.graph.execute import Run, execute
from kernels.graph.partition import Partitioner
from kernels.graph.ways.policies import way_of
from kernels.memory.storages import tensors
from kernels.methods.every_tensor import EveryTensor
from kernels.private import exporting, in_transform


@dataclass(eq=False)
class Engine:
    """What all captured modules of a model share: the policy, and the graphs by class.

    Attributes
    ----------
    bits
        Of a saved tensor; None: exact.
    rounding
        "nearest" or "stochastic".
    policy
        The name of a way; None: activations are exact.
    stock
        Modules that run as stock, and the reason.
    """

    bits: int | None
    rounding: str = "nearest"
    policy: str | None = None
    stock: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Dynamo asks for it at each input that is no leaf, and hides the warning, but not where warnings are errors.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning, "torch")
        self.entries: dict[Any, Callable[..., Any]] = {}
        self.runs = 0  # of forward graphs
        self.warned: set[str] = set()
        method = None if self.bits is None else EveryTensor(self.bits, self.rounding)
        self.partition = Partitioner(method, None if self.policy is None else way_of(self.policy))
        self._backend = private.backend(self.partition, self._execute_forward, execute)

    def entry(self, call: "Captured", module: nn.Module) -> Callable[..., Any]:
        """The captured call of modules of one class and size, with a code object of its own, and so an own cache.

        Of another size: else Dynamo would take sizes that differ between blocks for sizes that change.
        """
        if call.sizes is None:
            call.sizes = tuple((tuple(p.shape), p.dtype) for p in module.parameters())
        # What is frozen, too: torch 2.9 runs a graph on without gradients where weights are thawed later.
        trained = tuple(p.requires_grad for p in module.parameters())
        call.key = (type(module) if call.own is None else call, call.sizes, trained)
        if call.key not in self.entries:
            function = _of_class if call.own is None else _of_instance
            code = function.__code__.replace(co_name=f"block_{id(self)}_{len(self.entries)}")  # Dynamo goes by the name
            own = FunctionType(code, function.__globals__, code.co_name)
            self.entries[call.key] = private.captured(own, self._backend)
        return self.entries[call.key]

    def warn_once(self, about: str, text: str) -> None:
        if about not in self.warned:
            self.warned.add(about)
            warnings.warn(text, stacklevel=4)

    def _execute_forward(self, module: Any, inputs: Any = ()) -> Run:
        run = execute(module, inputs)

        def counted(given: list[Any]) -> Any:
            self.runs += 1
            return run(given)

        counted._boxed_call = True  # type: ignore[attr-defined]
        return counted

    def __reduce__(self) -> Any:
        return Engine, (self.bits, self.rounding, self.policy)  # a copy captures anew

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = type(self)(self.bits, self.rounding, self.policy)
        memo[id(self)] = made
        return made


def _of_class(forward: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
    return forward(module, *args, **kwargs)


def _of_instance(forward: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
    return forward(*args, **kwargs)


class Captured:
    """In place of a module's `forward`: runs the captured graphs, or stock where there is nothing to save.

    Parameters
    ----------
    module, name
        The module, held weakly, as it holds this object; and its name in the model.
    engine
        Shared by all modules of the model.
    own
        A `forward` that the instance had already; None: that of its class.
    """

    def __init__(self, module: nn.Module, name: str, engine: Engine, own: Callable[..., Any] | None = None) -> None:
        self._module, self.name, self.engine, self.own = weakref.ref(module), name, engine, own
        self.key: Any = None  # of the engine's entry at the last call
        self.sizes: Any = None  # of the parameters, at the first call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self._stock(*args, **kwargs) if exporting() else _inside_compile(self, args, kwargs)
        return self.run(args, kwargs)

    @property
    def module(self) -> Any:
        """The module, which whoever calls it holds."""
        return self._module()

    def run(self, args: Any, kwargs: Any) -> Any:
        """Run the graphs, or stock."""
        engine = self.engine
        if not torch.is_grad_enabled() or self.name in engine.stock or in_transform():
            return self._stock(*args, **kwargs)
        module, before = self.module, engine.runs
        try:
            with private.settings():
                result = engine.entry(self, module)(self.own or type(module).forward, module, args, kwargs)
        except Exception as error:
            engine.entries.pop(self.key, None)  # Dynamo would skip it from now on
            if not private.failed_to_capture(error):
                raise
            return self._without_capture(error, args, kwargs)
        if engine.runs == before:
            engine.warn_once(self.name, f"{self.name or 'the model'} ran as stock: no graph of it was captured")
        self._tell_of_unused(result)
        return result

    def _without_capture(self, error: Exception, args: Any, kwargs: Any) -> Any:
        """Run stock, from now on if it raises nothing: an error of forward itself is raised as stock raises it."""
        result = self._stock(*args, **kwargs)
        reason, name = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}", self.name or "the model"
        self.engine.stock[self.name] = reason
        self.engine.warn_once(self.name, f"{name} runs as stock, as it cannot be captured: {reason}")
        return result

    def _tell_of_unused(self, result: Any) -> None:
        """Warn once in backward if one of several results has no gradient: zeros stand for it, where stock has None."""
        if isinstance(result, Tensor):
            return
        nodes = [tensor.grad_fn for tensor in tensors(result) if tensor.grad_fn]
        engine, name = self.engine, self.name

        def look(gradients: Any) -> None:
            if any(gradient is None for gradient in gradients):
                engine.warn_once(
                    f"unused {name}",
                    f"a result of {name or 'the model'} has no gradient: weights that it alone depends on get zeros"
                    " there, where they would have none; optimizers with weight decay change them",
                )

        for node in set(nodes) if len(nodes) > 1 else ():
            node.register_prehook(look)

    def _stock(self, *args: Any, **kwargs: Any) -> Any:
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Captured":
        return Captured(
            copy.deepcopy(self.module, memo),
            self.name,
            copy.deepcopy(self.engine, memo),
            copy.deepcopy(self.own, memo),
        )

    def __reduce__(self) -> Any:
        return Captured, (self.module, self.name, self.engine, self.own)


INSIDE = (
    "torch.compile runs a model that compress(...) changed: its blocks run by PyTorch's own kernels, outside of the "
    "compiled graphs; to compile them, too, leave compress out and write "
    "torch.compile(model, options=compression.options(bits=8))"
)


@torch.compiler.disable(reason=INSIDE)
def _inside_compile(call: Captured, args: Any, kwargs: Any) -> Any:
    """Run the blocks' own graphs beside those of a surrounding torch.compile, which would take them in unsaved."""
    if not torch.compiler.is_compiling():  # else another thread compiles, and this call is in no compiled code
        call.engine.warn_once("torch.compile", INSIDE)
    return call.run(args, kwargs)
