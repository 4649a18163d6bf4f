"""The ways in which the networks of `benchmarks.compression` are trained: stock, its rivals, and ours."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config

import actfit
from actfit import compress
from benchmarks.baselines.checkpointed import checkpoint_each
from benchmarks.baselines.hooked import saving_codes
from benchmarks.compression.models import Net
from benchmarks.parsers import BY_INDUCTOR, FITTED

EAGER, COMPILED = "eager", "compiled"
LAYERS_COMPILED = "layers compiled"
CHECKPOINT, COMPILED_CHECKPOINT = "checkpoint", "compiled checkpoint"
RECOMPUTING, FP8 = "compiled with the flag", "compiled with fp8"
BUDGETS = {f"compiled with budget {share}": share for share in (0.1, 0.5, 0.9)}
HOOKS = {f"hook {bits} bits": bits for bits in (8, 4, 2)}
COMPRESSED = {"compress exact": None, **{f"compress {bits} bits": bits for bits in (8, 4, 2)}}
CODED = {f"coded {bits} bits": bits for bits in (8, 4, 3, 2)}
CHUNKED = "compress exact in chunks"
OURS = (*COMPRESSED, CHUNKED, *FITTED, *CODED, *BY_INDUCTOR)
# PyTorch's own pass over all large saved tensors. Its forward and its backward have different defaults for
# use_scaling: if it is not given, gradients are wrong by a factor of a billion.
EIGHT_BITS = {
    "activation_quantization_aten_pass": {
        "quant_type": "torch.float8_e5m2",
        "allowed_dtypes": "torch.float32;torch.bfloat16",
        "size_in_mb": 0.015625,  # 4096 elements of float32, our limit too
        "use_scaling": True,
        "exclude_primals": True,
    }
}


def is_compiled(way: str) -> bool:
    """Whether it uses torch.compile."""
    return way.startswith(COMPILED) or way in CODED


def prepared(net: Net, way: str) -> Callable[[], torch.Tensor]:
    """Forward up to the loss in one of the ways, as a function; changes the network. The first call may compile."""
    if way in (CHECKPOINT, COMPILED_CHECKPOINT):
        checkpoint_each(net.blocks)
    compiles = way in BY_INDUCTOR
    ours = BY_INDUCTOR.get(way, way)
    if ours in COMPRESSED or ours == CHUNKED:
        chunked = True if ours == CHUNKED else None
        compress(net.module, bits=COMPRESSED.get(ours), chunked_loss=chunked, compiled=compiles)
    if ours in FITTED:
        net.loss(net.module)  # its weights, or the plan's fake tensors would be these
        budget: Any = {"fit": FITTED[ours], "inputs": net.kwargs or net.args, "loss": net.loss_of}
        net.plan = compress(net.module, **budget, compiled=compiles).plan
    if way == LAYERS_COMPILED:
        for block in net.blocks:
            block.compile(dynamic=False)
    run: Callable[..., Any] = net.module
    if is_compiled(way):
        torch.compiler.reset()
        options = actfit.options(bits=CODED[way]) if way in CODED else None
        run = torch.compile(net.module, dynamic=False, options=options)

    def loss() -> torch.Tensor:
        with _hooks(net, way):
            return net.loss(run)

    return loss


@contextmanager
def settings_of(way: str) -> Iterator[None]:
    """The settings of PyTorch under which a way is compiled, forward and backward."""
    with ExitStack() as stack:
        if way == RECOMPUTING:
            stack.enter_context(functorch_config.patch(ban_recompute_materialized_backward=False))
        elif way in BUDGETS:
            stack.enter_context(functorch_config.patch(activation_memory_budget=BUDGETS[way]))
        elif way == FP8:
            stack.enter_context(inductor_config.patch(post_grad_fusion_options=EIGHT_BITS))
        yield


def _hooks(net: Net, way: str) -> AbstractContextManager[Any]:
    return saving_codes(net.module, HOOKS[way]) if way in HOOKS else nullcontext()
