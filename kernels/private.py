"""All that this project uses of PyTorch's private modules, which may change with any release.

Nothing of it is touched before it is used, and what a release lacks raises KernelError where it is used, there alone.
`private.FakeTensor` is what NAMES says; other modules must not import such names, which would touch them at once.
"""

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch
from torch.autograd import Function

from actfit.kernels.errors import KernelError, warn

T = TypeVar("T", bound=torch.Tensor)
OLDEST, LATEST = (2, 9), (2, 15)  # releases of PyTorch: the oldest that works, and the last that was tested

NAMES = {
    # Nested values, modes, and kinds of tensors and operators.
    "tree_leaves": "torch.utils._pytree.tree_leaves",
    "tree_map": "torch.utils._pytree.tree_map",
    "TorchDispatchMode": "torch.utils._python_dispatch.TorchDispatchMode",
    "disable_current_modes": "torch.utils._python_dispatch._disable_current_modes",
    "python_dispatch": "torch.utils._python_dispatch",
    "mode_stack": "torch.utils._python_dispatch._get_current_dispatch_mode_stack",
    "function_mode_stack": "torch.overrides._get_current_function_mode_stack",
    "push_function_mode": "torch.overrides._push_mode",
    "pop_function_mode": "torch.overrides._pop_mode",
    "FakeTensor": "torch._subclasses.FakeTensor",
    "FakeTensorMode": "torch._subclasses.FakeTensorMode",
    "FakeCopyMode": "torch._subclasses.fake_tensor.FakeCopyMode",
    "DataDependentOutputException": "torch._subclasses.fake_tensor.DataDependentOutputException",
    "DynamicOutputShapeException": "torch._subclasses.fake_tensor.DynamicOutputShapeException",
    "unset_fake_temporarily": "torch._subclasses.fake_tensor.unset_fake_temporarily",
    "detect_fake_mode": "torch._guards.detect_fake_mode",
    "without_torch_function": "torch._C.DisableTorchFunctionSubclass",
    "OpOverload": "torch._ops.OpOverload",
    "HigherOrderOperator": "torch._ops.HigherOrderOperator",
    # The state of tracers and of autograd.
    "TracingContext": "torch._guards.TracingContext",
    "TensorWeakRef": "torch.utils.weak.TensorWeakRef",
    "WeakTensorKeyDictionary": "torch.utils.weak.WeakTensorKeyDictionary",
    "top_hooks": "torch._C._autograd._top_saved_tensors_default_hooks",
    "sequence_number": "torch._C._autograd._get_sequence_nr",
    "current_graph_task_id": "torch._C._current_graph_task_id",
    # torch.compile.
    "OptimizedModule": "torch._dynamo.eval_frame.OptimizedModule",
    "optimize": "torch._dynamo.optimize",
    "CatchErrorsWrapper": "torch._dynamo.convert_frame.CatchErrorsWrapper",
    "dynamo_config": "torch._dynamo.config",
    "functorch_config": "torch._functorch.config",
    "inductor_config": "torch._inductor.config",
    "min_cut": "torch._functorch.partitioners.min_cut_rematerialization_partition",
    "aot_autograd": "torch._dynamo.backends.common.aot_autograd",
    "counters": "torch._dynamo.utils.counters",
    "compile_lock": "torch._dynamo.convert_frame.compile_lock",
    "ConvertFrameReturn": "torch._dynamo.types.ConvertFrameReturn",
    "trace_rules": "torch._dynamo.trace_rules",
    "InstructionTranslatorBase": "torch._dynamo.symbolic_convert.InstructionTranslatorBase",
    "SkipFrame": "torch._dynamo.exc.SkipFrame",
    "FrameAction": "torch._dynamo.types.FrameAction",
    "FrameExecStrategy": "torch._dynamo.types.FrameExecStrategy",
    "TorchDynamoException": "torch._dynamo.exc.TorchDynamoException",
    "DispatchKey": "torch._C.DispatchKey",
    "get_decompositions": "torch._decomp.get_decompositions",
    "compile_fx": "torch._inductor.compile_fx.compile_fx",
    "compile_fx_inner": "torch._inductor.compile_fx.compile_fx_inner",
    "CustomPartitionerFn": "torch._inductor.custom_graph_pass.CustomPartitionerFn",
    "CustomGraphPass": "torch._inductor.custom_graph_pass.CustomGraphPass",
    "select_decomp_table": "torch._inductor.decomposition.select_decomp_table",
    "is_fx_symbolic_tracing": "torch.fx._symbolic_trace.is_fx_symbolic_tracing",
    "make_fx": "torch.fx.experimental.proxy_tensor.make_fx",
}


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _private(name)


