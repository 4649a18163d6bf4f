"""What planning needs to know of a model with some blocks computed again in backward: bytes of a step, and errors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import nn

from actfit.coefficients.progress import silent
from actfit.kernels import private
from actfit.kernels.errors import KernelError
from actfit.kernels.memory.isolated import noting_writes, on_copies, train
from actfit.kernels.memory.measure import trial
from actfit.kernels.memory.step import Living, Loss, check_loss, run_step
from actfit.kernels.methods.every_tensor import MIN_GROUP, SMALLEST
from actfit.kernels.planning.batches import Call, call_of, enough, on_samples
from actfit.kernels.planning.blocks import CAPTURED, Blocks, BlockWays, recomputing, repeated_blocks
from actfit.kernels.planning.noise import Exact
from actfit.kernels.planning.sensitivity import Bits, Gradients, SiteErrors, Trials, completed, sensitivities
from actfit.kernels.planning.step import Step, least_peak
from actfit.kernels.planning.training import Held, Optimizer, held_by
from actfit.kernels.planning.values import Bytes

StandIn = tuple[nn.Module, Any] | tuple[nn.Module, Any, Any]  # a model, its inputs, and the loss's targets
SAMPLES = 2  # on which errors are measured
PASSES = 64  # backward passes that measuring may take
# The share of a batch's sites that a step of few samples may lack: their errors are taken to be as large as any, and
# are missing in the final measurement. The limit is our choice; the networks tried lacked 1 of 18 sites or none.
MISSING = 0.1
MOST = 0.25  # of a batch, of which twice as many samples are tried next, and as many to check; of more: all of it


@dataclass(frozen=True)
class Task(ABC):
    """A model in training, and what its errors are measured on, as for `make_plan`.

    Steps and errors are measured once and cached.
    """

    model: nn.Module
    call: Call
    loss: Loss | None = None
    targets: Any = None
    rounding: str = "nearest"
    samples: int = SAMPLES
    passes: int = PASSES
    stand_in: StandIn | None = None
    progress: Callable[[str], object] = silent
    compiles: bool = False  # whether Inductor is to compile the model's blocks
    optimizer: Optimizer | None = None  # with one, peaks are of a whole training
    accumulates: bool = False  # whether gradients are added up; with an optimizer
    gradients: ClassVar[type[Gradients]]
    _whole: dict[tuple[str, ...], tuple[Bytes, int]] = field(default_factory=dict, repr=False)
    _steps: dict[tuple[BlockWays, bool], Step] = field(default_factory=dict, repr=False)
    _errors: dict[tuple[tuple[str, ...], frozenset[str]], tuple[SiteErrors, SiteErrors]] = field(
        default_factory=dict, repr=False
    )
    planned_on: list[Exact] = field(default_factory=list, repr=False)  # the last gradient that errors were measured of
    written: list[nn.Parameter] = field(default_factory=list, repr=False)  # by forward, as is seen when it first runs
    _engines: dict[Any, Any] = field(default_factory=dict, repr=False)  # of trials
    _samples: list[int | None] = field(default_factory=list, repr=False)  # the numbers tried; None: all

    def __post_init__(self) -> None:
        not_compiled(self.model)
        check_loss(self.loss, self.targets)
        self._samples.append(self.samples)

    @property
    def training(self) -> bool:
        """Whether to put the model into training mode, as it was just loaded; else each module keeps its mode."""
        return not self.model.training

    @property
    def measured_on(self) -> str:
        """The model that errors are measured on: "" for the model itself, or a description."""
        return "" if self.stand_in is None else f"a {type(self.stand_in[0]).__name__} that stands in for it"

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks that backward could compute again."""
        return repeated_blocks(self.model)

    @cached_property
    def held(self) -> Held:
        """Bytes of a training besides those of steps; 0 without an optimizer."""
        given = self.model, (*self.call, self.targets), self.optimizer, self.accumulates
        return Held() if self.optimizer is None else held_by(*given)

    @cached_property
    def stock(self) -> Bytes:
        """Bytes of a step of the unchanged model."""
        self.progress("a step as it is")
        return self.without_codes(())[0]

    def work(self, operations: int) -> float | None:
        """Operations of a step, × those of the unchanged model; None if there are none."""
        _, stock = self.without_codes(())
        return operations / stock if operations and stock else None

    def without_codes(self, blocks: Blocks) -> tuple[Bytes, int]:
        """Bytes of a step without codes, and floating-point operations of its products."""
        key = tuple(blocks)
        if key not in self._whole:
            living = Living()
            with recomputing(self.model, blocks):
                run_step(living, self.model, *self.call, **self._step_options)
                kept = trial(self.model, *self.call, training=self.training).total
            self._whole[key] = Bytes(kept, max(self.held.over([living.peak]))), living.operations
        return self._whole[key]

    @property
    def _step_options(self) -> dict[str, Any]:
        """The loss, its targets and the modes, as `run_step` takes them."""
        there = self.accumulates or self.optimizer is None
        return {"loss": self.loss, "targets": self.targets, "training": self.training, "accumulates": there}

    def step(self, ways: BlockWays = CAPTURED, low_peak: bool = False) -> Step:
        """A step of the whole batch, with codes of all tensors; or without those of which the peak would be higher."""
        low_peak = low_peak and not ways.exact
        key = ways._replace(recomputed=tuple(ways.recomputed), unchanged=tuple(ways.unchanged)), low_peak
        if key not in self._steps:
            again, stock = len(ways.recomputed), len(ways.unchanged)
            self.progress(
                f"a step with{'out' * ways.exact} codes"
                + f", {again} blocks computed again" * bool(again)
                + f", {stock} as they are" * bool(stock)
            )
            if low_peak:
                known = self._steps.get((CAPTURED, True))
                self._steps[key] = least_peak(partial(self._observed, ways), frozenset(known.whole if known else ()))
            else:
                self._steps[key] = self._observed(ways)
        return self._steps[key]

    @abstractmethod
    def _observed(self, ways: BlockWays, whole: Set[str] = frozenset()) -> Step:
        """A step with codes of all tensors but those of these names."""

    def changed(self, ways: BlockWays) -> Callable[[], AbstractContextManager[object]]:
        """What makes a context manager in which the model trains so, with codes of 8 bits unless exact."""
        raise NotImplementedError(f"{type(self).__name__} changes no blocks")

    def errors(self, blocks: Blocks, step: Step) -> SiteErrors:
        """Errors of the step's sites, by `sensitivities`, as far as training may bring them: see `Decoded`."""
        return self._measured(blocks, step)[1]

    def still_to_come(self, blocks: Blocks, step: Step, bits: Bits) -> float:
        """The part of the squared error with these bits that is foreseen, and is not there at the weights of now."""
        now, foreseen = self._measured(blocks, step)
        return sum(foreseen[site][width] - now[site][width] for site, width in bits.items() if width is not None)

    def _measured(self, blocks: Blocks, step: Step) -> tuple[SiteErrors, SiteErrors]:
        """Errors now, and as foreseen."""
        names = [site.name for site in step.sites]
        key = tuple(blocks), frozenset(names)
        if key not in self._errors:
            with self._gradients(blocks, names, False) as gradients:
                measured = sensitivities(gradients, [name for name in names if name in gradients.sites], self.passes)
                foreseen = gradients.decoded.foreseen_errors(measured)
                self.planned_on[:] = [gradients.excerpt()]
            self._errors[key] = completed(measured, step), completed(foreseen, step)
        return self._errors[key]

    def checking(self, blocks: Blocks, names: Sequence[str] | Bits) -> AbstractContextManager[Gradients]:
        """Gradients of samples that plans with these sites were not made with."""
        return self._gradients(blocks, names, True)

    @contextmanager
    def _gradients(self, blocks: Blocks, names: Sequence[str] | Bits, check: bool) -> Iterator[Gradients]:
        model, call, targets = self.model, self.call, self.targets
        if self.stand_in is not None:
            model, inputs, targets = (*self.stand_in, None)[:3]
            call = call_of(inputs)
        if any(private.is_fake(weight) or weight.is_meta for weight in model.parameters()):
            raise KernelError(
                "model must have numbers for its errors to be measured, got one of fake tensors; give"
                " stand_in=(model, inputs): a narrow one with modules of the same names"
            )
        with in_training(model, self.written):

            def gradients_of(call: Call, targets: Any, share: float) -> tuple[Gradients, float]:
                smallest = int(SMALLEST * share) if self.stand_in is None else MIN_GROUP
                again = frozenset(blocks)
                trials = Trials(self.rounding, {}, smallest, again, self.compiles, engines=self._engines)
                return self.gradients(model, *call, self.loss, trials, targets, self.progress), share

            while True:
                samples = enough(model, (call, targets), self._samples[-1])
                self.progress(f"a forward pass of {samples or 'all'} samples")
                gradients, share = on_samples(call, targets, samples, check, gradients_of)
                gradients.share, missing = share, set(names) - gradients.sites
                if not missing or self._may_miss(missing, len(names), share):
                    break
                del gradients
                self._samples.append(2 * samples if samples and share <= MOST else None)
            yield gradients

    def _may_miss(self, missing: Set[str], of: int, share: float) -> bool:
        """Whether a step of samples may lack these sites of a whole batch; if not, more samples are tried.

        Which tensors cross depends on their sizes, too. Raises KernelError if the whole batch lacks many.
        """
        if len(missing) > MISSING * of and share == 1.0:
            raise KernelError(
                f"model must be cut alike in each step, got none of {len(missing)} of its {of} saved tensors, such as"
                f" {min(missing)!r}, on the whole batch; its forward depends on numbers, which a plan cannot know"
            )
        return len(missing) <= MISSING * of


@contextmanager
def in_training(model: nn.Module, written: Iterable[nn.Parameter] = ()) -> Iterator[None]:
    """Runs a model in eager and training mode, and leaves it as it was; `written`: as of `on_copies`."""
    with on_copies(model, written), torch.compiler.set_stance("force_eager"):
        if not model.training:
            train(model)
        yield


def written_by(model: nn.Module, run: Callable[[], object]) -> list[nn.Parameter]:
    """The weights that the model's forward writes to in this run of it; they get back the numbers that they had."""
    with in_training(model), torch.enable_grad(), noting_writes(model) as before:
        run()
    return list(before)


def not_compiled(model: nn.Module) -> None:
    """Raise KernelError for a compiled model, also inside DDP: a plan cannot change what its graphs save."""
    while isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        model = model.module
    if private.is_compiled_module(model):
        raise KernelError(
            "model must not be compiled yet for a plan, got what torch.compile gave, whose graphs save what they do;"
            " give the model itself, and compress(model, fit=..., compiled=True)"
        )
