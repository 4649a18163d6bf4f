"""Dynamo, as it captures the frames of a module's call: its settings, and what becomes of frames that it cannot follow.

A frame that Dynamo leaves, as one that calls a recurrent layer, is followed no further: there the module is given up,
and its parts are captured one by one. What Dynamo itself would do depends on what it left before in this process.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from types import CodeType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn

from actfit.kernels import private
from actfit.kernels.memory.isolated import quiet
from actfit.kernels.modes import are_left_for_capture, fakes_are_made, without_dispatch_modes

COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")  # have frames of their own before Python 3.12
LIMIT = 1 << 10  # sizes and other variants of a block that have graphs of their own
OF_DYNAMO = {
    "recompile_limit": LIMIT,
    "accumulated_recompile_limit": LIMIT,
    "skip_nnmodule_hook_guards": False,
    "optimize_ddp": False,  # else DDP's buckets cut a block's graph in parts
    "allow_empty_graphs": True,  # else a block that only gives back its input once runs as stock ever after
    "trace_numpy": False,  # else random numbers are PyTorch's, and sums have another order
    "allow_rnn": True,  # else the whole frame is left that calls a recurrent layer, not only this call
}


def captured(function: Callable[..., Any], backend: Callable[..., Any], unit: Callable[[], Any]) -> Callable[..., Any]:
    """The function, whose graphs Dynamo captures for the backend; `unit` gives the module's call that goes on."""
    callback: Any = None

    def named(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        _name_modules(graph.graph, unit().module, callback.module)
        return backend(graph, inputs)

    def kept(guards: Sequence[Any]) -> list[bool]:
        """Not those of fake tensors, which none passes again, where `seen_by_guards` tells these apart."""
        return [not (callback.is_call and g.guard_type == "TENSOR_MATCH" and private.is_fake(g.value)) for g in guards]

    context = private.optimize(named, guard_filter_fn=kept)
    if hasattr(context, "callback"):  # else an environment variable turns Dynamo off
        callback = context.callback
        callback.__class__, callback.unit, callback.call = _settled(), unit, function.__code__
    made: Callable[..., Any] = context(function)
    return made


_capturing = threading.local()


@torch.compiler.assume_constant_result
def are_ours() -> bool:
    """Whether it is for a captured module that Dynamo follows this thread's code; it can follow this function."""
    return getattr(_capturing, "on", False)


@cache
def _settled() -> type:
    class Settled(private.CatchErrorsWrapper):
        """Dynamo's callback for a frame: with no limit of variants, and so that hooks added later are called.

        Around each call of a captured function, settings would take a tenth of a narrow block's time.
        """

        unit: Callable[[], Any]
        call: CodeType  # of the function that is captured
        is_call = False  # whether the frame that is captured is that function's
        module: nn.Module | None = None  # that computes what this frame does
        said = ""  # by Dynamo, last
        reasons: ClassVar[WeakKeyDictionary[CodeType, str]] = WeakKeyDictionary()  # Dynamo says each only once

        def __call__(self, frame: Any, *others: Any, **named: Any) -> Any:
            unit, (code, values) = self.unit(), private.code_and_values(frame)
            inline = code is self.call or code.co_name in COMPREHENSIONS
            module = unit.module if inline else _module_of(code, values)
            captures = are_left_for_capture(unit.engine.compiles)
            if unit.is_given_up or not captures or isinstance(module, nn.RNNBase):
                return _left()
            before = Breaks()
            modes = without_dispatch_modes() if private.in_dispatch_mode() else nullcontext()
            settings = OF_DYNAMO | ({"automatic_dynamic_shapes": False} if fakes_are_made() else {})  # see `of_tracing`
            with (
                private.compile_lock,
                patched(private.dynamo_config, settings),
                quiet(),
                modes,
                _recurrent_layers_left(),
            ):
                self.module, self.is_call, _capturing.on = module, code is self.call, True
                try:
                    with _frames_left_whole() if module is not None else nullcontext():
                        result = super().__call__(frame, *others, **named)
                finally:
                    self.module, _capturing.on = None, False  # Dynamo keeps this for ever
            self.said = before.said or self.said
            left = result.guarded_code is None and (before.are_more or _computes(code, values))
            if left and module is not None:
                reason = self.reasons.setdefault(code, self.said or "its forward cannot be followed")
                unit.give_up(reason, module)
                return _left()
            return result

    return Settled


def _module_of(code: CodeType, values: Mapping[str, Any]) -> nn.Module | None:
    """The module of which a frame runs a method, or the rest of one; None for another function's frame."""
    own = (value for name, value in values.items() if not name.startswith("___"))  # as Dynamo names others
    first: Any = next(own, None)
    first = first.module if hasattr(first, "is_given_up") else first  # a part's wrapper
    name = re.sub(r"^torch_dynamo_resume_in_(\w+)_at_\d+$", r"\1", code.co_name)
    return first if isinstance(first, nn.Module) and (hasattr(type(first), name) or name == "inner") else None


@contextmanager
def _frames_left_whole() -> Iterator[None]:
    """Lets Dynamo leave a frame that it cannot resume, not what comes before in a graph and the rest without a word."""
    kind, own = private.InstructionTranslatorBase, private.InstructionTranslatorBase.step_graph_break

    def leave(*_: Any) -> None:
        raise private.SkipFrame("it cannot be resumed")

    kind.step_graph_break = leave
    try:
        yield
    finally:
        kind.step_graph_break = own


OWN = "L['module']"  # by which a path of Dynamo's begins in the frame that calls a module's forward


def _name_modules(graph: fx.Graph, outer: nn.Module, module: nn.Module | None) -> None:
    """Name the modules that operations are in by their names in an outer one.

    Dynamo's paths begin in the frame of a module inside, or lead through the wrappers of parts.
    """
    names = {str(id(inner)): name for name, inner in outer.named_modules()}
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack") or {str(id(module)): (OWN, type(module))}
        for key, (path, kind) in stack.items():
            name = names.get(key.partition("@")[0])  # what is called again has a number behind it
            if name is not None and (module is not outer or not path.startswith(OWN) or ".forward." in path):
                node.meta["nn_module_stack"] = stack = {**stack, key: (f"{OWN}.{name}" if name else OWN, kind)}


def _computes(code: CodeType, values: Mapping[str, Any]) -> bool:
    """Whether it is a forward, not of torch's own, or a part of one: Dynamo of 2.9 leaves some without a word."""
    inline = code.co_name in COMPREHENSIONS and any(isinstance(value, Tensor) for value in values.values())
    return inline or (code.co_name == "forward" and not private.trace_rules.check(code))


def _left() -> Any:
    """Lets Python run this frame and what it calls; others of the same code are tried."""
    strategy = private.FrameExecStrategy(private.FrameAction.SKIP, private.FrameAction.SKIP)
    return private.ConvertFrameReturn(frame_exec_strategy=strategy, apply_to_code=False)


class Breaks:
    """What Dynamo could not capture since this was made."""

    def __init__(self) -> None:
        self._count, self._texts = _count(), dict(private.counters["graph_break"])

    @property
    def are_more(self) -> bool:
        """Whether there are any."""
        return _count() > self._count

    @property
    def said(self) -> str:
        """Dynamo's reason, in a line; "" if there is none, or if it was given before."""
        now = dict(private.counters["graph_break"])
        new = [text for text, count in now.items() if count > self._texts.get(text, 0)]
        return new[-1].partition("\n")[0] if new else ""


def _count() -> int:
    """Of breaks, and of frames that it gave up: the one or the other, by the release."""
    frames = private.counters["frames"]
    return int(frames["total"] - frames["ok"] + sum(private.counters["graph_break"].values()))


@contextmanager
def _recurrent_layers_left() -> Iterator[None]:
    """Lets Dynamo leave calls of recurrent layers to PyTorch, whose kernels for them a trace would write out."""
    marks = {"_torchdynamo_disable": True, "_torchdynamo_disable_msg": "recurrent"}
    functions: list[Any] = [kind.forward for kind in (nn.RNN, nn.LSTM, nn.GRU)]
    before = [{name: vars(function)[name] for name in marks if name in vars(function)} for function in functions]
    for function in functions:
        vars(function).update(marks)
    try:
        yield
    finally:
        for function, own in zip(functions, before, strict=True):
            for name in marks:
                del vars(function)[name]
            vars(function).update(own)


def seen_by_guards(given: Any) -> tuple[Any, ...]:
    """What guards see of tensors among arguments, but whether they share memory."""
    leaves = [leaf for leaf in private.tree_leaves(given) if isinstance(leaf, Tensor)]
    return tuple((x.shape, x.stride(), x.dtype, x.device, x.requires_grad, private.is_fake(x)) for x in leaves)


@contextmanager
def patched(config: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Settings, as far as this release has them. `config.patch` takes twice as long, at each call of each block."""
    before = {name: getattr(config, name) for name in values if hasattr(config, name)}
    try:
        for name in before:
            setattr(config, name, values[name])
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)
