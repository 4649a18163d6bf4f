"""The networks of `benchmarks.planning`: seven kinds of small networks; a seed determines weights and samples."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from benchmarks.compression import models
from benchmarks.compression.models import Net, Size
from benchmarks.gpu.ways import BLOCKS
from kernels.memory import zoo
from kernels.memory.making import imported
from kernels.planning.batches import Call

CPU = torch.device("cpu")
BATCHES = 3  # to plan with, to check the plan with, and to measure errors on
CNNS = {"ResNet": "resnet18", "EfficientNet": "efficientnet-b0"}
OF_CNNS = ("ResNetBasicLayer", "EfficientNetBlock")
EXPERTS, EXPERTS_OF_TOKEN, LOOP = 4, 2, "actfit_loop"

_TEXT, _IMAGES = Size(4, 4, 128, 128), Size(4, 4, 112, 128)
SMALL = {
    **{"BERT": _TEXT, "GPT-2": _TEXT, "ViT": _IMAGES, "Llama": _TEXT, "Mixtral": _TEXT},
    **{"ResNet": Size(8, 4, 64, 32), "EfficientNet": Size(16, 4, 64, 32)},  # widths: channels of the first layer
}
# Networks whose steps are timed and measured by the allocator: so large that operations take most of the time.
TIMED = {"BERT": Size(4, 16, 256, 256), "ResNet": Size(8, 16, 96, 64)}
TINY = {"BERT": Size(2, 2, 64, 64), "ResNet": Size(8, 8, 64, 16)}


@dataclass(frozen=True)
class Case:
    """A network, and batches of arguments for it."""

    module: nn.Module
    batches: list[Call]

    def net(self) -> Net:
        """The network with its first batch, for `benchmarks.compression.ways`."""
        return Net(self.module, list(blocks(self.module)), *self.batches[0])


def build(name: str, size: Size, seed: int, batches: int = BATCHES) -> Case:
    """A network in training mode."""
    whole = size._replace(batch=batches * size.batch)
    if name in models.NORMAL:
        net = models.build(name, whole, torch.float32, CPU, seed)
        module, call = net.module, Call(net.args, net.kwargs)
    else:
        torch.manual_seed(seed)
        module, call = _mixtral(whole) if name == "Mixtral" else _cnn(CNNS[name], whole)
        module.train()
    return Case(module, [_cut(call, size.batch, place) for place in range(batches)])


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The repeated blocks, which checkpointing computes again."""
    return (part for part in module.modules() if type(part).__name__.endswith((*BLOCKS, *OF_CNNS)))


def _cut(call: Call, count: int, place: int) -> Call:
    def samples(x: Any) -> Any:
        return x[count * place : count * (place + 1)] if isinstance(x, Tensor) else x

    return Call(*tree_map(samples, tuple(call)))


def _cnn(name: str, size: Size) -> tuple[nn.Module, Call]:
    values: dict[str, Any] = {"image_size": size.length, "num_labels": 10}
    if name == "efficientnet-b0":
        values |= {"dropout_rate": 0.0, "drop_connect_rate": 0.0}
    else:
        values |= {"embedding_size": size.width, "hidden_sizes": [size.width * 2**stage for stage in range(4)]}
    module, args, kwargs = zoo.build(name, batch=size.batch, dtype=torch.float32, **values)
    for (
        part
    ) in module.modules():  # with transformers' tiny weights, EfficientNet's output would hardly depend on the image
        if isinstance(part, nn.Conv2d | nn.BatchNorm2d | nn.Linear):
            part.reset_parameters()
    return module, Call(args, kwargs)


def _mixtral(size: Size) -> tuple[nn.Module, Call]:
    imported("transformers.integrations.moe", "ALL_EXPERTS_FUNCTIONS").register(LOOP, _in_turn)
    kind = imported("transformers", "MixtralModel")
    config = kind.config_class(
        vocab_size=models.VOCABULARY,
        hidden_size=size.width,
        intermediate_size=2 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=models.MIN_HEADS,
        num_key_value_heads=models.MIN_HEADS // 2,
        num_local_experts=EXPERTS,
        num_experts_per_tok=EXPERTS_OF_TOKEN,
        max_position_embeddings=size.length,
        use_cache=False,
    )
    config._experts_implementation = LOOP
    tokens = torch.randint(2, models.VOCABULARY, (size.batch, size.length))
    return kind._from_config(config), Call((), {"input_ids": tokens})


def _in_turn(experts: Any, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Experts on tokens sorted by expert, as by transformers' "grouped_mm", but with an operation that runs on fakes.

    Parameters
    ----------
    experts
        transformers' module.
    hidden
        [tokens, width].
    index, weights
        [tokens, experts of a token].
    """
    experts_of = index.reshape(-1)
    order = experts_of.argsort(stable=True)
    zeros = torch.zeros(experts.num_experts, dtype=torch.int32, device=hidden.device)
    ends = zeros.scatter_add(0, experts_of, torch.ones_like(experts_of, dtype=torch.int32)).cumsum(0, dtype=torch.int32)
    product = torch.ops.transformers.grouped_mm_fallback
    both = product(hidden[order // index.shape[-1]], experts.gate_up_proj.transpose(1, 2), ends)
    gate, up = both.chunk(2, -1)
    out = product(experts.act_fn(gate) * up, experts.down_proj.transpose(1, 2), ends)
    out = out * weights.reshape(-1)[order, None]
    result: Tensor = out[order.argsort()].view(*index.shape, -1).sum(1)
    return result
