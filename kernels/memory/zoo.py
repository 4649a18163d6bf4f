"""Models by name, as they were published, and the user's own by `package.module:function`.

Nothing is downloaded: a model is built from its hyper-parameters. Under a FakeTensorMode it has no weights either, so
that one of 7 billion parameters takes a fraction of a second and no memory; elsewhere they are random.

Encoders come bare, as they are finetuned (bert-base-uncased, roberta, clip-vit-base-patch32); gpt2, llama (Llama 2, 7B)
and mistral (7B, v0.1) have their language-model heads; vit (base-patch16-224), ast and the CNNs their classifiers, with
the 1000 classes of ImageNet or the 527 of AudioSet. `mlp` and `block` are those of the memory blog. There is no loss.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from actfit.kernels.errors import KernelError
from actfit.kernels.memory.making import Built, building, imported, user_model
from actfit.kernels.memory.plain import ACTIVATIONS
from actfit.kernels.memory.recipes import RECIPES, Recipe
from actfit.kernels.methods.registry import near
from actfit.kernels.names import ATTENTION
from actfit.kernels.names import DTYPES as DTYPE_NAMES

SEQUENCES = ("tokens", "tokens and images", "vectors")
DTYPES = {name: getattr(torch, name) for name in DTYPE_NAMES}
NARROW_LENGTH = 64  # tokens of a narrow model


def names() -> tuple[str, ...]:
    """Names of the models that `build` knows."""
    return tuple(RECIPES)


def build(
    name: str,
    *,
    batch: int | None = None,
    seq: int | None = None,
    dtype: torch.dtype | None = None,
    attention: str = "sdpa",
    act: str | None = None,
    **overrides: Any,
) -> Built:
    """The model in training mode, and what to call it with: positional and keyword arguments.

    Parameters
    ----------
    name
        One of `names()`, or `package.module:function`: a function without arguments that gives a model, which is left
        in its mode, and its inputs, a tensor, a tuple or a dictionary; it runs with `dtype` as torch's default.
    batch, seq, dtype, attention, act
        None: the usual value for the model.
    **overrides
        Values in place of the published ones, such as num_hidden_layers, by their names in the configuration.

    Raises
    ------
    KernelError
        For an unknown name or an invalid value.
    """
    if dtype not in (None, *DTYPES.values()):
        raise KernelError(f"dtype must be one of {', '.join(map(str, DTYPES.values()))}, got {dtype!r}")
    if ":" in name:
        for option, value in {"batch": batch, "seq": seq, "act": act}.items():
            if value is not None:
                raise KernelError(f"{option} must be left out for {name}, got {value!r}: the function decides")
        return user_model(name, dtype)
    if name not in RECIPES:
        known = ", ".join(RECIPES)
        raise KernelError(f"model must be one of {known} or package.module:function, got {name!r}{near(name, RECIPES)}")
    recipe = RECIPES[name]
    if attention not in ATTENTION:
        raise KernelError(f"attention must be one of {', '.join(ATTENTION)}, got {attention!r}")
    for option, value in (("batch", batch), ("seq", seq)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise KernelError(f"{option} must be a positive whole number, got {value!r}")
    values = overrides if act is None else {**overrides, recipe.act: act}
    with building(dtype or recipe.dtype):
        make, config = _configured(name, recipe, values, attention)
        inputs = _inputs(recipe, config, batch or recipe.batch, _length(name, recipe, config, seq))
        model = make(config).train()
        if recipe.act in values and isinstance(recipe.model, str):
            _replace(model, config, recipe.act)
    return (model, (), inputs) if isinstance(recipe.model, str) else (model, tuple(inputs.values()), {})


def narrow(name: str, *, dtype: torch.dtype | None = None, attention: str = "sdpa", act: str | None = None) -> Built:
    """A narrow copy of a model: modules of the same names, few elements, a batch of four; options as of `build`.

    It runs for real in a moment, and replaces the model where values are needed. `name`: one of `names()`.
    """
    recipe = RECIPES[name]
    seq = NARROW_LENGTH if recipe.inputs in SEQUENCES else None
    return build(name, batch=4, seq=seq, dtype=dtype, attention=attention, act=act, **recipe.narrow)


def _transformers(module: str, attribute: str) -> Any:
    """An attribute of transformers, which is imported only when needed."""
    try:
        return imported(module, attribute)
    except ImportError as error:
        without = ", ".join(name for name, recipe in RECIPES.items() if callable(recipe.model))
        hint = f"{attribute} cannot be imported; try: pip install transformers"
        raise KernelError(f"model must be one of {without} without transformers: {hint}") from error


def _configured(
    name: str, recipe: Recipe, given: Mapping[str, Any], attention: str
) -> tuple[Callable[[Any], nn.Module], Any]:
    """The function that makes the model, and its argument."""
    make = recipe.model
    if not isinstance(make, str):
        _check(name, recipe, given, recipe.values, ACTIVATIONS)
        return make, SimpleNamespace(**{**recipe.values, **given}, attention=attention)
    kind = _transformers("transformers", make)
    usual = kind.config_class()
    inner = {part: [key for key in given if hasattr(getattr(usual, part), key)] for part in recipe.parts}
    takes = [key for key in given if hasattr(usual, key)] + [key for keys in inner.values() for key in keys]
    _check(name, recipe, given, {*recipe.values, *takes}, _transformers("transformers.activations", "ACT2FN"))
    values = {part: {key: given[key] for key in keys} for part, keys in inner.items()} or {**recipe.values, **given}
    implementation = {"attn_implementation": attention} if recipe.attends else {}
    return partial(kind._from_config, dtype=torch.get_default_dtype(), **implementation), kind.config_class(**values)


def _check(
    name: str, recipe: Recipe, given: Mapping[str, Any], takes: Collection[str], activations: Collection[str]
) -> None:
    for key, value in given.items():
        if key not in takes:
            raise KernelError(f"overrides must be names in the configuration of {name}, got {key!r}")
        if key == recipe.act and value not in activations:
            raise KernelError(f"act must be one of {', '.join(activations)}, got {value!r}")


def _replace(model: nn.Module, config: Any, act: str) -> None:
    """Set the activation in all layers: transformers' ResNet passes it to some of them only."""
    activations = _transformers("transformers.activations", "ACT2FN")
    usual = getattr(type(config)(), act, None)  # None if only sub-configurations have one
    for module in list(model.modules()) if usual else []:
        for name, child in module.named_children():
            if type(child) is type(activations[usual]):
                setattr(module, name, activations[getattr(config, act)])


