"""What the callbacks share: they compress a model at its first batch of training, and say in one line what it saves."""

import functools
import sys
from collections.abc import Callable
from os import PathLike
from typing import Any

import torch
from torch import Tensor, distributed, nn

from actfit.kernels.errors import KernelError
from actfit.kernels.graph.handle import Handle, compress
from actfit.kernels.graph.install import removed
from actfit.kernels.graph.request import check_request, loaded
from actfit.kernels.memory.measure import saved_bytes
from actfit.kernels.memory.saved import size
from actfit.kernels.memory.step import own_loss, peak_bytes
from actfit.kernels.names import OPTIMIZERS
from actfit.kernels.planning.batches import Call, call_of
from actfit.kernels.planning.make import plan_to_fit
from actfit.kernels.planning.plan import Plan


class Compression:
    """The compression of a model in training, by arguments of `compress`, which says what they mean.

    Attributes
    ----------
    handle
        Of the model, once it is compressed.
    plan
        The one that was given, or made for `fit`.
    line
        What is saved, in one line.
    """

    def __init__(
        self,
        bits: int | None,
        rounding: str | None,
        plan: Plan | str | PathLike[str] | None,
        policy: str | None,
        chunked_loss: bool | None,
        compiled: bool | None,
        fit: str | float | None,
        optimizer: bool | str,
    ) -> None:
        self.optimizer = optimizer or None  # True: the trainer's
        named = OPTIMIZERS[0] if optimizer is True else self.optimizer
        check_request(bits, rounding, plan, policy, fit, chunked_loss, compiled, named)
        self.plan = None if plan is None else loaded(plan, compiled)
        self.fit, self.rounding, self.with_bits, self.compiles = fit, rounding, bits is not None, bool(compiled)
        self._options: dict[str, Any] = {
            "bits": bits, "rounding": rounding, "policy": policy, "chunked_loss": chunked_loss, "compiled": compiled,
        }  # fmt: skip
        self.exact = all(value is None for value in (bits, plan, policy, fit))
        self.handle: Handle | None = None
        self.line = ""

    def start(self, model: nn.Module, inputs: Any, optimizer: Any = None, accumulates: bool = False) -> str:
        """Compress a model, and say in one line what it saves.

        Parameters
        ----------
        model
            As it trains, not compressed yet.
        inputs
            A batch as of `make_plan`, by which it is planned and measured; None: without, as under FSDP.
        optimizer
            The trainer's; None: it has none or several.
        accumulates
            Whether gradients of several batches are added up.

        Raises
        ------
        KernelError
            As `compress` and `make_plan` do, and for a budget without a batch.
        """
        if self.fit is not None:
            named = optimizer if self.optimizer is True else self.optimizer
            if self.optimizer is True and optimizer is None:
                raise KernelError(
                    "optimizer must be a name where the trainer has not one optimizer, got True; give the name of one"
                    " that takes as much, as 'adamw'"
                )
            self.plan = self._planned(model, inputs, self.fit, {"optimizer": named, "accumulates": accumulates})
        if self.plan is not None:
            self.handle = compress(model, plan=self.plan)
            told = str(self.plan).splitlines()[: 2 if self.plan.needed else 1]
        else:
            before = _bytes(model, inputs)
            self.handle = compress(model, **self._options, inputs=inputs if self.with_bits else None)
            told = [*_difference(before, _bytes(model, inputs)), self._error()]
        self.line = f"actfit: {'; '.join(told)}"
        return self.line

    def _planned(self, model: nn.Module, inputs: Any, fit: str | float, trained: dict[str, Any]) -> Plan:
        """The plan for a budget: the one that was taken up, or a new one."""
        if self.plan is None and inputs is None:
            raise KernelError(
                f"fit must be left out under FSDP, which has sharded the model already, got {fit!r}; make the"
                " plan before with actfit.make_plan, and give plan= its file"
            )
        options: Any = {"rounding": self.rounding or "nearest", "compiles": self.compiles}
        return _of_first_process(lambda: self.plan or plan_to_fit(model, inputs, fit, **options, **trained))

    def take_up(self, plan: Plan | None) -> None:
        """Go by the plan of a checkpoint, if it was made for the same budget; else plan anew."""
        if self.fit is not None:
            asked = str(self.fit), self.compiles, self.optimizer is not None
            made = plan and (plan.budget, plan.compiled, plan.optimizer != "")
            self.plan = plan if made == asked else None

    def told(self, output: Any) -> str:
        """The line, which says so where the model's output has no loss."""
        if own_loss(output) is None and not (isinstance(output, Tensor) and output.numel() == 1):
            self.line += "; all without the loss, which the model does not compute"
        return self.line

    def stop(self) -> None:
        """Give back the model as it was."""
        if self.handle is not None:
            self.handle.remove()
            self.handle = None

    def _error(self) -> str:
        if self.exact:
            return "gradients stay exact"
        checked = None if self.handle is None else self.handle.checked
        if checked is None or checked.error is None:
            return "gradients are approximate; actfit.gradient_error measures by how much"
        return f"error of the gradient {checked.error:.2%}, 0 before"


