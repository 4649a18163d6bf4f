"""The variants of `benchmarks.training`: the same training, with different tensors saved for backward.

For `text` and `digits`, activations save less. For CODED, every tensor that autograd saves is encoded: compress-b does
so by `actfit.compress`, stochastic-b the same with stochastic rounding, coded-b compiles the model with
`actfit.options`; hook-b encodes in hooks, compiled is plain torch.compile, and exact is `compress` without codes.
plan-n compresses by a plan for an n-th of stock's bytes, and compiled-plan-n compiles blocks by a plan for as many;
plans are made at the first weights, with the loss of the seed's first batch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import actfit
from actfit import compress, make_plan
from benchmarks import parsers
from benchmarks.baselines import hooked
from benchmarks.baselines.actnn import ActNN
from benchmarks.baselines.checkpointed import checkpoint_each
from benchmarks.kernels.cases import options_of
from benchmarks.training.data import Data, Text
from benchmarks.training.models import GPT, Llama, ResNet, ViT, loss

Run = Callable[[Tensor], Tensor]
MODULES = {"gelu": (nn.GELU, actfit.nn.GELU), "silu": (nn.SiLU, actfit.nn.SiLU)}
STOCK, RECOMPUTE, COMPILED, EXACT = "stock", "recompute", "compiled", "exact"
PLAN, COMPILED_PLAN = "plan", "compiled-plan"
VARIANTS = parsers.ACTIVATION_VARIANTS
SMALL_VIT = "small-vit"
CODED = ("gpt", "llama", "resnet", SMALL_VIT)
VARIANTS_OF = {
    **dict.fromkeys(("text", "digits"), VARIANTS),
    **dict.fromkeys(CODED, (STOCK, RECOMPUTE, *parsers.CODED_VARIANTS)),
}
EVERY = parsers.VARIANTS
ROUNDINGS = {"compress": "nearest", "stochastic": "stochastic"}


def parts(variant: str) -> tuple[str, str]:
    """A variant's method, and its bits or share of bytes; "" for a variant without such a number."""
    method, _, number = variant.rpartition("-")
    return (method, number) if number.isdigit() else (variant, "")


def activation(name: str, variant: str) -> nn.Module:
    """A variant's activation; name: gelu or silu."""
    stock, ours = MODULES[name]
    if variant in (STOCK, RECOMPUTE):
        return stock()
    if variant.startswith("actnn-"):
        return ActNN(name, int(variant.removeprefix("actnn-")))
    return ours(**options_of(variant))


def model(data: Data, task: str, name: str, width: int, layers: int, variant: str) -> nn.Module:
    """The model of a task, on the CPU; its weights come from torch's generator, the same for all variants.

    name: of the activation.
    """
    if task == "llama":
        return Llama(data.classes, width, layers)
    if task == SMALL_VIT:
        return ViT(data.classes, width, layers)
    make = partial(activation, name, STOCK if task in CODED else variant)
    if isinstance(data, Text):
        return GPT(data.classes, data.context, width, layers, make)
    return ResNet(data.classes, width, layers, make)


def runner(model: nn.Module, variant: str, batch: tuple[Tensor, Tensor]) -> Run:
    """The function that training calls instead of the model; it may compile at its first call. batch: for plans."""
    method, number = parts(variant)
    x, targets = batch
    if method == RECOMPUTE:
        checkpoint_each(model.get_submodule("blocks").children())
    if method == "hook":
        return partial(_hooked, model, int(number))
    if method == EXACT:
        compress(model)
    if method == PLAN:
        compress(model, plan=make_plan(model, x, 1 / int(number), loss=loss, targets=targets, goal="error"))
    if method in ROUNDINGS:
        compress(model, bits=int(number), rounding=ROUNDINGS[method])
    if method == COMPILED:
        return _compiled(model)
    if method == "coded":
        return _compiled(model, bits=int(number))
    if method == COMPILED_PLAN:
        plan = make_plan(model, x, 1 / int(number), loss=loss, targets=targets, goal="error", compiled=True)
        compress(model, plan=plan)
    return model


def _compiled(model: nn.Module, **codes: Any) -> Run:
    """The compiled model, with codes for backward by these arguments of `actfit.options`, if any."""
    torch.compiler.reset()  # torch recompiles a function only so many times
    options = actfit.options(**codes) if codes else None
    compiled: Run = torch.compile(model, dynamic=False, options=options)
    return compiled


def _hooked(model: nn.Module, bits: int, x: Tensor) -> Tensor:
    with hooked.saving_codes(model, bits):
        output: Tensor = model(x)
        return output