def _length(name: str, recipe: Recipe, config: Any, seq: int | None) -> int:
    """Positions of the input; 0 for a model that has no sequences."""
    if recipe.inputs not in SEQUENCES:
        if seq is not None:
            raise KernelError(f"seq must be left out for {name}, which takes {recipe.inputs} of one size, got {seq}")
        return 0
    positions = getattr(getattr(config, "text_config", config), "max_position_embeddings", None)
    longest = (positions or sys.maxsize) - recipe.reserved
    if seq is not None and seq > longest:
        raise KernelError(f"seq must be at most {longest}, the positions that {name} has, got {seq}")
    return seq or min(recipe.length or longest, longest)


def _inputs(recipe: Recipe, config: Any, batch: int, seq: int) -> dict[str, Tensor]:
    inputs = {}
    if "tokens" in recipe.inputs:
        words = getattr(config, "text_config", config).vocab_size
        inputs["input_ids"] = torch.randint(2, words, (batch, seq))  # 0 or 1 is padding, which would need a mask
    if "images" in recipe.inputs:
        side = getattr(config, "vision_config", config).image_size
        inputs["pixel_values"] = torch.randn(batch, 3, side, side)
    if recipe.inputs == "spectrograms":
        inputs["input_values"] = torch.randn(batch, config.max_length, config.num_mel_bins)
    if recipe.inputs == "vectors":
        inputs["x"] = torch.randn(batch, seq, config.width)
    return inputs
