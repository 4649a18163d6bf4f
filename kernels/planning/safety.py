"""A safety net: the gradient of a few samples with codes is compared with the exact one and with what is predicted.

Rules say which tensors must be exact. Where they do not know an operation that magnifies errors, the gradient is wrong
without a word. Hence the error is measured, and what cannot be explained by errors of tensors is told.
A plan's bound on the error is the user's, or what rounding to the dtype in training does to a gradient anyway.
"""

import copy
from dataclasses import dataclass
from functools import partial
from math import hypot, inf, isnan
from typing import Any, Literal

import torch
from torch import nn

from actfit.kernels import private
from actfit.kernels.errors import KernelError, shown, warn
from actfit.kernels.memory.making import line
from actfit.kernels.memory.step import Loss
from actfit.kernels.memory.storages import tensors
from actfit.kernels.methods.every_tensor import SMALLEST, EveryTensor
from actfit.kernels.methods.planned import WIDTHS
from actfit.kernels.planning.batches import ELEMENTS, Call, on_samples
from actfit.kernels.planning.sensitivity import Bits, Gradients, Trials, like_site
from actfit.kernels.planning.task import SAMPLES, in_training, written_by

Bound = float | Literal["dtype"]
# Of the coarsest dtype: what rounding any change of a gradient anew comes to in networks of bfloat16, .3 % to 1.1 %,
# with room.
ROUNDING = 4
TIMES = 3  # the predicted error, above which a gradient is wrong
NAMED = 3  # kinds of tensors in a warning
NO_NUMBERS, NO_GRADIENT = "as its tensors have no numbers", "as nothing wants a gradient"  # such models do not train


def check_bound(bound: Any) -> None:
    """Raise KernelError for a bound that is none."""
    is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
    if bound not in (None, "dtype") and not (is_number and 0 <= bound < inf):
        raise KernelError(f'max_gradient_error must be "dtype" or a number of 0 or more, got {shown(bound)}')


def squared_bound(bound: Bound | None, model: nn.Module) -> float:
    """The largest ||g' - g||² / ||g||² that is allowed: as given, or as rounding to the dtype in training makes it.

    0 if that is less than what float32 rounds, or, of a dtype, finer than codes of the most bits could ever be.
    """
    if isinstance(bound, int | float):
        return float(bound) ** 2 if bound >= torch.finfo(torch.float32).eps else 0.0
    dtypes = {x.dtype for x in model.parameters() if x.is_floating_point() and x.itemsize > 1}
    devices = {x.device.type for x in model.parameters()} - {"meta"}
    dtypes |= {torch.get_autocast_dtype(device) for device in devices if torch.is_autocast_enabled(device)}
    rounding = ROUNDING * max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
    return rounding**2 if rounding > 2.0 ** -(2 * WIDTHS[-1]) else 0.0


@dataclass(frozen=True)
class Checked:
    """The error of a gradient beside what is predicted.

    Attributes
    ----------
    error
        ||g' - g|| / ||g|| of a few samples; None: not measured.
    predicted
        The error that codes make of the gradient if nothing magnifies the errors of tensors, or that of the plan.
    guilty
        Kinds of saved tensors that err more, with their errors, if the error is too large.
    note
        Why it was not measured, or "".
    of_loss
        Whether the gradient is that of a loss. Else it is that of a random linear function of the output: what a loss
        outside of the model does, as a logarithm of probabilities, is not in the error.
    """

    error: float | None = None
    predicted: float = 0.0
    guilty: tuple[tuple[str, float], ...] = ()
    note: str = ""
    of_loss: bool = True

    def tell(self, strict: bool) -> None:
        """Warn of a gradient that errs more than predicted or was not measured; raise KernelError if `strict`.

        A model that does not train is told of if `strict` only.
        """
        if not self.guilty and (not self.note or (self.note in (NO_NUMBERS, NO_GRADIENT) and not strict)):
            return
        if strict:
            raise KernelError(self._message())
        warn(self._message())

    def _message(self) -> str:
        if not self.guilty:
            return (
                f"the error of the gradient must be measured, got a model that it was not measured of, {self.note};"
                " give inputs, and loss= and targets=, with which a step of training runs, or call gradient_error later"
            )
        by = ", ".join(f"{site!r} ({error:.2g})" for site, error in self.guilty)
        return (
            f"the gradient must err by at most {TIMES} times what is predicted, {self.predicted:.2g}, got"
            f" {self.error:.2g} on samples, by the saved tensors {by}; give more bits, a larger budget, or"
            " none, which is exact"
        )

    def __str__(self) -> str:
        if self.error is None:
            return f"Error of the gradient: not measured, {self.note}"
        without = "" if self.of_loss else ", without your loss (give loss=)"
        by = f"at most {self.predicted:.2%} by those of tensors"
        return f"Error of the gradient of samples{without}: {self.error:.2%}; {by}"


