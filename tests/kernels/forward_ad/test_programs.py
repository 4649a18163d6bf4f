"""Nested forward AD in eager code on random programs: the same loss and gradients as plain autograd, and fewer bytes.

For more programs: make programs.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.forward_ad import nested_forward_ad
from kernels.memory.recorder import Recorder
from tests.kernels.forward_ad.programs import Program, inputs

pytestmark = pytest.mark.slow

# Sums in another order are off by some units of 2^-53 of the largest term: a program has at most 15 operations of up to
# 36 terms, of size up to about 10^3. 1e-10 is far above that, and far below what a missing term would give.
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: the error it raised, in a word; or the loss, gradients, and the next random number."""

    error: str = ""
    loss: float = 0.0
    gradients: tuple[Tensor | None, ...] = ()
    random: float = 0.0


def run(program: Program, mode: AbstractContextManager[object]) -> Outcome:
    """Forward in the mode, backward outside of it."""
    x, weight = inputs()
    torch.manual_seed(program.seed)
    try:
        with mode:
            loss = program(x, weight)
        random = torch.rand(()).item()
        loss.backward()
    except RuntimeError as error:
        return Outcome(type(error).__name__)
    return Outcome("", loss.item(), (x.grad, weight.grad), random)


def kept(program: Program, mode: AbstractContextManager[object]) -> int:
    """Bytes saved for backward."""
    x, weight = inputs()
    torch.manual_seed(program.seed)
    with Recorder() as recorder, mode:
        loss = program(x, weight)
    return recorder.saved(loss).total


def off(gradient: Tensor | None, plain: Tensor | None) -> float:
    """The largest difference, relative to the largest number where that is above 1."""
    if gradient is None or plain is None:
        return 0.0 if gradient is plain else torch.inf
    return float(((gradient - plain).abs() / plain.abs().max().clamp_min(1.0)).max())


def mode() -> nested_forward_ad:
    return nested_forward_ad(min_numel=1)


def test_programs(programs: int) -> None:
    wrong, raised, more, less, compared, counted = [], [], [], [], 0, 0
    for seed in range(programs):
        program, seen = Program(seed, eager=True), Program(seed)
        plain, nested = run(program, nullcontext()), run(program, mode())
        if plain.error:
            continue
        compared += 1
        if nested.error:
            raised.append((seed, nested.error))
            continue
        same = plain.loss == nested.loss and plain.random == nested.random
        distances = [off(*pair) for pair in zip(nested.gradients, plain.gradients, strict=True)]
        if not same or not all(distance <= TOLERANCE for distance in distances):  # NaN is none
            wrong.append(seed)
        if run(seen, nullcontext()).error:
            continue
        counted += 1  # in others, functions that the mode does not see hold chains that it takes for freed
        before, after = kept(seen, nullcontext()), kept(seen, mode())
        more += [seed] * (after > before)
        less += [seed] * (after < before)
    assert compared > 0.8 * programs
    assert (wrong, raised) == ([], [])
    assert len(more) <= 0.03 * counted, more
    assert len(less) >= 0.3 * counted  # so the programs do have chains
