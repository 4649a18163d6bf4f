"""A forward pass whose saved tensors are stored in few bits.

Saved-tensor hooks see what each operation saves. A function mode sees the calls, and so knows which function made a
tensor and which saves it. A tensor that cheap functions make from saved ones is recomputed instead of saved.
"""

import sys
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernels import private
from kernels.eager import calls
from kernels.eager.coder import CHECKPOINT, Coder
from kernels.eager.encoded import Bools, Encoded, Logarithms, SavedCode, Sided
from kernels.eager.integers import coding_of
from kernels.eager.intervals import Interval
from kernels.eager.keeper import Keeper
from kernels.eager.outer_hooks import WithOuterHooks, outer_hooks, unpack
from kernels.eager.provenance import ALIVE, Provenance, RunningCall
from kernels.eager.rules import attention_again, dropout_scale, dropped, opened
from kernels.eager.sides import ABOVE_ZERO, Sides, Waiting, source_of
from kernels.eager.sites import Sites
from kernels.eager.tensors import ViewGeometry, flat, is_dense, is_plain, tensors
from kernels.eager.undecoded import Shape, Undecoded, may_be_read_by_pieces
from kernels.eager.values import Constant, Recent, Value
from kernels.eager.whole import OWN, is_operand, watch, why_whole
from kernels.methods.every_tensor import EveryTensor
from kernels.torch_state import autocasting, saving_hooks


