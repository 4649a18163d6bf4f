"""The named models: as large as published, built without memory, and kept for backward what real ones keep."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from actfit.kernels.errors import KernelError
from actfit.kernels.memory.isolated import unpacked
from actfit.kernels.memory.zoo import build, names
from tests.kernels.memory.models import tensors

ROOT = Path(__file__).resolve().parents[3]
# Parameters. bert, roberta, gpt2, clip, llama, mistral: of the checkpoints google-bert/bert-base-uncased,
# FacebookAI/roberta-base (each with its pooler, without head), openai-community/gpt2 (tied head counted once),
# openai/clip-vit-base-patch32, meta-llama/Llama-2-7b-hf, mistralai/Mistral-7B-v0.1. vit: timm's
# vit_base_patch16_224. CNNs: torchvision's tables of weights. ast: the encoder's 86,187,264 and a head of
# 2·768 + 768·527 + 527 (published rounded, as 86.6M).
PUBLISHED = {
    "bert": 109_482_240,
    "roberta": 124_645_632,
    "roberta-large": 355_359_744,
    "gpt2": 124_439_808,
    "vit": 86_567_656,
    "clip": 151_277_313,
    "ast": 86_594_063,
    "llama": 6_738_415_616,
    "mistral": 7_241_732_096,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "vgg11": 132_863_336,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "efficientnet-b0": 5_288_548,
    "efficientnet-b3": 12_233_232,
    "efficientnet-b7": 66_347_960,
    "mlp": 8 * 1024**2 + 5 * 1024,
    "block": 12 * 1024**2 + 13 * 1024,
}
# Small enough to be built for real.
TEXT = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "num_hidden_layers": 2}
SMALL = {
    "bert": TEXT,
    "roberta": TEXT,
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 2},
    "vit": {**TEXT, "image_size": 64},
    "clip": {**TEXT, "image_size": 64},
    "ast": {**TEXT, "max_length": 64},
    "llama": {**TEXT, "num_key_value_heads": 4, "head_dim": 16},
    "mistral": {**TEXT, "num_key_value_heads": 2, "head_dim": 16},
    "resnet18": {"image_size": 64, "embedding_size": 8, "hidden_sizes": [8, 16, 32, 64]},
    "vgg11": {"image_size": 64, "hidden": 32},
    "efficientnet-b0": {"image_size": 32, "depth_coefficient": 0.2},
    "mlp": {"width": 64},
    "block": {"width": 64},
}
TRANSFORMERS = [name for name in PUBLISHED if not name.startswith(("vgg", "mlp", "block"))]


@pytest.fixture(autouse=True)
def _needs(request: pytest.FixtureRequest) -> None:
    """Names of models of transformers are skipped where it is not installed."""
    spec = getattr(request.node, "callspec", None)
    if spec is not None and spec.params.get("name") in TRANSFORMERS:
        pytest.importorskip("transformers", reason="transformers is not installed")


def kept_bytes(model: nn.Module, args: tuple, kwargs: dict) -> int:
    """Bytes that go through the pack hook in forward: each storage once, inputs too, parameters and buffers not."""
    seen = {id(tensor.untyped_storage()): tensor.untyped_storage() for tensor in tensors(model)}
    own = set(seen)

    def pack(tensor: Tensor) -> Tensor:
        seen[id(tensor.untyped_storage())] = tensor.untyped_storage()
        return tensor

    fake = isinstance(next(model.parameters()), FakeTensor)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), unpacked() if fake else nullcontext():
        model(*args, **kwargs)
    return sum(storage.nbytes() for key, storage in seen.items() if key not in own)


def test_every_name_is_tested():
    assert set(names()) == set(PUBLISHED)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_built_and_run_without_memory(name, fake):
    model, args, kwargs = build(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[name]
    assert model.training
    output = model(*args, **kwargs)
    for tensor in tensors(model, args, kwargs, *(output.values() if isinstance(output, dict) else [output])):
        assert isinstance(tensor, FakeTensor)
        assert tensor.device.type == "cpu"
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "attention"),
    [*((name, "sdpa") for name in SMALL), ("bert", "eager"), ("llama", "eager"), ("block", "eager")],
)
def test_fake_and_real_counts_agree(name, attention):
    with FakeTensorMode():
        counted = kept_bytes(*build(name, batch=2, seq=_seq(name), attention=attention, **SMALL[name]))
    torch.manual_seed(0)
    model, args, kwargs = build(name, batch=2, seq=_seq(name), attention=attention, **SMALL[name])
    assert not any(isinstance(tensor, FakeTensor) for tensor in tensors(model, args, kwargs))
    assert kept_bytes(model, args, kwargs) == counted


def _seq(name: str) -> int | None:
    """24 positions where there are any."""
    return None if name.startswith(("vit", "ast", "resnet", "vgg", "efficientnet")) else 24


def test_images_come_in_the_model_s_dtype(fake):
    model, (images,), _ = build("vgg11", batch=2, dtype=torch.bfloat16)
    assert (images.shape, images.dtype) == ((2, 3, 224, 224), torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("name", ["gpt2"])
def test_tied_weights_stay_tied(name, fake):
    model, *_ = build(name)
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clip", "gpt2", "resnet18", "vgg11", "block"])
def test_the_activation_is_the_one_asked_for(name, fake):
    model, *_ = build(name, act="silu")
    class_names = {type(module).__name__ for module in model.modules()}
    assert any("SiLU" in class_name for class_name in class_names)
    assert not class_names & {"ReLU", "QuickGELUActivation", "NewGELUActivation"}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"name": "resnet19"}, "model must be one of bert, .*got 'resnet19'; did you mean resnet1"),
        ({"name": "mlp", "batch": 0}, "batch must be a positive whole number, got 0"),
        ({"name": "mlp", "batch": True}, "batch must be .*, got True"),
        ({"name": "vgg11", "seq": 7}, "seq must be left out for vgg11, which takes images of one size, got 7"),
        ({"name": "bert", "seq": 513}, "seq must be at most 512, the positions that bert has, got 513"),
        ({"name": "ast", "seq": 78}, "seq must be left out for ast, which takes spectrograms"),
        ({"name": "bert", "attention": "flash"}, "attention must be one of eager, sdpa, got 'flash'"),
        ({"name": "mlp", "dtype": torch.int8}, r"dtype must be one of torch\.float32, .*, got torch.int8"),
        ({"name": "bert", "act": "gleu"}, "act must be one of gelu, .*, got 'gleu'"),
        ({"name": "clip", "layers": 2}, "overrides must be names in the configuration of clip, got 'layers'"),
        ({"name": "json:loads", "seq": 3}, "seq must be left out for json:loads, got 3: the function decides"),
        ({"name": "no_such.thing:f"}, "model must be a function that can be imported, .* ModuleNotFoundError: "),
        ({"name": "math:pi"}, "math:pi raised TypeError: 'float' object is not callable"),
    ],
)
def test_what_cannot_be_built(asked, message, fake):
    if asked["name"] in TRANSFORMERS:
        pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(KernelError, match=message) as caught:
        build(**asked)
    assert "\n" not in str(caught.value)
    assert torch.get_default_dtype() == torch.float32


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(KernelError, match=r"one of vgg11, .*, block without .*: pip install transformers$"):
        build("bert")


@pytest.mark.slow
def test_transformers_is_imported_late_and_outside_the_fake_mode():
    pytest.importorskip("transformers", reason="transformers is not installed")
    code = (
        "import sys, torch\n"
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "from actfit.kernels.memory.zoo import build\n"
        "print('transformers' in sys.modules)\n"
        "with FakeTensorMode(): build('llama')\n"
        "small = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=4, head_dim=16)\n"
        "model, _, inputs = build('llama', seq=4, num_hidden_layers=1, intermediate_size=64, **small)\n"
        "print(model(**inputs).logits.isfinite().all().item())"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.split()) == (0, ["False", "True"]), run.stderr
