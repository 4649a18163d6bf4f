"""`compress`: a model whose training saves less, and the handle that tells and undoes it."""

from typing import Any

from torch import nn

from kernels.compression.report import Report
from kernels.errors import KernelError, shown
from kernels.graph.capture import Captured, Engine
from kernels.graph.units import units
from kernels.graph.ways.policies import way_of
from kernels.methods.compressed import ROUNDINGS
from kernels.methods.every_tensor import EveryTensor
from kernels.methods.method import check_bits


class Handle:
    """A compressed model; `str(handle)` says what is captured, what is saved, and what runs as stock.

    Attributes
    ----------
    names
        The modules that are captured one by one; "" is the model itself.
    report
        The tensors that the graphs save, as of now: a graph is captured at its first call with gradients.
    stock
        Modules that run as stock, with the reason.
    refused
        With a policy: activations that stay exact, with the reason.
    """

    def __init__(self, captured: list[tuple[str, nn.Module]], engine: Engine) -> None:
        self._captured, self._engine = captured, engine
        self.names = tuple(name for name, _ in captured)

    @property
    def report(self) -> Report:
        return Report(tuple(self._engine.partition.graphs))

    @property
    def stock(self) -> dict[str, str]:
        return dict(self._engine.stock)

    @property
    def refused(self) -> dict[str, str]:
        return dict(self._engine.partition.refused)

    def remove(self) -> None:
        """Give back the model as it was: the same objects, with their own forward."""
        for _, module in self._captured:
            call = module.__dict__.get("forward")
            if isinstance(call, Captured):
                del module.__dict__["forward"]
                if call.own is not None:
                    module.__dict__["forward"] = call.own
        self._captured = []
        self._engine.entries.clear()

    def __str__(self) -> str:
        bits, policy = self._engine.bits, self._engine.policy
        what = policy or ("exact" if bits is None else f"{bits} bits")
        if not self._captured:
            return f"compress, {what}: removed"
        lines = [f"compress, {what}: {len(self.names) - len(self.stock)} modules captured"]
        lines += [f"  {name or 'the model'} runs as stock: {reason}" for name, reason in self.stock.items()]
        if not self._engine.partition.graphs:
            lines.append("  no graph yet: each is captured at its first call with gradients")
            return "\n".join(lines)
        if policy is not None:
            lines.append(f"  activations save {way_of(policy).saves}; the error: {way_of(policy).error}")
        lines += [f"  {place} stays exact: {reason}" for place, reason in self.refused.items()]
        return "\n".join([*lines, str(self.report)])


def compress(
    model: nn.Module, *, bits: int | None = None, rounding: str = "nearest", policy: str | None = None
) -> Handle:
    """Make training save less; what forward computes stays the same, bit for bit.

    Repeated blocks, as a transformer's layers, are captured one by one as graphs of forward and backward, at their
    first call with gradients. PyTorch's own kernels run the graphs: nothing is compiled. Without gradients, and where
    a module cannot be captured, its own forward runs.

    Parameters
    ----------
    model
        Changed in place; the same model may be compressed again after `Handle.remove`.
    bits
        None: gradients are exact; backward computes cheap operations again, and masks take one bit an element. They are
        the same bit for bit, but where several blocks share a tensor, as an encoder's output: there they may be summed
        in another order (3e-7 at most in 42 architectures of transformers). 2 to 8: tensors of floating-point numbers
        are saved in so many bits, too, with half a bit for the range of each group of 64; gradients are approximate.
    rounding
        "nearest", or "stochastic", whose decoded values have the right mean.
    policy
        A paper's method for activations, in place of bits; all else is exact. "fewbit-1" to "fewbit-8": a code of the
        input; "invact", "invact-2": the output and a bit or two; "forward-ad": the derivative. Our kernels compute
        activations then, and round their results once.

    Returns
    -------
    Handle
        Says what was captured, and undoes it.

    Raises
    ------
    KernelError
        For other values, and for a model that is compressed already.
    """
    if not isinstance(model, nn.Module):
        raise KernelError(f"model must be a torch.nn.Module, got {shown(model)}")
    if bits is not None:
        check_bits(bits, EveryTensor.widths)
    if policy is not None:
        way_of(policy)
        if bits is not None:
            raise KernelError(f"bits must be None with policy={policy!r}, got {bits}; give one of the two")
    if rounding not in ROUNDINGS:
        raise KernelError(f"rounding must be one of {', '.join(ROUNDINGS)}, got {shown(rounding)}")
    for name, module in model.named_modules():
        if isinstance(module.__dict__.get("forward"), Captured):
            raise KernelError(
                f"model must not be compressed already, but {name or 'the model'} is; call remove() of its handle"
            )
    engine = Engine(bits, rounding, policy)
    captured = list(units(model, leaves=bits is not None))
    for name, module in captured:
        own: Any = module.__dict__.get("forward")
        module.forward = Captured(module, name, engine, own)
    return Handle(captured, engine)