def _private(name: str) -> Any:
    if name in globals():
        return globals()[name]
    check_release()
    path = NAMES[name]
    holder, _, attribute = path.rpartition(".")
    try:
        module = import_module(holder)
        globals()[name] = value = getattr(module, attribute) if hasattr(module, attribute) else import_module(path)
    except ImportError as error:
        raise KernelError(
            f"torch must have {path} for this, got torch {torch.__version__} without it; torch {_text(LATEST)} has it"
        ) from error
    return value


@cache
def check_release() -> None:
    """Warn of a release of PyTorch that is newer than all that were tested; raise KernelError for one too old."""
    if release() < OLDEST:
        raise KernelError(
            f"torch must be {_text(OLDEST)} or newer, got {torch.__version__}; pip install 'torch>={_text(OLDEST)}'"
        )
    if release() > LATEST:
        warn(
            f"actfit was tested with torch up to {_text(LATEST)}, not with {torch.__version__}, which is tried; if"
            f" something fails: pip install 'torch=={_text(LATEST)}.*'"
        )


def release() -> tuple[int, ...]:
    """The two first numbers of PyTorch's version."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def is_fake(value: object) -> bool:
    """Whether it is a tensor without memory."""
    return isinstance(value, _private("FakeTensor"))


def tensor_without_memory(kind: type[T], shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> T:
    """A tensor of a subclass, which says what tensor it stands for and has no numbers."""
    made: T = torch.Tensor._make_wrapper_subclass(kind, shape, dtype=dtype, device=device)
    return made


def keeps_graph() -> bool:
    """Whether the backward pass that goes on keeps its graph."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def without_saved_hooks() -> AbstractContextManager[Any]:
    """A context in which hooks of saved tensors that were set outside see nothing."""
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():
        return nullcontext()
    none: AbstractContextManager[Any] = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
    return none


def is_compiled_module(model: object) -> bool:
    """Whether it is what torch.compile gave for a module. Without Dynamo, which takes long to import, none is."""
    return "torch._dynamo.eval_frame" in sys.modules and isinstance(model, _private("OptimizedModule"))


def exporting() -> bool:
    """Whether torch.export is active; Dynamo can follow this function.

    Not by `torch.compiler.is_exporting`, which up to torch 2.12 Dynamo treats as True in any compiled code.
    """
    if hasattr(torch.compiler, "_is_exporting_flag"):
        return bool(torch.compiler._is_exporting_flag)
    return bool(torch.compiler.is_exporting())


def in_transform() -> bool:
    """Whether a transform of torch.func is active; Dynamo can follow this function."""
    return bool(torch._C._are_functorch_transforms_active())


def in_dispatch_mode() -> bool:
    """Whether a TorchDispatchMode is active, as that of `torch.utils.flop_counter`."""
    return bool(torch._C._len_torch_dispatch_stack())


def saved_tensors_are_packed() -> bool:
    """Whether hooks of others than `Recorder`, which holds the tensors themselves, pack what autograd saves."""
    hooks = _private("top_hooks")(True)
    return hooks is not None and not getattr(hooks[0], "keeps_tensors", False)


