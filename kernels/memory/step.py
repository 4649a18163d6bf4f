"""The peak of bytes alive in a step of training, by tracking when storages are made and freed; and its operations.

These are floating-point operations of products of matrices, convolutions and attention, to which most of a step's time
goes: those that `torch.utils.flop_counter` knows, and fused attention.
"""

import gc
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from actfit.kernels import private
from actfit.kernels.errors import KernelError, shown, warn
from actfit.kernels.memory.accounting import Within, within_of
from actfit.kernels.memory.isolated import forget_fakes, hides_memory, on_fakes, train
from actfit.kernels.memory.making import line
from actfit.kernels.memory.measure import has_forward, unpacked
from actfit.kernels.memory.storages import bytes_of, operand_storages, tensors
from actfit.kernels.modes import DispatchMode

Loss = Callable[..., Tensor]
_ATTENTION = "_scaled_dot_product_"  # how the names of fused attention begin
# Products of queries, keys and values: two forward; backward computes the scores again, and four gradients.
_FORWARD, _BACKWARD = 2, 5


class Living(DispatchMode):
    """Counts the bytes of storages that operations make while it is entered and that are alive: `now`, and the `peak`.

    Counts the `operations` of products as well.
    Storages from before do not count, nor do views of them. Workspaces inside an operation are not seen.
    """

    def __init__(self) -> None:
        self.now = self.peak = self.operations = 0
        self._known: dict[int, int] = {}  # numbers of storages, by their keys, which may be given again
        self._numbers = count()

    def __enter__(self) -> Self:
        gc.collect()
        super().__enter__()
        return self

    def now_without(self, results: Iterable[Tensor]) -> int:
        """Bytes that are alive, without those of these tensors."""
        return self.now - bytes_of(results)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for storage in operand_storages((args, kwargs)):
            self._know(storage, counts=False)
        result = func(*args, **(kwargs or {}))
        self.operations += _operations(func, args, kwargs or {}, result)
        for storage in operand_storages(result):
            self._know(storage, counts=True)
        return result

    def _know(self, storage: torch.UntypedStorage, counts: bool) -> None:
        """Know a storage as long as it is alive, if it is new; and count it meanwhile."""
        if storage._cdata in self._known:
            return
        self._known[storage._cdata] = next(self._numbers)
        size = storage.nbytes() if counts else 0
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, storage._cdata, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.pop(key, None)
        self.now -= size


