"""Bytes that chains and models save for backward, of `benchmarks.forward_ad`.

Eager models run on fake tensors and are counted as CUDA saves them (a dropout mask has 1 byte an element); compiled
models run for real and are counted as they run, with the same result. So the numbers are the same on every machine.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.baselines.checkpointed import Checkpointed
from benchmarks.forward_ad.cases import (
    BLOCKS,
    CHANNELS,
    ELEMENTS,
    METHODS,
    PARTITIONER,
    WrittenActivation,
    normed,
    run_by,
    shape,
)
from benchmarks.rows import Row, summary
from kernels import saved_bytes
from kernels.forward_ad import wrap
from kernels.memory import zoo
from kernels.memory.making import imported

WITHIN = tuple(block for block in BLOCKS if block != "chain")
BATCH, POSITIONS = {"resnet": 16, "text": 8}, 128
SMALL = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": 512}
GPT2 = {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": POSITIONS, "act": "gelu_new"}
BERT = {
    **{"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512},
    **{"max_position_embeddings": POSITIONS, "act": "gelu_new"},
}

Model = tuple[nn.Module, dict[str, Any]]  # with its keyword arguments


def kept(model: nn.Module, *args: Any, **kwargs: Any) -> int:
    """Bytes saved for backward, without inputs and parameters."""
    if isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
        return saved_bytes(model, *args, **kwargs).total
    return saved_bytes(model, *args, accounting="cuda", fake=True, **kwargs).total


def chains(names: Sequence[str], where: Mapping[str, Any]) -> list[Row]:
    """Rows of each chain in each block by each method, in units of the chain's input."""
    rows = []
    for block in WITHIN:
        x = torch.randn(shape(block, ELEMENTS))
        for name in names:
            for method in METHODS:
                units = kept(run_by(method, block, name), x) / x.nbytes
                base = {"what": f"kept by {block}", "implementation": name, "mode": method, "dtype": "float32"}
                rows.append(Row(size={"n": ELEMENTS}, unit="units", **base, **where, **summary([units])))
    return rows


class Residual(nn.Module):
    """Two convolutions, each with its BatchNorm, and a chain after each."""

    def __init__(self, chain: str) -> None:
        super().__init__()
        self.first, self.second, self.chain = normed(CHANNELS), normed(CHANNELS), WrittenActivation(chain)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.chain(self.second(self.chain(self.first(x))) + x)
        return result


class Means(nn.Module):
    """The mean of each channel. Pooling would save its input for backward."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def resnet(chain: str, batch: int = BATCH["resnet"]) -> Model:
    """A small ResNet for 32×32 images, with activations written out."""
    blocks = (Residual(chain) for _ in range(4))
    model = nn.Sequential(*normed(3), WrittenActivation(chain), *blocks, Means(), nn.Linear(CHANNELS, 10))
    return model, {"input": torch.randn(batch, 3, 32, 32)}


def text(name: str, batch: int = BATCH["text"]) -> Model:
    """GPT2 with its loss, or BERT without a head; no dropout, torch's attention, GELU as transformers writes it."""
    if name == "gpt2":
        none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        model, _, inputs = zoo.build(name, batch=batch, seq=POSITIONS, **GPT2, **SMALL, **none)
        return model, {**inputs, "labels": inputs["input_ids"]}
    none = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    model, _, inputs = zoo.build(name, batch=batch, seq=POSITIONS, **BERT, **SMALL, **none)
    return model, inputs


MODELS: dict[str, Callable[[], Model]] = {
    "ResNet, mish": lambda: resnet("mish"),
    "ResNet, mish by log": lambda: resnet("mish by log"),
    "GPT2, gelu_new": lambda: text("gpt2"),
    "BERT, gelu_new": lambda: text("bert"),
}


def checkpoint_activations(model: nn.Module) -> None:
    """Checkpoint each module that is a written-out activation."""
    written = (WrittenActivation, imported("transformers.activations", "NewGELUActivation"))
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, written):
                setattr(module, name, Checkpointed(child))


def models(names: Sequence[str], where: Mapping[str, Any]) -> list[Row]:
    """Rows of each model by each method, in bytes."""
    versions = {**where["versions"], "transformers": metadata.version("transformers")}
    rows = []
    for name in names:
        for method in METHODS:
            model, inputs = MODELS[name]()
            if method == "checkpoint":
                checkpoint_activations(model)
            elif method == "nested":
                wrap(model)
            elif method == "compiled":
                torch.compiler.reset()
                model = torch.compile(model, backend=PARTITIONER, dynamic=False)
            total = float(kept(model, **inputs))
            base = {"what": "kept by a model", "implementation": name, "mode": method, "dtype": "float32", "size": {}}
            rows.append(Row(unit="B", **base, **{**where, "versions": versions}, **summary([total])))
    return rows
