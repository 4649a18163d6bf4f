"""A callback for the Trainer of transformers, and what derives from it, as TRL's SFTTrainer."""

import weakref
from os import PathLike
from pathlib import Path
from typing import Any

from tqdm import tqdm

try:
    from torch import nn
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    raise ImportError(
        "actfit.integrations.transformers needs PyTorch and transformers; pip install torch transformers accelerate",
        name=error.name,
    ) from None

from actfit.integrations.core import Compression, at_first_step, give_back, is_sharded
from actfit.kernels.errors import KernelError
from actfit.kernels.planning.plan import Plan

PLAN_FILE = "actfit-plan.json"  # in the trainer's output and in its checkpoints
# Models that a callback has begun with, and the state of the Trainer's training, which may be gone.
_BEGUN = weakref.WeakKeyDictionary[nn.Module, "weakref.ref[Any]"]()


class ActfitCallback(TrainerCallback):
    """Compresses the Trainer's model at its first batch, and gives it back when training ends.

        Trainer(model=model, args=args, train_dataset=rows, callbacks=[ActfitCallback(bits=8)]).train()

    It prints one line: bytes that are saved for backward, the peak of a step, and the error of the gradient. With `fit`
    it plans by the first batch of training, with the model's own loss, dtypes and autocast, writes the plan to
    `actfit-plan.json` in the output folder and in each checkpoint, and takes it up where training resumes.

    Parameters
    ----------
    bits, rounding, plan, policy, chunked_loss, compiled, fit
        As of `actfit.compress`; none of them: gradients stay exact.
    optimizer
        With `fit`: True makes it a budget of a whole training, with weights, gradients and the trainer's optimizer; or
        the name of an optimizer that counts in its place, as of `compress`.

    Raises
    ------
    KernelError
        For invalid values; when training begins with `torch_compile`, `gradient_checkpointing` (unless gradients stay
        exact), DeepSpeed or several GPUs in one process; under FSDP with `fit`.
    """

    def __init__(
        self,
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
        self._cancel: Any = None

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse settings early."""
        _check_settings(args)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Compress the model, or wait for its first batch."""
        self._give_back()  # where a training was broken off, as for a smaller batch
        _check_settings(args)
        model: nn.Module = kwargs["model"]
        if model in _BEGUN and _BEGUN[model]() is not state:  # another Trainer's training was broken off
            give_back(model)
        _BEGUN[model] = weakref.ref(state)
        if not self.compression.exact and any(
            getattr(part, "gradient_checkpointing", False) for part in model.modules()
        ):
            raise KernelError(
                "gradient_checkpointing must be False for approximate gradients, got True, which saves the inputs of"
                " layers alone, so that little is left to compress; turn it off, or write ActfitCallback(), which is"
                " exact; fit= recomputes blocks by itself"
            )
        self._resume(Path(args.output_dir) / f"checkpoint-{state.global_step}")

        def tell(line: str) -> None:
            if state.is_world_process_zero:
                tqdm.write(line)
                self._write(Path(args.output_dir))

        compression = self.compression
        trained = kwargs.get("optimizer"), args.gradient_accumulation_steps > 1
        if is_sharded(model):  # it is not copied, and each forward pass gathers weights
            tell(compression.start(model, None))
        else:
            self._cancel = at_first_step(
                model,
                lambda inputs: compression.start(model, inputs, *trained),
                lambda output: tell(compression.told(output)),
            )

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the plan into the checkpoint."""
        if state.is_world_process_zero:
            self._write(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Give the model back as it was."""
        self._give_back()
        _BEGUN.pop(kwargs["model"], None)

    def _resume(self, checkpoint: Path) -> None:
        """Plan anew, unless training resumes from a checkpoint with a plan."""
        if self.compression.fit is not None:
            resumes = (checkpoint / PLAN_FILE).exists()
            self.compression.take_up(Plan.load(checkpoint / PLAN_FILE) if resumes else None)

    def _write(self, folder: Path) -> None:
        plan = self.compression.plan
        if plan is not None:
            folder.mkdir(parents=True, exist_ok=True)
            plan.save(folder / PLAN_FILE)

    def _give_back(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        self.compression.stop()


def _check_settings(args: Any) -> None:
    """Raise KernelError for settings of a Trainer under which models cannot be compressed."""
    if args.torch_compile:
        raise KernelError(
            "torch_compile must be False with ActfitCallback, which itself compiles blocks if asked to,"
            " got True; write ActfitCallback(..., compiled=True)"
        )
    if getattr(args, "deepspeed", None):
        raise KernelError(
            "deepspeed must be None with ActfitCallback, which was never tried with it, got a configuration; use DDP or"
            " FSDP2"
        )
    if args.n_gpu > 1:
        raise KernelError(
            f"n_gpu must be 1 with ActfitCallback, as DataParallel copies the model in each step, got {args.n_gpu};"
            " start a process for each GPU: torchrun --nproc-per-node"
        )
