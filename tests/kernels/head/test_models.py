"""Language models of transformers with their loss in chunks: loss, gradients, bytes, plans."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import KernelError, compress, make_plan, peak_bytes, saved_bytes
from actfit.kernels.head.heads import Head
from tests.kernels.saved import bytes_allocated

transformers = pytest.importorskip("transformers")

CLASSES, ROWS, WIDTH = 4096, 320, 64
SIZES = {"vocab_size": CLASSES, "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}
NONE = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **HEADS)),
    "gemma 2, capped": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**SIZES, **HEADS, head_dim=32, final_logit_softcapping=5.0)
    ),
    "gpt-2, tied": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=CLASSES, n_embd=WIDTH, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
        )
    ),
    "bert, inside a part": lambda: transformers.BertForMaskedLM(
        transformers.BertConfig(**SIZES, num_attention_heads=2, **NONE)
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=CLASSES, d_model=WIDTH, d_kv=32, d_ff=64, num_layers=2, num_heads=2, dropout_rate=0.0,
            decoder_start_token_id=0, pad_token_id=0,
        )
    ),
}  # fmt: skip


class WithLoss(nn.Module):
    """The loss that a model of transformers computes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor) -> Tensor:
        labels = torch.where(torch.arange(words.shape[1]) < 3, -100, words)
        loss: Tensor = self.model(input_ids=words, labels=labels).loss
        return loss


def words(rows: int = ROWS) -> Tensor:
    return torch.randint(CLASSES, (4, rows // 4), generator=torch.Generator().manual_seed(1))


def built(name: str) -> WithLoss:
    torch.manual_seed(0)
    return WithLoss(MODELS[name]())


def gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradient_are_those_of_stock(name: str) -> None:
    stock = built(name)
    ours = copy.deepcopy(stock)
    handle = compress(ours, chunked_loss=True)
    expected, made = stock(words()), ours(words())
    expected.backward()
    made.backward()
    assert "its cross-entropy is computed in chunks of 128 rows" in str(handle)
    # float32 rounds by 6e-8; sums of 320 rows in another order differ by some 20 of these.
    assert abs(made.detach() - expected.detach()) <= 2e-6 * expected.detach()
    assert (gradient(ours) - gradient(stock)).norm() <= 2e-6 * gradient(stock).norm()


def test_logits_are_handed_out_as_stocks() -> None:
    stock = built("llama").model
    ours = copy.deepcopy(stock)
    handle = compress(ours, chunked_loss=True)
    expected, made = (model(input_ids=words(), labels=words()) for model in (stock, ours))
    assert made.logits.shape == expected.logits.shape
    assert torch.equal(made.logits.argmax(-1), expected.logits.argmax(-1))
    assert torch.equal(made.logits, expected.logits)
    assert "lm_head made all logits, for argmax" in str(handle)
    handle.remove()
    assert not [module for module in ours.modules() if isinstance(module.__dict__.get("forward"), Head)]


def test_a_loss_outside_of_the_model() -> None:
    """As most loops have it."""
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2)]
    torch.manual_seed(0)
    stock = nn.Sequential(nn.Embedding(CLASSES, WIDTH), nn.Sequential(*blocks), nn.Linear(WIDTH, CLASSES))
    ours = copy.deepcopy(stock)
    handle = compress(ours, bits=8)
    F.cross_entropy(ours(words()).view(-1, CLASSES), words().flatten()).backward()
    assert "2: its cross-entropy is computed in chunks" in str(handle)


class Plain(nn.Module):
    """No repeated blocks; the loss is a module."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.layer = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head, self.loss = nn.Linear(WIDTH, CLASSES), nn.CrossEntropyLoss()

    def forward(self, words: Tensor) -> Tensor:
        logits = self.head(F.gelu(self.layer(self.embedding(words))))
        loss: Tensor = self.loss(logits.view(-1, CLASSES), words.view(-1))
        return loss


@pytest.mark.parametrize("bits", [None, 8])
def test_a_model_without_blocks_whose_loss_is_a_module(bits: int | None) -> None:
    stock, x = Plain(), words(1280)
    ours = copy.deepcopy(stock)
    handle = compress(ours, bits=bits, chunked_loss=True)
    before = saved_bytes(stock, x).total
    gradients = 4 * (
        (WIDTH + 1) * CLASSES + x.numel() * WIDTH
    )  # of the head and its input, which are there with the loss
    for model in (stock, ours):
        model(x).backward()
    assert "head: its cross-entropy is computed in chunks" in str(handle)
    assert not handle.stock
    assert saved_bytes(ours, x).total <= before - 4 * x.numel() * CLASSES + gradients
    assert (gradient(ours) - gradient(stock)).norm() <= (2e-6 if bits is None else 1e-2) * gradient(stock).norm()


@pytest.mark.slow
def test_all_logits_are_never_there() -> None:
    """By fake tensors, and by what the allocator gives out."""
    model, x = built("llama"), words(1280)
    logits = 4 * x.numel() * CLASSES
    before, peak = saved_bytes(model, x).total, peak_bytes(model, x)
    handle = compress(model, chunked_loss=True)
    model(x).backward()
    after = saved_bytes(model, x)
    assert after.total <= before - logits
    assert peak_bytes(model, x) <= peak - 2 * logits  # their gradient, too
    model.zero_grad()
    output, allocated = bytes_allocated(model, x)
    assert allocated <= after.total + output.nbytes + x.nbytes
    handle.remove()
    assert saved_bytes(model, x).total == before


@pytest.mark.slow
def test_a_plan_counts_on_it() -> None:
    """A share of the bytes that the logits alone exceed; the plan's bytes are those of a step."""
    model, x = built("llama"), words(1280)
    plan = make_plan(model, x, 0.15, goal="error")
    assert 4 * x.numel() * CLASSES > 0.5 * plan.stock.kept
    handle = compress(model, plan=plan)
    model(x).backward()
    assert "its cross-entropy is computed in chunks" in str(handle)
    assert saved_bytes(model, x).total == pytest.approx(plan.planned.kept, rel=0.02)  # docs/how-to/budget.md's promise


def test_it_is_left_out_where_it_is_not_asked_for() -> None:
    for options, heads in (
        ({}, 0),
        ({"bits": 8}, 1),
        ({"bits": 8, "chunked_loss": False}, 0),
        ({"policy": "invact"}, 0),
    ):
        model = built("llama")
        compress(model, **options)  # type: ignore[arg-type]
        assert sum(isinstance(module.__dict__.get("forward"), Head) for module in model.modules()) == heads


def test_a_plan_goes_without_the_argument() -> None:
    with pytest.raises(KernelError, match=r"^chunked_loss must be left out with a plan, which counts on it$"):
        compress(built("llama"), plan="plan.json", chunked_loss=False)


def test_a_model_without_a_head_is_told_once_asked_for() -> None:
    model = nn.Linear(8, 2047)
    with pytest.warns(UserWarning, match=r"^chunked_loss must have a linear layer .* at least 2048 outputs"):
        compress(model, chunked_loss=True).remove()
    compress(model, bits=8)  # by default it says nothing
