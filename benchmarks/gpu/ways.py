"""What all that measures models needs: tiny sizes, blocks, a line for errors."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from actfit.coefficients import command
from actfit.kernels.memory.making import line

# The blocks that are checkpointed, and compiled each by itself, by the ends of their classes' names.
BLOCKS = ("DecoderLayer", "BertLayer", "ViTLayer", "BottleNeckLayer", "GPT2Block")

# So small that a CPU runs them in a moment.
_NARROW = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64}
TINY: dict[str, dict[str, Any]] = {
    "llama": {**_NARROW, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 32},
    "vit": {**_NARROW, "image_size": 32, "num_labels": 10},
}


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Those that are repeated."""
    return (module for module in model.modules() if type(module).__name__.endswith(BLOCKS))


def broken(prog: str, what: str, error: Exception) -> str:
    """Print the first line of what stopped a measurement; returns `what`."""
    command.say(prog, f"{what}: {line(error)}")
    return what
