"""Models of `benchmarks.gpu`, on a device with random weights, and the ways in which they keep what backward needs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.baselines.checkpointed import checkpoint_each
from coefficients import command
from kernels import compression, convert
from kernels.forward_ad import unwrap, wrap
from kernels.memory import zoo
from kernels.memory.storages import tensors

STOCK, COMPILE, CHECKPOINT, NESTED = "stock", "compile", "checkpoint", "nested forward AD"
CONVERSIONS: dict[str, dict[str, Any]] = {
    "auto": {"method": "auto"},
    "invact": {"method": "invact"},
    "fewbit-3": {"method": "fewbit", "bits": 3},
    "approx-backprop 4 bits": {"method": "approx-backprop", "bits": 4},
    "compress 4 bits": {"method": "compress", "bits": 4},
}
CODED = {"coded 4 bits": 4}
COMPILED = (COMPILE, *CODED)
WAYS = (STOCK, CHECKPOINT, *COMPILED, *CONVERSIONS, NESTED)
# The blocks that are checkpointed, and compiled each by itself, by the ends of their classes' names.
BLOCKS = ("DecoderLayer", "BertLayer", "ViTLayer", "BottleNeckLayer", "GPT2Block")

# So small that a CPU runs them in a moment.
_NARROW = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64}
TINY: dict[str, dict[str, Any]] = {
    "bert": {**_NARROW, "vocab_size": 100, "max_position_embeddings": 32},
    "llama": {**_NARROW, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 32},
    "vit": {**_NARROW, "image_size": 32, "num_labels": 10},
    "resnet50": {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64], "embedding_size": 8, "num_labels": 10},
}


@dataclass(frozen=True)
class Model:
    """One of the zoo's. half: weights in bfloat16; else float32, and autocast to bfloat16 where it is trained."""

    name: str
    device: torch.device
    batch: int | None = None
    seq: int | None = None
    half: bool | None = None
    bare: bool = False  # without its head
    changed: dict[str, Any] = field(default_factory=dict)

    def built(self) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        """The module there in training mode, its weights the same each time, and what to call it with."""
        torch.manual_seed(0)
        dtype = None if self.half is None else torch.bfloat16 if self.half else torch.float32
        with self.device:
            model, args, kwargs = zoo.build(self.name, batch=self.batch, seq=self.seq, dtype=dtype, **self.changed)
        return (model.base_model if self.bare else model), args, kwargs

    def autocast(self) -> AbstractContextManager[Any]:
        """As it is trained."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.half is False else nullcontext()


def prepare(model: nn.Module, way: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], object] | None:
    """Have a model keep what backward needs in one of WAYS; what undoes it, or None where that changes nothing."""
    if way in CONVERSIONS:
        report = convert(model, **CONVERSIONS[way], inputs=kwargs or args)
        return report.revert if report.converted else None
    if way == NESTED:
        return partial(unwrap, wrap(model))
    repeated = list(blocks(model)) if way != STOCK else []
    dynamic = None if alike(model) else False  # compiled for one batch, and if another comes, for any
    options = compression.options(bits=CODED[way]) if way in CODED else None  # one, or no block would share its code
    if way == CHECKPOINT:
        checkpoint_each(repeated)
    else:
        for block in repeated:
            block.compile(dynamic=dynamic, options=options)
    if way != STOCK and not repeated:
        return None
    return partial(_plain, repeated)


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Those that are repeated."""
    return (module for module in model.modules() if type(module).__name__.endswith(BLOCKS))


def alike(model: nn.Module) -> bool:
    """Whether all blocks have weights of the same shapes; a size that differs between them would count as changing."""
    return len({tuple(weight.shape for weight in block.parameters()) for block in blocks(model)}) == 1


def _plain(changed: list[nn.Module]) -> None:
    for block in changed:
        vars(block).pop("forward", None)
        block._compiled_call_impl = None


def broken(prog: str, what: str, error: Exception) -> str:
    """Print the first line of what stopped a measurement; returns `what`."""
    command.say(prog, f"{what}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
    return what


def loss(output: Any) -> Tensor:
    """The mean square of the first tensor of a model's output: something to train for."""
    first: Tensor = next(iter(tensors(output)))
    return first.float().square().mean()
