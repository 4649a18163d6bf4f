"""A forward pass whose saved tensors are kept in few bits.

Hooks of saved tensors see what each operation saves. A function mode sees the calls, and so knows what a tensor is:
what made it, and what backward does with it. So what is made of kept tensors by cheap functions is not kept itself.
"""

import sys
from collections.abc import Iterable, Mapping
from functools import partial
from types import FrameType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.utils.checkpoint import checkpoint

from kernels.eager import calls
from kernels.eager.around import WithinHooks, hooks_around, unpacked
from kernels.eager.autocast import autocasting
from kernels.eager.encoded import Bools, Drawn, Encoded, Groups, Logarithms, Same, TwoNumbers
from kernels.eager.integers import coding_of
from kernels.eager.intervals import Interval
from kernels.eager.provenance import ALIVE, Provenance, Running
from kernels.eager.rules import OPENED, attention_again, dropout_scale, dropped
from kernels.eager.sites import Sites
from kernels.eager.tensors import Place, flat, group_of, is_dense, is_part, is_plain, tensors
from kernels.eager.values import Constant, Kept, Recent, Value
from kernels.eager.watched import watch
from kernels.eager.whole import OWN, is_given, why_whole
from kernels.hooks import saving_hooks
from kernels.methods.every_tensor import EveryTensor

CHECKPOINT = "checkpoint"
_APPLY = Function.apply.__func__.__code__


