"""A callback for Lightning's Trainer."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.utilities import rank_zero_info
    from torch import nn
except ModuleNotFoundError as error:
    raise ImportError(
        "actfit.integrations.lightning needs PyTorch and Lightning; pip install torch lightning", name=error.name
    ) from None

from actfit.integrations.core import Compression, at_first_step, is_sharded
from actfit.kernels.errors import KernelError, shown
from actfit.kernels.graph.units import units
from actfit.kernels.planning.plan import Plan
from actfit.kernels.private import is_compiled_module


class ActfitCallback(Callback):
    """Compresses a LightningModule at its first batch, and gives it back when training ends.

        Trainer(callbacks=[ActfitCallback(bits=8)]).fit(module, loader)

    It logs one line: bytes that are saved for backward, the peak of a step, and the error of the gradient. With `fit`
    it plans by the first batch and `training_step`, so that the loss counts, under the trainer's precision. The plan
    is part of the checkpoint, and training that resumes takes it up.

    Parameters
    ----------
    part
        The name of the part to compress, as "net" for `self.net`. "": all of the LightningModule, which must have
        repeated blocks then. A part is measured by its own outputs, without a loss outside of it.
    bits, rounding, plan, policy, chunked_loss, compiled, fit
        As of `actfit.compress`; none of them: gradients stay exact.
    optimizer
        With `fit`: True makes it a budget of a whole training, with weights, gradients and the trainer's optimizer; or
        the name of an optimizer that counts in its place, as of `compress`.

    Raises
    ------
    KernelError
        For invalid values; when training begins for a module without such a part or repeated blocks, for one that is
        compiled, and under FSDP with `fit`.
    """

    def __init__(
        self,
        part: str = "",
        *,
        bits: int | None = None,
        rounding: str | None = None,
        plan: Plan | str | PathLike[str] | None = None,
        policy: str | None = None,
        chunked_loss: bool | None = None,
        compiled: bool | None = None,
        fit: str | float | None = None,
        optimizer: bool | str = False,
    ) -> None:
        self.compression = Compression(bits, rounding, plan, policy, chunked_loss, compiled, fit, optimizer)
        self.part = part
        self._cancel: Any = None
        self._begun = False

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Compress the module, or let its part wait for its first input."""
        if self._begun:
            return
        self._begun = True

        model, compression = _part(pl_module, self.part), self.compression
        trained = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None, trainer.accumulate_grad_batches > 1
        if is_sharded(trainer.model):  # it is not copied, and each forward pass gathers weights
            rank_zero_info(compression.start(model, None))
        elif self.part:
            self._cancel = at_first_step(
                model,
                lambda inputs: compression.start(model, inputs, *trained),
                lambda output: rank_zero_info(compression.told(output)),
            )
        else:
            with _training_step_as_forward(pl_module), trainer.precision_plugin.train_step_context():
                line = compression.start(model, _arguments(pl_module, batch, batch_idx), *trained)
            rank_zero_info(line)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the module back as it was."""
        if self._cancel is not None:
            self._cancel()
        self.compression.stop()
        self._begun, self._cancel = False, None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the module back as it was."""
        self.on_train_end(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """The plan, for the checkpoint."""
        plan = self.compression.plan
        return {} if plan is None else {"plan": plan.to_json()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the plan of a checkpoint."""
        if "plan" in state_dict:
            self.compression.take_up(Plan.from_json(state_dict["plan"], "the checkpoint"))


def _part(module: Any, name: str) -> nn.Module:
    """The part of a LightningModule that is compressed."""
    if getattr(module, "_compiler_ctx", None) or any(map(is_compiled_module, module.modules())):
        raise KernelError(
            f"module must not be compiled with ActfitCallback, got a compiled {type(module).__name__}; give"
            " the module itself, and ActfitCallback(..., compiled=True), which compiles its blocks"
        )
    if not name:
        if [unit for unit, _ in units(module, False)] == [""]:
            raise KernelError(
                f"part must be given for a {type(module).__name__}, which has no repeated blocks, got none; write"
                ' ActfitCallback("net") for self.net, whose forward training_step calls'
            )
        whole: nn.Module = module
        return whole
    try:
        part: nn.Module = module.get_submodule(name)
    except AttributeError:
        known = ", ".join(child for child, _ in module.named_children())
        raise KernelError(f"part must be a part of {type(module).__name__}, as {known}, got {shown(name)}") from None
    return part


@contextmanager
def _training_step_as_forward(module: Any) -> Iterator[None]:
    """Lets a call of the module be a training step that logs nothing."""
    attributes = vars(module)
    before = {name: attributes[name] for name in ("forward", "log", "log_dict") if name in attributes}
    attributes |= {"forward": module.training_step, "log": _silent, "log_dict": _silent}
    try:
        yield
    finally:
        for name in ("forward", "log", "log_dict"):
            attributes.pop(name, None)
        attributes |= before


def _silent(*args: Any, **kwargs: Any) -> None:
    """Logs nothing."""


def _arguments(module: Any, batch: Any, batch_idx: int) -> dict[str, Any]:
    """What `training_step` is called with, by name."""
    first, *others = inspect.signature(module.training_step).parameters
    return {first: batch, **({"batch_idx": batch_idx} if "batch_idx" in others else {})}