def in_forward_ad() -> bool:
    """Whether forward-mode AD is on."""
    return bool(torch.autograd.forward_ad._current_level >= 0)


@contextmanager
def operations_whole() -> Iterator[None]:
    """Meanwhile tracers leave as they are what they would write out and round otherwise than PyTorch's kernels.

    These are interpolations and, up to torch 2.9, the derivatives of SiLU and Mish.
    """
    for operation, kernels in _written_out():
        for key in kernels:
            operation.py_kernels.pop(key, None)
        operation._dispatch_cache.clear()
    for operation in _composite_derivatives():
        operation.py_kernels[_private("DispatchKey").CompositeImplicitAutograd] = lambda *_, **__: NotImplemented
    try:
        yield
    finally:
        for operation, kernels in _written_out():
            operation.py_kernels.update(kernels)
            operation._dispatch_cache.clear()
        for operation in _composite_derivatives():
            operation.py_kernels.pop(_private("DispatchKey").CompositeImplicitAutograd, None)


@cache
def _written_out() -> list[tuple[Any, dict[Any, Any]]]:
    """The interpolations, each with the kernels in Python by which tracers write it out."""
    _private("get_decompositions")  # importing it registers them
    keys = [getattr(_private("DispatchKey"), name) for name in ("Autograd", "CompositeImplicitAutograd")]
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten) if "upsample_" in name]
    operations = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    kernels = [(each, {key: each.py_kernels[key] for key in keys if key in each.py_kernels}) for each in operations]
    return [(operation, written) for operation, written in kernels if written]


def _composite_derivatives() -> list[Any]:
    """Those that have kernels of their own, but that tracers of this release write out."""
    return [torch.ops.aten.silu_backward.default, torch.ops.aten.mish_backward.default] if release() < (2, 10) else []


_apply_of_torch: Any = None  # while `functions_seen` has replaced it
_seeing, _lock = 0, threading.Lock()


@contextmanager
def functions_seen() -> Iterator[None]:
    """Meanwhile `function_of` knows the autograd.Functions that are called.

    A saved-tensor hook can tell who saves only by the frame that called it. Since torch 2.14 Function.apply is not
    written in Python and has no frame: here it gets one.
    """
    global _apply_of_torch, _seeing
    if _code_of_apply() is not None:
        yield
        return
    with _lock:
        if not _seeing:
            _apply_of_torch = vars(Function)["apply"]
            Function.apply = classmethod(_apply)
        _seeing += 1
    try:
        yield
    finally:
        with _lock:
            _seeing -= 1
            if not _seeing:
                Function.apply = _apply_of_torch


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    return _apply_of_torch.__get__(None, cls)(*args, **kwargs)


def function_of(frame: FrameType) -> tuple[Any, Sequence[Any]] | None:
    """The autograd.Function that a frame applies, and its arguments; None for other frames."""
    if frame.f_code is not (_code_of_apply() or _apply.__code__):
        return None
    return frame.f_locals["cls"], frame.f_locals["args"]


def code_and_values(frame: Any) -> tuple[CodeType, Mapping[str, Any]]:
    """The code that a frame runs, and its variables' values."""
    return frame.f_code, frame.f_locals


@cache
def _code_of_apply() -> CodeType | None:
    """The code of torch's own Function.apply, if it has any."""
    return getattr(getattr(vars(Function).get("apply"), "__func__", None), "__code__", None)


def as_partitioner(kind: type) -> None:
    """Let Inductor take objects of a class as partitioners: they have `__call__` and `uuid`."""
    _private("CustomPartitionerFn").register(kind)


def as_graph_pass(kind: type) -> None:
    """Let Inductor take objects of a class as passes over a graph: they have `__call__` and `uuid`."""
    _private("CustomGraphPass").register(kind)


def direct(target: Any) -> Any:
    """What an operation of a graph calls, without the wrapper around it."""
    return target._op if type(target) is _private("OpOverload") else target
