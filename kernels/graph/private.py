"""All that this package uses of PyTorch's private modules, which may change with any release."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import fx


LIMIT = 1 << 10  # sizes and other variants of a block that have graphs of their own
# A jump in one of these derivatives is a comparison, whose result takes one bit; each is bit for bit the same.
WRITTEN_OUT = ("threshold_backward", "hardtanh_backward", "leaky_relu_backward", "hardsigmoid_backward")


def boxed_codegen() -> Any:
    """fx's code that takes its inputs out of a list, so that each is freed after its last use."""
    try:
        from torch.fx.graph import _BoxedCodeGen
    except ImportError:
        from torch.fx.graph import CodeGen as Plain

        class _BoxedCodeGen(Plain):  # type: ignore[no-redef]
            """The same for releases before torch 2.11."""

            def gen_fn_def(self, free_vars: list[str], annotation: str, **_: Any) -> str:
                names = [name.split(":")[0].split("=")[0].strip() for name in free_vars]
                taken = f"    {', '.join(names)}, = inputs\n" if names else ""
                return f"def forward(self, inputs){annotation}:\n{taken}    inputs.clear()\n"

    return _BoxedCodeGen()


def captured(function: Callable[..., Any], backend: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose graphs Dynamo captures for the backend."""
    return torch.compile(function, backend=backend)


def settings() -> AbstractContextManager[Any]:
    """Dynamo's settings while a captured function runs: no limit of variants, and hooks added later are called."""
    from torch._dynamo import config

    wanted = {
        "recompile_limit": LIMIT,
        "accumulated_recompile_limit": LIMIT,
        "skip_nnmodule_hook_guards": False,
        "fail_on_recompile_limit_hit": False,
    }
    return config.patch({name: value for name, value in wanted.items() if hasattr(config, name)})


def backend(partition: Callable[..., Any], execute: Callable[..., Any]) -> Callable[..., Any]:
    """A backend of torch.compile that cuts the joint graph by `partition` and runs the parts by `execute`."""
    from torch._decomp import get_decompositions
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import config

    aten = torch.ops.aten
    written_out = get_decompositions([getattr(aten, name) for name in WRITTEN_OUT])
    compiler = aot_autograd(
        fw_compiler=execute, bw_compiler=execute, partition_fn=partition, decompositions=written_out
    )
    wanted = {"donated_buffer": False, "backward_pass_autocast": "off"}
    patched = {name: value for name, value in wanted.items() if hasattr(config, name)}

    def compiled(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with config.patch(patched):
            return compiler(graph, inputs)

    return compiled


def recompute_all_but(
    marked: Callable[[fx.Node], bool], joint: fx.GraphModule, inputs: Sequence[object], **options: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """PyTorch's partition of least bytes, where backward may compute all again but the marked operations."""
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch.utils.checkpoint import CheckpointPolicy

    for node in joint.graph.nodes:
        if marked(node):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    wanted = {
        "ban_recompute_materialized_backward": False,
        "ban_recompute_not_in_allowlist": False,
        "ban_recompute_used_far_apart": False,
        "ban_recompute_long_fusible_chains": False,
        "max_dist_from_bw": 1 << 30,
        "recompute_views": True,
    }
    with config.patch(wanted):
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
    return forward, backward


def failed_to_capture(error: Exception) -> bool:
    """Whether the error is Dynamo's, so that the function itself may still run."""
    from torch._dynamo.exc import TorchDynamoException

    return isinstance(error, TorchDynamoException)


def is_transformed() -> bool:
    """Whether torch.func's transforms are active."""
    from torch._C import _functorch

    return _functorch.peek_interpreter_stack() is not None
