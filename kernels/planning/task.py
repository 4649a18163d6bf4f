"""What planning asks of a model, with some of its blocks computed again in backward: bytes of a step, and errors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor

from kernels.errors import KernelError
from kernels.memory.isolated import on_copies, train
from kernels.methods.every_tensor import SMALLEST, SMALLEST_GROUP
from kernels.planning.batches import Call, call_of, parts
from kernels.planning.blocks import recomputing
from kernels.planning.observe import Step, observe
from kernels.planning.sensitivity import Bits, Gradients, Loss, Trials, sensitivities

Blocks = Sequence[str]  # names of those that are computed again


@dataclass(frozen=True)
class Task:
    """A model in training, and what its errors are measured on, as `make_plan` has them."""

    model: nn.Module
    call: Call
    loss: Loss | None
    rounding: str
    samples: int
    passes: int
    stand_in: tuple[nn.Module, Any] | None

    @property
    def training(self) -> bool:
        """Whether to put the model into training mode: it comes from a file, then; else modes are the user's."""
        return not self.model.training

    def step(self, blocks: Blocks) -> Step:
        """A step of the whole batch."""
        with recomputing(self.model, blocks):
            return observe(self.model, *self.call, training=self.training)

    def errors(self, blocks: Blocks, step: Step) -> dict[str, dict[int, float]]:
        """Of the step's sites, as `sensitivities` has them."""
        names = [site.name for site in step.sites]
        with self._gradients(blocks, names, check=False) as gradients:
            return sensitivities(gradients, names, self.passes)

    def checked(self, blocks: Blocks, plans: Sequence[Bits]) -> list[float]:
        """||g' - g||² / ||g||² with each of these bits, on other samples than errors are measured on."""
        with self._gradients(blocks, plans[0], check=True) as gradients:
            return [gradients.error(bits) for bits in plans]

    @contextmanager
    def _gradients(self, blocks: Blocks, names: Sequence[str] | Bits, check: bool) -> Iterator[Gradients]:
        model, call = (
            (self.model, self.call) if self.stand_in is None else (self.stand_in[0], call_of(self.stand_in[1]))
        )
        if any(isinstance(weight, FakeTensor) or weight.is_meta for weight in model.parameters()):
            raise KernelError(
                "model must have numbers for its errors to be measured, got one of fake tensors; give"
                " stand_in=(model, inputs): a narrow one with modules of the same names"
            )
        few = parts(call, self.samples)
        trials = Trials(self.rounding)
        trials.smallest = int(SMALLEST * few.share) if self.stand_in is None else SMALLEST_GROUP
        with on_copies(model), recomputing(model, blocks), torch.compiler.set_stance("force_eager"):
            if not model.training:
                train(model)
            gradients = Gradients(model, *(few.to_check if check else few.to_plan), self.loss, trials)
            missing = set(names) - trials.sites.keys()
            if missing:
                raise KernelError(
                    f"model must save the same tensors in each step, got none at {min(missing)!r} with"
                    f" {len(names) - len(missing)} others; its forward depends on numbers, which a plan cannot know"
                )
            yield gradients


def completed(errors: Mapping[str, Mapping[int, float]], step: Step) -> dict[str, Mapping[int, float]]:
    """A guess at the errors of all sites of a step, where some were measured: the others' are those of the worst."""
    worst = max(errors.values(), key=lambda by_bits: max(by_bits.values()))
    return {site.name: errors.get(site.name, worst) for site in step.sites}
