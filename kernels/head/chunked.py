"""The cross-entropy of a linear layer's results, some rows at a time: nothing of the size of all logits is there.

A loss of one number has its gradients computed in forward, chunk by chunk, and scaled in backward: they take the memory
that backward begins with anyway, and are kept as long as the graph is. Losses of rows compute each chunk's logits again
in backward. So do logits in float16, whose gradients would be too small before a scaler has multiplied the loss.

Results are those of stock but for rounding: products of fewer rows may sum in another order, and the gradient of the
weight is a sum over chunks, each rounded to its dtype.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from actfit.kernels import private
from actfit.kernels.autograd import once_differentiable
from actfit.kernels.head.steps import Step

LEAST_ROWS = 128  # of a chunk: fewer do not fill a GPU
ALIGNED = 64  # rows of a chunk are a multiple of it, as tiles of products are


def rows_of(weight: Tensor) -> int:
    """Rows of a chunk.

    Up to four tensors of a chunk's logits are there in float32: together as much as the weight in float32, of which a
    gradient is there anyway.
    """
    rows: int = max(LEAST_ROWS, weight.shape[1] // 4)
    return -(-rows // ALIGNED) * ALIGNED


@dataclass(frozen=True)
class Linear:
    """Logits to be made: `steps`, operations of single elements or of whole rows, of x @ weight.T + bias.

    x is of shape (..., width). `turned`: the second of three dimensions is that of classes, not the last.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    steps: tuple[Step, ...] = ()
    turned: bool = False

    @property
    def shape(self) -> torch.Size:
        straight = self.x.shape[:-1] + self.weight.shape[:1]
        return straight[:1] + straight[:0:-1] if self.turned else straight

    @property
    def dtype(self) -> torch.dtype:
        return self.after(self.x.new_empty(0)).dtype

    @property
    def given(self) -> list[Tensor]:
        return [each for each in (self.x, self.weight, self.bias) if each is not None]

    @property
    def versions(self) -> list[int]:
        """What changes when x, weight or bias change in place."""
        return [each._version for each in self.given]

    @property
    def freed(self) -> bool:
        """Whether the memory of x, weight or bias is gone, as FSDP does with weights."""
        real = [each for each in self.given if each.numel() and not private.is_fake(each)]
        return any(each.untyped_storage().size() == 0 for each in real)

    def after(self, values: Tensor) -> Tensor:
        """What the steps make of the linear layer's values."""
        return reduce(lambda made, step: step(made), self.steps, values)

    def whole(self) -> Tensor:
        """All logits."""
        with without_autocast(self.x):
            made = self.after(F.linear(self.x, self.weight, self.bias))
            return made.transpose(1, 2) if self.turned else made

    def chunks(self) -> Iterator[slice]:
        """Slices of rows; x has two dimensions."""
        rows = rows_of(self.weight)
        return (slice(start, start + rows) for start in range(0, max(len(self.x), 1), rows))