def _operations(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Multiplications and additions of one operation of PyTorch; 0 for all but those products.

    Masks are not seen: causal attention counts in full, as in `torch.utils.flop_counter`.
    """
    packet = getattr(func, "_overloadpacket", func)
    name = getattr(packet, "__name__", "")
    if name.startswith(_ATTENTION):
        backward = "backward" in name
        query, key, value = args[backward : backward + 3]
        # Of one product, of scores and values or the like; grouped keys serve several heads.
        scores: int = math.prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])
        return scores * (_BACKWARD if backward else _FORWARD)
    count = flop_registry.get(packet)
    try:
        return 0 if count is None else int(count(*args, **kwargs, out_val=result))
    except (TypeError, AssertionError):  # an overload that the formula is not for; to count must not end a step
        return 0


HIDDEN = (
    "the peak must leave out what oneDNN's nn.LSTM and cuDNN's recurrent layers keep for themselves, as tensors without"
    " memory do not show it; saved_bytes(model, inputs) runs such a model for real, and counts it"
)


def peak_bytes(model: nn.Module, /, *args: Any, accounting: str = "as-run", **kwargs: Any) -> int:
    """The most bytes that are alive at once in forward and backward, besides those from before.

    A copy of the model runs on fake tensors, see `run_step`; arguments and `accounting` are as of `saved_bytes`.

    Raises
    ------
    KernelError
        For a model that cannot run on fake tensors, or whose output has no gradient; for another accounting.
    """
    living, within = Living(), within_of(accounting)
    if not isinstance(model, nn.Module) or not has_forward(model):
        raise KernelError(
            f"model must be a torch.nn.Module that has a forward, got {type(model).__name__}; see saved_bytes"
        )
    args, kwargs = unpacked(model, args, kwargs)
    if hides_memory(model):
        warn(HIDDEN)
    run_step(living, model, args, kwargs, within=within)
    return living.peak


def run_step(
    living: Living,
    model: nn.Module,
    args: Any,
    kwargs: Any,
    *,
    loss: Loss | None = None,
    targets: Any = None,
    training: bool = False,  # whether to run all modules in training mode
    accumulates: bool = True,  # whether parameters have gradients, which are added to; else new ones are counted
    within: Within = nullcontext,  # makes a context manager in which it runs
    prepare: Callable[[nn.Module], object] = lambda copied: None,  # called with the copy before it runs
    between: Callable[[list[Tensor]], object] = lambda results: None,  # called with differentiable results of forward
) -> None:
    """Count what lives in forward and backward of a copy of the model on fake tensors.

    Backward starts from the tensors that `differentiated` gives.
    Of an output with a loss of its own only that is alive in backward, as trainers let go of the rest.
    Operations are those of the model's device; their workspaces and the allocator's waste are not seen.
    Raises KernelError for a model that cannot run on fake tensors, or whose output has no gradient.
    """
    try:
        with on_fakes(model, args, kwargs, targets) as (copied, positional, named, copied_targets):
            if training:
                train(copied)
            for weight in copied.parameters():
                if weight.requires_grad and accumulates:
                    weight.grad = torch.zeros_like(weight)
            prepare(copied)
            with living, within(), torch.enable_grad():
                output = copied(*positional, **named)
                between([x for x in tensors(output) if x.requires_grad])
                results = differentiated(output, loss, copied_targets)
                if loss is None:
                    output = None
                torch.autograd.backward(results, [torch.ones_like(x) for x in results])
            if living.refused is not None:
                raise living.refused
        del copied, positional, named, copied_targets, output, results
    except KernelError:
        raise
    except Exception as error:  # of any kind, as the model raises it
        raise KernelError(
            f"{'model' if loss is None else 'model and loss'} must run on fake tensors, forward and backward, got"
            f" {line(error)}; {_way_out(error)}"
        ) from error
    finally:
        torch.clear_autocast_cache()
        forget_fakes(lambda: living.now > 0)


def _way_out(error: Exception) -> str:
    if isinstance(error, private.DataDependentOutputException | private.DynamicOutputShapeException):
        return (
            "these have no numbers to read, to print or to decide by, as .item() and nonzero() do: take that out of"
            " forward and loss, and say what forward looks up, as tgt_is_causal=True beside a mask of nn.Transformer;"
            " compress(model, bits=8) needs no such run"
        )
    return "check that it runs with these inputs, loss and targets"


def check_loss(loss: Any, targets: Any) -> None:
    """Raise KernelError for a loss that is no function, and for targets without one."""
    if loss is not None and not callable(loss):
        raise KernelError(f"loss must be a function of the output, or of it and the targets, got {shown(loss)}")
    if targets is not None and loss is None:
        raise KernelError("targets must go with loss, a function of the output and of them, got none")


def own_loss(output: Any) -> Any:
    """The loss that a model's output has, as in transformers' models with labels; or None."""
    return output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)


def differentiated(output: Any, loss: Loss | None = None, targets: Any = None) -> list[Tensor]:
    """The tensors that backward starts from: the loss, or else all differentiable tensors in the model's output.

    The loss is that function of the output and, if given, of `targets`; by default the output's own, as in
    transformers' models with labels, if it has one. Raises KernelError for a loss that is not one number with a
    gradient, and for an output without a gradient.
    """
    if loss is not None:
        value = loss(output) if targets is None else loss(output, targets)
    else:
        value = own_loss(output)
    if value is not None:
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            without = " without a gradient" if isinstance(value, Tensor) and not value.requires_grad else ""
            raise KernelError(f"loss must be a tensor of one number with a gradient, got {shown(value)}{without}")
        return [value]
    results = [x for x in tensors(output) if x.requires_grad]
    if not results:
        raise KernelError("model must give a tensor with a gradient to take a step, got none")
    return results