class Compressing(WithOuterHooks):
    """A context manager for one forward pass that stores autograd's saved tensors in few bits.

    Other saved-tensor hooks inside of it, as a checkpoint's, keep their tensors. Hooks around it, as those that move
    tensors to the CPU, get the codes.

    Parameters
    ----------
    method
        compress or a plan: bits of an element and rounding.
    parameters, inputs
        Tensors that are alive anyhow and saved whole, except inputs that require a gradient.
    names
        Names of modules, for a method that goes by site.
    coder
        What makes the codes; None: a `Coder` of the method.

    Attributes
    ----------
    keeper
        What saves exactly what must not have a code after all.
    """

    def __init__(
        self,
        method: EveryTensor,
        parameters: Iterable[Tensor] = (),
        inputs: Iterable[Tensor] = (),
        names: Mapping[nn.Module, str] | None = None,
        *,
        coder: Coder | None = None,
    ) -> None:
        super().__init__()
        self.provenance = Provenance(parameters, inputs)
        self._sites = Sites(names or {}) if method.by_site else None
        self._running: list[RunningCall] = []
        self._noise: Value | None = None  # of the running dropout
        self._waiting: Value | None = None  # of the running norm
        self._sides: dict[Value, tuple[SavedCode, Tensor]] = {}  # codes and edges that tell where a norm is above 0
        self._recent: Recent = {}
        self._coder = coder or Coder(method)
        self.keeper = Keeper(self.provenance, self._coder)
        self._busy = False  # with calls that are not part of the forward pass

    def __enter__(self) -> Self:
        self.outer = self._coder.outer = outer_hooks()
        self._functions = private.functions_seen()
        self._functions.__enter__()
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
        self._functions.__exit__(*error)
        del self._hooks, self._functions, self._noise  # these refer to this object: a cycle
        self._sides.clear()
        self.keeper.clear()
        self.provenance.clear()

    def forget(self) -> None:
        """Release the tensors decoded by the last backward pass, before the next over the same graph."""
        self._recent.clear()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling() or not self._is_seeing():
            return function(*args, **kwargs)
        name = calls.name_of(function)
        if name in calls.PASSED or (name == "get" and function.__self__ is not Tensor.data):
            result = function(*args, **kwargs)
            self.keeper.lineage.view(args, result)
            return result
        if name == calls.ATTENTION and torch.is_grad_enabled():
            mask = self.provenance.whole_mask(*args, **kwargs)
            if mask is not None and self.provenance.exact(mask.tensor) not in ALIVE:
                watch(mask.tensor, name, "a mask, which may hold infinities")
            self._running.append(RunningCall(name))  # it names sites
            try:
                return attention_again(function, mask, args, kwargs)
            finally:
                self._running.pop()
        name = calls.named(name, args, kwargs)
        if (inner := opened(function, args, kwargs)) is not None:
            super().__enter__()
            try:
                return inner(*args, **kwargs)
            finally:
                super().__exit__(None, None, None)
        if name in calls.DROPOUTS:
            self._noise, self._scale = None, dropout_scale(args, kwargs)
        operands = list(tensors((*args, *kwargs.values())))
        version = operands[0]._version if operands and is_plain(operands[0]) else 0
        repeated = self.provenance.repeated(name, function, args, kwargs, operands)
        jumps, coding = Interval.of(name, args, kwargs), coding_of(name, args, kwargs, operands)
        self._running.append(RunningCall(name, operands, version, repeated, autocasting(operands), jumps, coding))
        self.keeper.lineage.begin()
        try:
            result = function(*args, **kwargs)
            self._learn(result)
            # These read or set .data, or return parts whose versions are counted separately.
            if getattr(function, "__self__", None) is Tensor.data or name.startswith("unsafe_"):
                self.provenance.uncount(filter(is_plain, tensors((*operands, result))))
            return result
        finally:
            self._running.pop()
            self._waiting = None

    def _is_seeing(self) -> bool:
        """Whether tensors that calls save reach the hooks of this object."""
        return not (self._busy or saving_hooks() != (self._pack, self._unpack) or private.in_transform())

    def _learn(self, result: Any) -> None:
        running = self._running[-1]
        in_place = bool(running.operands) and running.operands[0] is result  # its argument is overwritten
        if not isinstance(result, Tensor):
            running = running._replace(repeated=None)
        elif running.name in calls.DROPOUTS and self._noise is not None and not in_place:
            noise = running.operands[0], self._noise, self._scale
            running = running._replace(repeated=self.provenance.call(dropped, noise, {}))
        self._busy = True
        try:
            for tensor in tensors((result,)):
                if is_plain(tensor):
                    self.provenance.learn(running, tensor)
            self._encode_waiting(result)
            self.keeper.ended(running, result)
        finally:
            self._busy = False

    def _encode_waiting(self, result: Any) -> None:
        """Encode the input of a norm, whose result is known by now."""
        value = self._waiting
        if value is None or value.saved is None or not isinstance(waiting := value.saved.code, Waiting):
            return
        with torch.no_grad():
            code = self._coder.after_norm(waiting, result)
            edges = code.hand_over_edges()
            value.saved = self._coder.saved(code)
            if edges is not None:
                self._sides[self.provenance.value(result)] = value.saved, edges

    def _pack(self, x: Tensor) -> Any:
        busy, self._busy = self._busy, True
        try:
            with torch.no_grad():
                saver = self._saver(frame := sys._getframe(1))
                self.keeper.saving(frame, x, saver)
                replacement = self._replacement(x, saver)
                self.keeper.saved()
                return replacement
        finally:
            self._busy = busy

    def _saver(self, frame: FrameType) -> RunningCall:
        """The call that saves: an autograd.Function, known by the frame that called the hook, or torch's function."""
        if (applied := private.function_of(frame)) is not None:
            function, args = applied
            if function.__name__ == "_NoopSaveInputs":  # a checkpoint's, in torch 2.9
                return RunningCall(CHECKPOINT)
            own = hasattr(function, "saved_by") and function.saved_by(*args).method is not None
            operands = list(tensors(args))
            return RunningCall(
                OWN if own else f"{function.__name__}{calls.APPLY}", operands, autocast=autocasting(operands)
            )
        if frame.f_globals["__name__"] == checkpoint.__module__:  # it saves inputs, and is no operation
            return RunningCall(CHECKPOINT)
        return self._running[-1] if self._running else RunningCall("")

    def _replacement(self, x: Tensor, saver: RunningCall) -> Any:
        """The pair that autograd holds in place of x, for `_unpack`."""
        if saver.name == CHECKPOINT and not x.numel():  # a stand-in that torch 2.9 saves beside the inputs: no site
            return self._coder.packed(x), x._version
        function = saver.name if saver.name != CHECKPOINT or not self._running else self._running[-1].name
        site = "" if self._sites is None else self._sites.name(function)
        if why := why_whole(x, saver, self.provenance):
            if why not in ALIVE:
                watch(x, saver.name, why)
            return self._coder.packed(x), x._version
        if saver.name in calls.SHAPE_ONLY and x.is_floating_point():
            return x.new_empty(()), ViewGeometry.of(x)
        value = self.provenance.phase(x) if saver.name in calls.PHASES else self.provenance.value(x)
        if value.has_code_of(Logarithms) and saver.name not in calls.LOG_PROBABILITIES:
            value = self.provenance.anew(x)
        if value.call is None and saver.name in calls.RESULTS and saver.repeated is not None and is_dense(x):
            value.call = saver.repeated.giving(x) if value not in saver.repeated.operands else None
        if not value.is_available():
            code = self._coder.code_of(x, saver, site)
            edges = code.hand_over_edges()
            value.saved = self._coder.saved(code)
            if saver.interval is not None and edges is not None:
                value.inside[saver.interval] = self._coder.saved(Sides(value.saved, edges))
            if isinstance(code, Waiting):
                self._waiting = value
            self.provenance.relieve(saver.operands)
        if saver.interval is not None and saver.interval not in value.inside:
            value.inside[saver.interval] = self._coder.saved(self._inside(x, value, saver, saver.interval))
        if saver.name in calls.DROPOUTS and not is_operand(x, saver):
            self._noise = value
        value.expect()
        self.keeper.coded(value, x, saver)
        is_element_wise = saver.name in calls.ELEMENT_WISE or saver.name in calls.DROPOUTS
        return value, Shape.of(x) if is_element_wise else ViewGeometry.of(x)

    def _inside(self, x: Tensor, value: Value, saver: RunningCall, interval: Interval) -> Encoded:
        """The code of which elements are inside an interval."""
        elements, source = flat(x), source_of(value, ViewGeometry.of(x), saver)
        if interval == ABOVE_ZERO and source in self._sides:
            saved, edges = self._sides[source]
            if isinstance(saved.code, Sided) and saved.code.count == elements.numel():  # not if x is of a part of it
                return Sides(saved, edges)
        return Bools(interval.holds(elements))

    def _unpack(self, pair: tuple[Any, Any]) -> Tensor:
        saved, version = pair
        if isinstance(version, int):
            return Constant(saved, version).checked() if self.outer is None else unpack(self.outer, saved)
        if isinstance(version, Shape):
            # Outer hooks want to unpack now: a checkpoint would run forward again, which no operator can do.
            now = self.outer is not None or private.in_transform()
            if not now and may_be_read_by_pieces(saved, version):
                return Undecoded(saved, version, self._recent)
            version = version.geometry
        geometry: ViewGeometry = version
        if isinstance(saved, Tensor):
            size, stride, _ = geometry
            return saved.expand(size) if geometry.is_contiguous() else saved.new_empty_strided(size, stride)
        with torch.no_grad(), private.DisableTorchFunction():
            decoded: Tensor = saved.flat(self._recent)
            return decoded.as_strided(*geometry)