def without_autocast(x: Tensor) -> torch.autocast:
    """A context in which products have the dtypes that they are given."""
    return torch.autocast(x.device.type, enabled=False)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums."""
    return torch.promote_types(dtype, torch.float32)


@dataclass(frozen=True)
class CrossEntropy:
    """Arguments of F.cross_entropy, or of F.nll_loss."""

    function: Callable[..., Tensor]  # which of the two
    targets: Tensor  # classes, of shape (rows,), integers
    reduction: str  # "mean", "sum" or "none"
    options: Mapping[str, Any]  # weight, ignore_index and label_smoothing, as far as the function takes them

    def of(self, linear: Linear) -> Tensor:
        """The loss; that of each row is of shape (rows,)."""
        linear = replace(linear, x=linear.x.flatten(0, -2), turned=False)
        given = (linear.x, linear.weight, linear.bias, linear.steps, self)
        if self.reduction != "none" and linear.x.dtype != torch.float16:
            return cast(Tensor, _Total.apply(*given))
        losses: Tensor = _Losses.apply(*given)
        return losses if self.reduction == "none" else self.total(losses, self.share(linear))

    @property
    def watched(self) -> tuple[Tensor, Tensor | None]:
        """What is saved only so that a change in place is noticed."""
        return self.targets, self.options["weight"]

    def share(self, linear: Linear) -> Tensor:
        """What the sum of all losses is multiplied by: 1, or for a mean 1 / the weights of all rows that count."""
        one = torch.ones((), dtype=wide(linear.dtype), device=linear.x.device)
        if self.reduction == "sum":
            return one
        counts, weight = self.targets != self.options["ignore_index"], self.options["weight"]
        return one / (counts.sum() if weight is None else weight[self.targets[counts]].sum())

    def total(self, losses: Tensor, share: Tensor) -> Tensor:
        """The loss of one number, of those of the rows."""
        return (losses.sum(dtype=wide(losses.dtype)) * share).to(losses.dtype)

    def rows(self, logits: Tensor, part: slice) -> Tensor:
        """Losses of a chunk."""
        return self.function(logits, self.targets[part], reduction="none", **self.options)

    def passes(
        self, linear: Linear, needed: Sequence[bool], weights: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """The losses of all rows; with `weights` of rows, too, the gradients of x, weight and bias that are needed."""
        x, weight, bias = linear.x, linear.weight, linear.bias
        wanted = zip((x, weight, bias), needed, strict=True)
        of_x, of_weight, of_bias = (
            torch.zeros_like(value) if need and weights is not None else None for value, need in wanted
        )
        losses = []
        # A checkpoint around this must not see each chunk's own graph as a reason to run again.
        with torch.no_grad(), without_autocast(x), private.without_saved_hooks():
            for part in linear.chunks():
                logits = F.linear(x[part], weight, bias)
                if weights is None:
                    losses.append(self.rows(linear.after(logits), part))
                    continue
                with torch.enable_grad():
                    of_rows = self.rows(linear.after(logits.requires_grad_()), part)
                (of_logits,) = torch.autograd.grad(of_rows, logits, weights[part].to(of_rows.dtype))
                losses.append(of_rows.detach())
                del of_rows, logits
                if of_x is not None:
                    torch.mm(of_logits, weight, out=of_x[part])
                if of_weight is not None:
                    of_weight.addmm_(of_logits.t(), x[part])
                if of_bias is not None:
                    of_bias += of_logits.sum(0)
        return torch.cat(losses), (of_x, of_weight, of_bias)


class _Losses(torch.autograd.Function):
    """The losses of all rows."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, steps: tuple[Step, ...], loss: CrossEntropy
    ) -> Tensor:
        ctx.steps, ctx.loss = steps, loss
        ctx.save_for_backward(x, weight, bias, *loss.watched)
        return loss.passes(Linear(x, weight, bias, steps), ctx.needs_input_grad[:3])[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, *_ = ctx.saved_tensors
        linear = Linear(x, weight, bias, ctx.steps)
        _, made = ctx.loss.passes(linear, ctx.needs_input_grad[:3], grad)  # by each chunk's logits, made again
        return *once(made, (x, weight)), None, None


class _Total(torch.autograd.Function):
    """The loss of one number; its gradients are computed with it."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, steps: tuple[Step, ...], loss: CrossEntropy
    ) -> Tensor:
        linear, needed = Linear(x, weight, bias, steps), ctx.needs_input_grad[:3]
        share = loss.share(linear)
        ctx.save_for_backward(x, weight, bias, *loss.watched)
        losses, ctx.gradients = loss.passes(linear, needed, share.expand(len(x)))
        return loss.total(losses, share)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *_ = ctx.saved_tensors
        made = ctx.gradients
        if private.keeps_graph():  # it may run again
            scale = torch.mul
        else:
            scale, ctx.gradients = Tensor.mul_, None
        with torch.no_grad():
            scaled = [None if each is None else scale(each, grad) for each in made]
        return *once(scaled, (x, weight)), None, None


def once(gradients: Sequence[Tensor | None], given: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients; differentiating them raises KernelError."""
    return tuple(None if each is None else once_differentiable(each, *given) for each in gradients)
