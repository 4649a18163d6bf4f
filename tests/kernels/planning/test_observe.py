"""What a step is expected to take with other bits is what it takes."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from actfit import KernelError, compress, saved_bytes
from actfit.kernels.graph.engine import Engine
from actfit.kernels.graph.install import install
from actfit.kernels.graph.planning import OBSERVED, CapturedTask
from actfit.kernels.memory.step import differentiated, peak_bytes
from actfit.kernels.methods.planned import WIDTHS, Planned
from actfit.kernels.planning.batches import Call
from actfit.kernels.planning.blocks import BlockWays
from actfit.kernels.planning.step import Step
from benchmarks.compression.meter import measured
from tests.kernels.planning.nets import NETS, text


@cache
def observed() -> Step:
    return observe(*text(1))


def observe(model: nn.Module, inputs: tuple[Tensor, ...], **options: Any) -> Step:
    return CapturedTask(model, Call(inputs, {}), **options).step()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "widths"), [("text", (2, OBSERVED)), ("image", (8, OBSERVED))])
def test_bytes_of_uniform_codes(name: str, widths: tuple[int, ...]) -> None:
    model, inputs = NETS[name]()
    step = observe(model, inputs)
    for bits in widths:
        everywhere = dict.fromkeys([site.name for site in step.sites], bits)
        handle = compress(model, bits=bits)
        assert step.kept_with(everywhere) == saved_bytes(model, *inputs).total
        peak = peak_bytes(model, *inputs)
        assert step.peak_with(everywhere) == peak if bits == OBSERVED else step.peak_with(everywhere) >= peak
        handle.remove()


@pytest.mark.slow
@settings(max_examples=5, deadline=None)  # of a second each
@given(data=st.data())
def test_bytes_of_any_codes(data: st.DataObject) -> None:
    """Whole tensors count twice from when their codes would be made until they would be freed anyhow."""
    step = observed()
    model, inputs = text(1)
    bits = {site.name: data.draw(st.sampled_from([*WIDTHS, None]), label=site.name) for site in step.sites}
    install(model, Engine(Planned(8, "nearest", bits)))
    kept, peak = saved_bytes(model, *inputs).total, peak_bytes(model, *inputs)
    assert kept <= step.kept_with(bits)
    assert peak <= step.peak_with(bits)
    if None not in bits.values():
        assert (kept, peak) == (step.kept_with(bits), step.peak_with(bits))


class Crossed(nn.Module):
    """A block that reads what another part of the model made."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other, self.out = (nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return x + self.out(nn.functional.gelu(self.own(x)) * self.other(memory))


class Decoder(nn.Module):
    """Blocks that all read one tensor, as those of a decoder read what an encoder gives."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.blocks = nn.Linear(64, 64), nn.ModuleList(Crossed() for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        memory = self.encoder(y)
        for block in self.blocks:
            x = block(x, memory)
        return x


MEMORY = [f"blocks.{number}: an input 6" for number in range(4)]


@cache
def of_decoder() -> Step:
    return observe(Decoder(), (torch.randn(512, 64), torch.randn(512, 64)))


@pytest.mark.slow
@pytest.mark.parametrize("whole", [MEMORY, MEMORY[1:3], []], ids=len)
def test_a_tensor_that_blocks_share_is_there_once(whole: list[str]) -> None:
    """If it is whole; each block has codes of its own. By the allocator, too."""
    model, inputs, step = Decoder(), (torch.randn(512, 64), torch.randn(512, 64)), of_decoder()
    assert set(MEMORY) <= {site.name for site in step.sites}
    bits: dict[str, int | None] = dict.fromkeys(whole)
    watched = {site.name: 1.0 for site in step.sites}  # as of a plan: blocks share no codes
    install(model, Engine(Planned(OBSERVED, "nearest", bits), planned=watched))
    assert saved_bytes(model, *inputs).total == step.kept_with(bits)

    def loss() -> Tensor:
        return model(*inputs).sum()

    loss().backward()
    assert measured(loss, torch.device("cpu")).kept == step.kept_with(bits) + loss().nbytes
    tensor = inputs[0].nbytes
    coded = sum(site.bytes(OBSERVED) for site in step.sites if site.name in whole)
    assert step.kept_with(bits) - step.kept_with({}) == (tensor - coded if whole else 0)


def test_sites_live_from_when_they_are_saved_until_backward_has_used_them() -> None:
    model, inputs = text(2)
    step = observe(model, inputs)
    assert [site.born for site in step.sites] == sorted(site.born for site in step.sites)
    assert all(site.born < step.backward < site.dead <= len(step.peaks) for site in step.sites)


def test_graphs_that_another_step_captured_are_observed_alike() -> None:
    model, inputs = text(3)
    task, ways = CapturedTask(model, Call(inputs, {})), BlockWays(("0",), ("2",))
    task.step()
    again, alone = task.step(ways), CapturedTask(model, Call(inputs, {})).step(ways)
    assert (again.peaks, again.kept) == (alone.peaks, alone.kept)
    assert [replace(site, tensor=None) for site in again.sites] == [replace(site, tensor=None) for site in alone.sites]


class Numbers(nn.Module):
    """A block with a tensor that forward makes of numbers; its graphs hold it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x).sigmoid() * x.new_tensor([0.5, 0.25] * 32) * torch.tensor([2.0, 3.0] * 32)


@pytest.mark.parametrize("compiles", [False, True])
def test_a_block_that_makes_a_tensor_of_numbers(compiles: bool) -> None:
    assert observe(nn.Sequential(*(Numbers() for _ in range(4))), (torch.randn(64, 64),), compiles=compiles).sites


def test_training_counts_what_training_saves() -> None:
    model, inputs = text(1, dropout=0.1)

    model.eval()
    in_training = observe(model, inputs).kept
    assert not model.training
    assert in_training > observed().kept


def test_a_model_without_a_gradient_is_refused() -> None:
    model = nn.Linear(64, 64).requires_grad_(False)
    with pytest.raises(KernelError, match="a tensor with a gradient"):
        observe(model, (torch.randn(128, 64),))


@pytest.mark.slow
def test_the_loss_counts() -> None:
    """As if it were within the model, whose logits are not held beside its own loss."""
    model = NETS["mlp"]()[0][:-1]  # else the last tanh would hold its result, too
    x, target = torch.randn(512, 64), torch.randn(512, 64)

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return (y @ target.T).square().sum()  # larger than all that the model makes

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
            y = self.model(x)
            return {"logits": y, "loss": loss(y, target)}

    step, without = observe(model, (x,), loss=loss, targets=target), observe(model, (x,))
    compress(model, bits=4)
    assert step.peak_with({}) == peak_bytes(Whole(), x, target) + 512 * 64 * 4 > without.peak_with({})
    assert step.kept == without.kept  # by the model


def test_the_gradient_is_of_the_loss_alone() -> None:
    logits = torch.randn(3, requires_grad=True)
    own = logits.sum()
    assert differentiated({"loss": own, "logits": logits}) == [own]
    (only,) = differentiated({"loss": None, "logits": logits, "counts": torch.ones(3)})
    assert only is logits
    (mine,) = differentiated({"loss": own, "logits": logits}, lambda y, t: (y["logits"] * t).sum(), torch.arange(3.0))
    assert mine == (logits * torch.arange(3.0)).sum()