def checked(
    gradients: Gradients,  # of a few samples
    bits: Bits,
    planned: float | None = None,  # the error that a plan promises, which bounds what is predicted
    error: float | None = None,  # the one with these bits, if it is known already
) -> Checked:
    """The error of the gradient with these bits, beside what is predicted.

    A tensor's relative error is one of the gradient of the same size, if an operation neither magnifies nor diminishes
    it, and errors of tensors add up as squares. If the error is larger than the mean one of a tensor, kinds of tensors
    are measured alone.
    """
    coded = {site: width for site, width in bits.items() if width is not None and site in gradients.sites}
    error = _finite(gradients.error(coded) ** 0.5 if error is None else error)
    lost = gradients.decoded.undiminished(coded)
    least = ROUNDING * gradients.decoded.eps
    together = hypot(*lost.values())
    predicted = max(together if planned is None else min(planned, together), least)
    if error <= TIMES * max(least, min(predicted, together / max(len(lost), 1) ** 0.5)):
        return Checked(error, predicted, of_loss=gradients.of_loss)
    kinds: dict[str, list[str]] = {}
    for site in lost:
        kinds.setdefault(like_site(site), []).append(site)
    alone = {
        kind: _finite(gradients.error({site: coded[site] for site in sites}) ** 0.5) for kind, sites in kinds.items()
    }
    worst = sorted(alone.items(), key=lambda item: -item[1])
    guilty = [
        (kind, own) for kind, own in worst if own > TIMES * max(hypot(*map(lost.__getitem__, kinds[kind])), least)
    ]
    if error > TIMES * predicted:
        guilty = guilty or worst
    return Checked(error, predicted, tuple(guilty[:NAMED]), of_loss=gradients.of_loss)


def _finite(error: float) -> float:
    """The error; infinite if it is not a number, as where codes of infinities are read."""
    return inf if isnan(error) else error


def check_model(
    model: nn.Module,
    call: Call,
    loss: Loss | None,
    targets: Any,
    method: EveryTensor,
    kind: type[Gradients],
    planned: float | None = None,  # as of `checked`
    compiles: bool = False,  # whether Inductor is to compile the model's blocks
) -> Checked:
    """The error of the gradient of a few samples of a model that is not compressed yet; the model is left as it is.

    It raises nothing: a model that cannot run so is not measured, with a note.
    """

    def measured(call: Call, targets: Any, share: float) -> Checked:
        trials = Trials(method.rounding, smallest=int(SMALLEST * share), compiles=compiles)
        gradients = kind(copied, *call, loss, trials, targets)
        bits = {site: None if (at := method.at(site)) is None else at.bits for site in gradients.sites}
        return checked(gradients, bits, planned)

    def forward(call: Call, *_: Any) -> None:
        copied(*call.args, **call.kwargs)

    try:
        # With the same tensors: what forward stores in lists and objects stays in the copy.
        copied = copy.deepcopy(model, {id(x): x for x in (*model.parameters(), *model.buffers())})
        if any(private.is_fake(weight) or weight.is_meta for weight in copied.parameters()):
            return Checked(note=NO_NUMBERS)
        if not any(x.requires_grad for x in (*copied.parameters(), *tensors(call))):
            return Checked(note=NO_GRADIENT)
        for module in copied.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm):
                module.register_forward_pre_hook(_check_elements)
        written = written_by(copied, partial(on_samples, call, None, SAMPLES, False, forward))
        with in_training(copied, written):
            return on_samples(call, targets, SAMPLES, False, measured)
    except Exception as error:  # of any kind, as the model or the loss raises it
        return Checked(note=f"as the model cannot run so: {line(error)}")


def _check_elements(module: nn.Module, args: Any) -> None:
    """Raise ValueError if a batch norm is given too few elements."""
    of_batch = module.training or not getattr(module, "track_running_stats", True)
    if of_batch and args and args[0].numel() < ELEMENTS * args[0].shape[1]:
        raise ValueError(
            f"a batch norm must be given {ELEMENTS} elements a channel or more, got {tuple(args[0].shape)}"
        )