def _bytes(model: nn.Module, inputs: Any) -> tuple[int, int] | None:
    """Bytes that are saved for backward, and the peak of a step; None if the model does not run on fake tensors."""
    if inputs is None:
        return None
    args, kwargs = call_of(inputs)
    try:
        return saved_bytes(model, *args, fake=True, **kwargs).total, peak_bytes(model, *args, **kwargs)
    except KernelError:
        return None


def _difference(before: tuple[int, int] | None, after: tuple[int, int] | None) -> list[str]:
    if before is None or after is None:
        return ["bytes are not measured"]
    names = "saved for backward", "peak of a step"
    return [f"{name} {size(now)}, {size(was)} before" for name, was, now in zip(names, before, after, strict=True)]


def _of_first_process(make: Callable[[], Plan]) -> Plan:
    """The first process's plan, so that all do the same; where one process fails, all raise KernelError.

    All make one, as a model may exchange statistics between processes.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return make()
    failed: Exception | None = None
    made = why = ""
    try:
        made = make().to_json()
    except Exception as error:  # of any kind: the others wait
        failed, why = error, f"{type(error).__name__}: {error}"
    every: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(every, (made, why))
    if failed is not None:
        raise failed
    for rank, (_, reason) in enumerate(every):
        if reason:
            raise KernelError(f"fit must have a plan in every process, got none in process {rank}: {reason}")
    return Plan.from_json(every[0][0])


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 shards a part of it; raises KernelError where the first FSDP does."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # if it was not imported, nothing is sharded
    if fsdp is None:
        return False
    if any(isinstance(part, fsdp.FullyShardedDataParallel) for part in model.modules()):
        raise KernelError(
            "model must be sharded by FSDP2 (fully_shard) to be compressed, got one in FullyShardedDataParallel, of"
            " version 1; set fsdp_version to 2, or ModelParallelStrategy in Lightning"
        )
    return any(isinstance(part, fsdp.FSDPModule) for part in model.modules())


def at_first_step(
    model: nn.Module, start: Callable[[Any], object], tell: Callable[[Any], object]
) -> Callable[[], None]:
    """Call `start` with a batch, once, before the model's first forward pass in training, and `tell` with its output.

    Its inputs are then those of training, and nothing draws from the data loader. Gives a function that cancels it.
    """
    own, forward = vars(model).get("forward"), model.forward
    if getattr(own, "waits", False):
        raise KernelError(
            "callbacks must have one ActfitCallback, got a model that one waits for already; leave one out"
        )

    def cancel() -> None:
        if vars(model).get("forward") is first:
            del model.forward
            if own is not None:
                model.forward = own

    @functools.wraps(forward)
    def first(*args: Any, **kwargs: Any) -> Any:
        if not (model.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        cancel()
        start(Call(args, _numbers(kwargs)))
        output = model.forward(*args, **kwargs)
        tell(output)
        return output

    first.waits, first.cancel = True, cancel  # type: ignore[attr-defined]
    model.forward = first
    return cancel


def give_back(model: nn.Module) -> None:
    """Give back the model as it was, where the callback that compressed it, or waited for it, may be gone."""
    own = vars(model).get("forward")
    if getattr(own, "waits", False):
        own.cancel()
    removed(list(model.named_modules()))


def _numbers(named: dict[str, Any]) -> dict[str, Any]:
    """Inputs with tensors of one number as numbers, as of how many words there are: they are not split by samples."""
    return {
        name: value.item() if isinstance(value, Tensor) and not value.dim() else value for name, value in named.items()
    }
