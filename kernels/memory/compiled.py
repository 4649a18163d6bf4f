"""How many bytes compiled code saves for backward: by the nodes of its graph, and by the allocator's statistics."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.autograd.profiler import profile

from actfit.kernels import private
from actfit.kernels.memory.isolated import forked_random
from actfit.kernels.memory.saved import Saved, SavedTensor, Saver
from actfit.kernels.memory.storages import addresses, storages, tensors
from actfit.kernels.methods.every_tensor import EveryTensor

_PREFIX = "allocated_bytes.all."


@dataclass
class Allocated:
    """A context manager that reads CUDA's memory statistics: afterwards `delta` has their growth.

    Attributes
    ----------
    device
        None: the current one.
    delta
        Bytes by "allocated", "freed", "current" and "peak", the last relative to the beginning. CUDA rounds
        sizes up to 512 bytes.

    Raises
    ------
    RuntimeError
        Without CUDA.
    """

    device: torch.device | int | str | None = None

    def __enter__(self) -> Self:
        # Libraries allocate their own memory at their first use: a product of matrices makes cuBLAS do so now.
        torch.ones(8, 8, device=self.device or "cuda").matmul(torch.ones(8, 8, device=self.device or "cuda"))
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self._before = self._read()
        return self

    def __exit__(self, *_: Any) -> None:
        torch.cuda.synchronize(self.device)
        after = self._read()
        self.delta = {name: after[name] - self._before[name] for name in after}
        self.delta["peak"] = after["peak"] - self._before["current"]

    def _read(self) -> dict[str, int]:
        statistics = torch.cuda.memory_stats(self.device)
        return {name: int(statistics.get(_PREFIX + name, 0)) for name in ("allocated", "freed", "current", "peak")}


def growth(run: Callable[[], Any], device: torch.device) -> tuple[Any, int]:
    """The result of `run`, and by how many bytes the memory allocated on `device` grew."""
    if device.type == "cuda":
        with Allocated(device) as allocated:
            result = run()
        return result, allocated.delta["current"]
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it logs to stderr
    with profile(profile_memory=True) as seen:
        result = run()
    return result, sum(event.self_cpu_memory_usage for event in seen.function_events)


def is_compiled(model: Any) -> bool:
    """Whether torch.compile compiled it; for a module, also if only a part of it was."""
    if not isinstance(model, nn.Module):
        return hasattr(model, "_torchdynamo_orig_callable")
    return any(
        private.is_compiled_module(module) or module._compiled_call_impl is not None for module in model.modules()
    )


def is_captured(module: nn.Module) -> bool:
    """Whether its calls run graphs that `compress` captures."""
    return getattr(vars(module).get("forward"), "runs_graphs", False)


def is_generated(module: nn.Module) -> bool:
    """Whether its calls run graphs that Inductor compiles, so that no mode sees what they allocate."""
    return getattr(vars(module).get("forward"), "runs_compiled", False)


def outside_graphs(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules of a model without those inside captured ones, whose calls are traced, hooks and all."""
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module not in inside:
            yield name, module
            if is_captured(module):
                inside.update(module.modules())


def settings_with_codes(compiled: Any) -> list[Mapping[str, Any]]:
    """Inductor's settings of all parts of a model or function that were compiled with `actfit.options(...)`.

    They are known without importing `actfit.kernels.compression`, and so Inductor, which takes seconds.
    """
    parts = [compiled, *compiled.modules()] if isinstance(compiled, nn.Module) else [compiled]
    settings = []
    for part in parts:  # a compiled module or function, or a module with a compiled forward
        for holder in (part, getattr(part, "_compiled_call_impl", None), getattr(part, "forward", None)):
            config = getattr(holder, "get_compiler_config", lambda: None)() or {}
            if isinstance(getattr(config.get("custom_partitioner_fn"), "method", None), EveryTensor):
                settings.append(config)
    return settings


def saved_by_compiled(model: Callable[..., Any], args: Any, kwargs: Any, owner: nn.Module | None = None) -> Saved:
    """What a call of a compiled model, or of a method of `owner`, saves: by its graph, and the allocator's counts."""
    owner = model if isinstance(model, nn.Module) else owner
    # Without hooks and modes: the compiler would ignore them, or run eager code because of them.
    inputs = [*tensors((args, kwargs))]
    own = [] if owner is None else [*owner.parameters(), *owner.buffers()]
    device = next((tensor.device for tensor in [*inputs, *own]), torch.device("cpu"))
    buffers = {} if owner is None else {buffer: buffer.clone() for buffer in owner.buffers()}
    with torch.enable_grad(), forked_random():
        model(*args, **kwargs)  # compiles
        output, grown = growth(lambda: model(*args, **kwargs), device)
    parameters = addresses(own)
    given, found = addresses(inputs) - parameters, dict[int, SavedTensor]()
    for node in nodes(output):
        for tensor in saved_of(node):
            for storage in storages(tensor):
                what = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), (Saver("", node.name()),)
                found.setdefault(storage._cdata, SavedTensor(storage.nbytes(), *what))
    with torch.no_grad():  # after the saved tensors were read: autograd raises for those changed in place
        for buffer, value in buffers.items():
            buffer.copy_(value)
    results = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors(output)}
    saved = [tensor for key, tensor in found.items() if key not in parameters | given]
    unseen = grown - sum(tensor.bytes for tensor in saved) - sum(n for key, n in results.items() if key not in found)
    if unseen:
        saved.append(SavedTensor(unseen, (), "", (Saver("", "allocator"),), seen=False))
    besides = [sum(found[key].bytes for key in keys & found.keys()) for keys in (given, parameters)]
    return Saved(tuple(sorted(saved, key=lambda tensor: -tensor.bytes)), besides[0], besides[1])


def nodes(output: Any) -> Iterator[Node]:
    """Each node of the graph behind the tensors in `output`, once."""
    waiting = [tensor.grad_fn for tensor in tensors(output)]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


def saved_of(node: Node) -> Iterator[Tensor]:
    """The tensors that a node of autograd's graph holds."""
    names = [name for name in dir(node) if name.startswith("_saved_")]
    for name in [*names, "saved_tensors"]:
        yield from tensors(getattr(node, name, None))