class Compressing(WithinHooks):
    """A context manager for one forward pass, in which what autograd saves is kept in few bits.

    What another's hooks of saved tensors cover inside of it, as a checkpoint's, is left to them. What hooks around it
    do with tensors, as moving them to the CPU, is done with the codes.

    Parameters
    ----------
    method
        Bits of an element and rounding.
    parameters, inputs
        What is alive anyhow, and kept as it is: but for inputs that want a gradient.
    names
        Of modules, for a method that goes by site.
    """

    def __init__(
        self,
        method: EveryTensor,
        parameters: Iterable[Tensor] = (),
        inputs: Iterable[Tensor] = (),
        names: Mapping[nn.Module, str] | None = None,
    ) -> None:
        super().__init__()
        self.method, self.provenance = method, Provenance(parameters, inputs)
        self._sites = Sites(names or {}) if method.by_site else None
        self._running: list[Running] = []
        self._noise: Value | None = None  # of the dropout that runs
        self._recent: Recent = {}
        self._drawn = Drawn() if method.rounding == "stochastic" else None
        self._busy = False  # with what is no part of the forward pass

    def __enter__(self) -> Self:
        self.around = hooks_around()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()
        super().__enter__()
        if self._sites is not None:
            self._sites.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._sites is not None:
            self._sites.__exit__()
        super().__exit__(*error)
        self._hooks.__exit__(*error)
        del self._hooks, self._noise  # which hold this object, and it them
        self.provenance.clear()

    def forget(self) -> None:
        """Let go of what the last backward pass decoded, before the next one over the same graph."""
        self._recent.clear()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling() or not self._is_seeing():
            return function(*args, **kwargs)
        name = calls.name_of(function)
        if name in calls.PASSED or (name == "get" and function.__self__ is not Tensor.data):
            return function(*args, **kwargs)
        if name == calls.ATTENTION and torch.is_grad_enabled():
            self._running.append(Running(name))  # sites are named by it
            try:
                return attention_again(function, self.provenance.whole_mask(*args, **kwargs), args, kwargs)
            finally:
                self._running.pop()
        name = calls.named(name, args, kwargs)
        if function in OPENED:
            super().__enter__()
            try:
                return OPENED[function](*args, **kwargs)
            finally:
                super().__exit__(None, None, None)
        if name in calls.DROPOUTS:
            self._noise, self._scale = None, dropout_scale(args, kwargs)
        given = list(tensors((*args, *kwargs.values())))
        version = given[0]._version if given and is_plain(given[0]) else 0
        repeated = self.provenance.repeated(name, function, args, kwargs, given)
        jumps, coding = Interval.of(name, args, kwargs), coding_of(name, args, kwargs, given)
        self._running.append(Running(name, given, version, repeated, autocasting(given), jumps, coding))
        try:
            result = function(*args, **kwargs)
            self._learn(result)
            # They read or set this attribute, or give parts whose changes are counted apart.
            if getattr(function, "__self__", None) is Tensor.data or name.startswith("unsafe_"):
                self.provenance.uncount(filter(is_plain, tensors((*given, result))))
            return result
        finally:
            self._running.pop()

    def _is_seeing(self) -> bool:
        """Whether what calls save comes here."""
        return not (
            self._busy or saving_hooks() != (self._pack, self._unpack) or torch._C._are_functorch_transforms_active()
        )

    def _learn(self, result: Any) -> None:
        running = self._running[-1]
        in_place = bool(running.given) and running.given[0] is result  # what it was given is gone
        if not isinstance(result, Tensor):
            running = running._replace(repeated=None)
        elif running.name in calls.DROPOUTS and self._noise is not None and not in_place:
            noise = running.given[0], self._noise, self._scale
            running = running._replace(repeated=self.provenance.call(dropped, noise, {}))
        self._busy = True
        try:
            for one in tensors((result,)):
                if is_plain(one):
                    self.provenance.learn(running, one)
        finally:
            self._busy = False

    def _pack(self, x: Tensor) -> Any:
        busy, self._busy = self._busy, True
        try:
            with torch.no_grad():
                return self._kept(x, self._saver(sys._getframe(1)))
        finally:
            self._busy = busy

    def _saver(self, frame: FrameType) -> Running:
        """The call that saves: an autograd.Function, by the frame that called the hook, or else torch's function."""
        if frame.f_code is _APPLY:
            function, args = frame.f_locals["cls"], frame.f_locals["args"]
            own = hasattr(function, "saved_by") and function.saved_by(*args).method is not None
            given = list(tensors(args))
            return Running(OWN if own else f"{function.__name__}.apply", given, autocast=autocasting(given))
        if frame.f_globals["__name__"] == checkpoint.__module__:  # it hands over inputs, and is no operation
            return Running(CHECKPOINT)
        return self._running[-1] if self._running else Running("")

    def _kept(self, x: Tensor, saver: Running) -> Any:
        """What autograd holds in place of x, with what `_unpack` is to make of it."""
        function = saver.name if saver.name != CHECKPOINT or not self._running else self._running[-1].name
        site = "" if self._sites is None else self._sites.name(function)
        if why := why_whole(x, saver, self.provenance):
            if why not in ALIVE:
                watch(x, saver.name, why)
            return self._packed(x), x._version
        if saver.name in calls.SHAPE_ONLY and x.is_floating_point():
            return x.new_empty(()), Place.of(x)
        value = self.provenance.value(x)
        if value.is_kept_as(Logarithms) and saver.name not in calls.LOG_PROBABILITIES:
            value = self.provenance.anew(x)
        if value.call is None and saver.name in calls.RESULTS and saver.repeated is not None and is_dense(x):
            value.call = saver.repeated.giving(x) if value not in saver.repeated.operands else None
        if not value.is_available():
            value.kept = self._coded(self._code_of(x, saver, site))
            self.provenance.relieve(saver.given)
        if saver.interval is not None and saver.interval not in value.inside:
            value.inside[saver.interval] = self._coded(Bools(saver.interval.holds(flat(x))))
        if saver.name in calls.DROPOUTS and not is_given(x, saver):
            self._noise = value
        value.expect()
        return value, Place.of(x)

    def _code_of(self, x: Tensor, saver: Running, site: str) -> Encoded:
        if x.dtype == torch.bool:
            return Bools(flat(x))
        if not x.is_floating_point() and saver.coding is not None:
            return saver.coding(x)
        if saver.name in calls.DROPOUTS and not is_given(x, saver):
            return TwoNumbers(flat(x))
        logarithms = saver.name in calls.LOG_PROBABILITIES and not is_given(x, saver)
        return self._approximated(x, Logarithms if logarithms else Groups, site)

    def _approximated(self, x: Tensor, kind: type[Groups], site: str) -> Encoded:
        """Of floating-point numbers."""
        method = self.method.at(site)
        if method is None:
            if is_part(x) or CHECKPOINT in site:  # all of its storage would stay; a block may change what it is given
                return Same(flat(x).clone(), counted=False)
            return Same(flat(x), self.around is None)
        return kind(flat(x), method, group_of(x), self._drawn)

    def _coded(self, code: Encoded) -> Kept:
        packed = [self._packed(tensor) for tensor in code.hand_over()]
        return Kept(code, packed, partial(unpacked, self.around))  # of this object it would hold all that is decoded

    def _packed(self, x: Tensor) -> Any:
        """For autograd to hold, as the hooks around ours have it."""
        return x.detach() if self.around is None else self.around[0](x.detach())

    def _unpack(self, kept: tuple[Any, Any]) -> Tensor:
        what, how = kept
        if isinstance(how, int):
            return Constant(what, how).checked() if self.around is None else unpacked(self.around, what)
        if isinstance(what, Tensor):
            return what.expand(how.size) if how.is_contiguous() else what.new_empty_strided(how.size, how.stride)
        with torch.no_grad(), torch._C.DisableTorchFunction():
            return what.flat(self._recent).as_strided(*how)
