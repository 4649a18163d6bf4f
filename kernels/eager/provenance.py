"""The origin of tensors in a forward pass: which must stay exact, and which can be recomputed."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

from kernels.eager import calls
from kernels.eager.encoded import Logarithms
from kernels.eager.integers import Coding
from kernels.eager.intervals import Interval
from kernels.eager.rules import attention_arguments, batch_norm
from kernels.eager.tensors import ViewGeometry, is_dense, is_plain, key_of, storage_of, version_of
from kernels.eager.values import MOST_CALLS, Call, Constant, Operand, Value
from kernels.methods.every_tensor import SMALLEST, STATISTIC
from kernels.torch_state import autocast_of

PARAMETER, OF_PARAMETERS, INPUT, CONSTANT = "a parameter", "made of parameters", "an input", "needs no gradient"
ALIVE = (PARAMETER, OF_PARAMETERS, INPUT)
A_STATISTIC, COPY, DATA = "a statistic", "a parameter's copy", "its changes are not counted, by way of .data"


class RunningCall(NamedTuple):
    """A running call.

    Attributes
    ----------
    name
        Of the function.
    operands
        Its arguments that are tensors.
    version
        Of the first of them.
    repeated
        The call that recomputes its result, or None.
    autocast
        Whether autocast may run it in another type than that of its arguments; within the call, torch denies it.
    interval
        The interval at whose ends its derivative jumps, or None.
    coding
        The encoder of integers that it saves.
    """

    name: str
    operands: Sequence[Tensor] = ()
    version: int = 0
    repeated: Call | None = None
    autocast: bool = False
    interval: Interval | None = None
    coding: Coding | None = None


class Provenance:
    """The values of one forward pass by storage.

    Attributes
    ----------
    smallest
        The least number of elements of a tensor that gets codes.
    """

    smallest = SMALLEST

    def __init__(self, parameters: Iterable[Tensor], inputs: Iterable[Tensor]) -> None:
        self.parameters = {storage_of(x) for x in parameters if is_plain(x)}
        self.inputs = {storage_of(x) for x in inputs if is_plain(x) and x.is_leaf}
        self._uncounted: dict[int, StorageWeakRef] = {}
        self._masks: dict[Any, tuple[StorageWeakRef, Tensor]] = {}
        self._values: dict[Any, tuple[StorageWeakRef, Value]] = {}  # the reference keeps the address from being reused
        self._phases: dict[Any, tuple[StorageWeakRef, Value]] = {}

    def clear(self) -> None:
        """Forget all values; the graph holds those that backward needs."""
        self._values.clear()
        self._phases.clear()
        self._masks.clear()

    def value(self, x: Tensor) -> Value:
        """The value of a tensor."""
        key = key_of(x)
        if key not in self._values:
            self._values[key] = StorageWeakRef(x.untyped_storage()), Value()
        return self._values[key][1]

    def phase(self, x: Tensor) -> Value:
        """The value of phases, whose code does for sine and cosine only."""
        return self._phases.setdefault(key_of(x), (StorageWeakRef(x.untyped_storage()), Value()))[1]

    def read_of(self, held: Iterable[Tensor]) -> Iterator[tuple[Value, Tensor]]:
        """The values in the storages of these tensors that backward of the calls that made them reads, each whole."""
        storages = {(*key_of(x)[:2], x.dtype): x.detach() for x in held}
        for key, (_, value) in self._values.items():
            if value.read and (x := storages.get(key[:3])) is not None:
                count = x.untyped_storage().nbytes() // x.element_size()
                geometry = key[3:] or ((count,), (1,), 0)
                yield value, x.as_strided(*geometry)

    def anew(self, x: Tensor) -> Value:
        """A new value of a tensor, which replaces the old one."""
        self._values.pop(key_of(x), None)
        return self.value(x)

    def whole_mask(self, *args: Any, **kwargs: Any) -> Constant | None:
        """The mask of attention, to be saved whole; None if there is none or it can be recomputed.

        Attention converts a mask of bools, which may change afterwards: such a mask is copied, once for all layers.
        """
        mask = attention_arguments(*args, **kwargs)[3]
        if mask is None or (mask.requires_grad and is_plain(mask) and self.value(mask).is_available()):
            return None
        if mask.dtype != torch.bool or not is_plain(mask):
            return Constant(mask, version_of(mask))
        key = *key_of(mask), mask.size(), mask.stride(), mask.storage_offset()
        if key not in self._masks:
            self._masks[key] = StorageWeakRef(mask.untyped_storage()), mask.clone()
        return Constant.of(self._masks[key][1])

    def relieve(self, operands: Iterable[Tensor]) -> None:
        """Drop codes of arguments that can be recomputed by now."""
        for x in filter(is_plain, operands):
            _, value = self._values.get(key_of(x), (None, None))
            if value is not None:
                value.relieve()

    def exact(self, x: Tensor) -> str:
        """Why an argument of a call is saved whole, or ""."""
        if isinstance(x, nn.Parameter):
            return PARAMETER
        if not is_plain(x):
            return "no plain tensor"
        storage = storage_of(x)
        if storage in self.parameters:
            return PARAMETER
        _, value = self._values.get(key_of(x), (None, None))
        if value is not None and value.exact == OF_PARAMETERS:
            return OF_PARAMETERS
        if storage in self.inputs or (x.is_leaf and x.requires_grad):
            return INPUT
        if storage in self._uncounted:
            return DATA
        if value is not None:  # a checkpoint first makes some without gradients
            return "" if value.exact == CONSTANT and x.requires_grad else value.exact
        return "" if x.requires_grad else CONSTANT

    def uncount(self, given: Iterable[Tensor]) -> None:
        """Record that changes of these tensors are not counted from now on."""
        self._uncounted.update((storage_of(x), StorageWeakRef(x.untyped_storage())) for x in given)

    def exact_of_saved(self, x: Tensor, running: RunningCall) -> str:
        """Why a tensor that a call saves, without its autograd history, is saved whole, or ""."""
        argument = next(
            (tensor for tensor in running.operands if is_plain(tensor) and storage_of(tensor) == storage_of(x)), None
        )
        if argument is not None and argument._version == x._version:
            return self.exact(argument)
        if storage_of(x) in self.parameters:
            return PARAMETER
        if storage_of(x) in self._uncounted:
            return DATA
        if key_of(x) in self._values:
            return self.value(x).exact
        if storage_of(x) in self.inputs:
            return INPUT
        few = 2 if running.name in calls.NORMS else STATISTIC
        if any(x.numel() * few <= tensor.numel() for tensor in running.operands):
            return A_STATISTIC
        return self._copy_for_autocast(x, running)

    def call(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
        """A call that can be repeated from its operands. Values among the arguments have the geometry of the result."""
        operands: list[Value] = []
        kinds = []

        def argument(given: Any) -> Any:
            if not isinstance(given, Tensor | Value):
                return given
            if isinstance(given, Tensor):
                kinds.append(given.device.type)
                if given.numel() < self.smallest and is_plain(given) and not (given.is_leaf and given.requires_grad):
                    return Constant.of(given.detach().clone())  # the original may change, or be part of a large storage
                if given.numel() < self.smallest or self.exact(given):
                    return Constant.of(given)
            value = given if isinstance(given, Value) else self.value(given)
            if isinstance(given, Tensor) and value.has_code_of(
                Logarithms
            ):  # codes that are only accurate for exponentials
                value = self.anew(given)
            operands.append(value)
            return Operand(value, None if isinstance(given, Value) else ViewGeometry.of(given))

        positional, named = [argument(x) for x in args], {name: argument(x) for name, x in kwargs.items()}
        return Call(function, positional, named, operands, autocast_of(kinds[0] if kinds else "cpu"))

    def repeated(
        self, name: str, function: Any, args: Sequence[Any], kwargs: dict[str, Any], operands: Sequence[Tensor]
    ) -> Call | None:
        """The call that is about to run, as one that changes nothing in place; None if it is not cheap to repeat."""
        if name not in calls.REPEATED or "out" in kwargs or not torch.is_grad_enabled():
            return None
        if function is torch.batch_norm or not self._worth_repeating(name, operands):
            return None
        in_place = calls.is_in_place(function)
        if (in_place or kwargs.get("inplace")) and (not args or self.exact(args[0])):
            return None  # a tensor that is saved whole would change
        if in_place:
            function = getattr(Tensor, name, None) or getattr(F, name)
        if function is F.batch_norm and (kwargs.get("training") or args[5:6] == (True,)):
            function = batch_norm
        return self.call(function, args, {key: value for key, value in kwargs.items() if key != "inplace"})

    def _worth_repeating(self, name: str, operands: Sequence[Tensor]) -> bool:
        """Whether repeating a call needs only tensors that are alive or saved anyhow, and magnifies no error."""
        large = [x for x in operands if x.numel() >= self.smallest]
        available = all(map(self._lasts, large)) or name in ("mul", "rmul")
        divisors = [x for x in operands[1:] if x.numel() >= self.smallest] if name in ("div", "truediv") else []
        exact_divisor = all(map(self.exact, divisors))
        return bool(large) and available and exact_divisor

    def _lasts(self, x: Tensor) -> bool:
        """Whether it is unchanged in backward, or has a code; not a buffer, which forward passes may change."""
        why = self.exact(x)
        return why in (A_STATISTIC, "") or (why == PARAMETER and (x.requires_grad or isinstance(x, nn.Parameter)))

    def learn(self, running: RunningCall, result: Tensor) -> None:
        """Record the value of a call's result."""
        operands, repeated = running.operands, running.repeated
        changed = bool(operands) and operands[0] is result and result._version != running.version
        if result.numel() < self.smallest or (not changed and self._is_view(result, operands)):
            return
        exact = [self.exact(x) for x in operands]
        if not result.requires_grad:
            wants = any(why == INPUT and x.requires_grad for why, x in zip(exact, operands, strict=True))
            if all(exact) and not wants:
                self.value(result).exact = CONSTANT
            elif not torch.is_grad_enabled():  # in an autograd.Function, whose results require gradients after it
                self.value(result)
        elif operands and set(exact) <= {PARAMETER, OF_PARAMETERS}:
            self.value(result).exact = OF_PARAMETERS
        elif self._is_statistic(running, exact, result):
            self.value(result).exact = A_STATISTIC
        elif repeated is not None and is_dense(result) and repeated.calls() <= MOST_CALLS:
            self.value(result).call = repeated.giving(result)

    @staticmethod
    def _is_view(result: Tensor, operands: Sequence[Tensor]) -> bool:
        key = key_of(result)
        return any(is_plain(x) and storage_of(x) == key[0] and key_of(x) == key for x in operands)

    def _is_statistic(self, running: RunningCall, exact: Sequence[str], result: Tensor) -> bool:
        """Whether it is a reduction of many elements to one, or computed from statistics only."""
        name, operands = running.name, running.operands
        if name in calls.REDUCTIONS:
            return any(result.numel() * STATISTIC <= x.numel() for x in operands)
        small = [x.numel() < self.smallest for x in operands]
        known = [bool(why) or few for why, few in zip(exact, small, strict=True)]
        return name in calls.OF_STATISTICS and A_STATISTIC in exact and all(known)

    def _copy_for_autocast(self, x: Tensor, running: RunningCall) -> str:
        """`COPY` if it may be a parameter's copy, or "". For a copy of another argument, record that call."""
        if not running.autocast:
            return ""
        like = [
            tensor for tensor in running.operands if tensor.dtype != x.dtype and sorted(tensor.shape) == sorted(x.shape)
        ]
        if any(self.exact(tensor) for tensor in like):
            return COPY
        if len(like) == 1 and is_dense(like[0]) and running.name in calls.PRODUCTS:
            self.value(x).call = self.call(Tensor.to, (like[0], x.dtype), {}).giving(like[0], x.dtype)
        return ""
