"""Papers' ways of saving activations: gradients are those of the single layers, and what is saved is as predicted."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import Handle, compress
from actfit.kernels.activation import activation
from actfit.kernels.errors import KernelError
from actfit.kernels.graph.ways import policies
from tests.kernels.graph.nets import WIDTH, assert_same, batch

ROWS, HIDDEN = 96, 2 * WIDTH


def new_gelu(x: Tensor) -> Tensor:
    """As transformers writes it."""
    return 0.5 * x * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3.0))))


# As models write them, and the name in the catalogue.
FORMULAS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "gelu": (F.gelu, "gelu"),
    "gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), "gelu_tanh"),
    "new gelu": (new_gelu, "gelu_tanh"),
    "quick gelu": (lambda x: x * torch.sigmoid(1.702 * x), "quick_gelu"),
    "silu": (F.silu, "silu"),
    "x sigmoid(x)": (lambda x: x * torch.sigmoid(x), "silu"),
    "mish": (F.mish, "mish"),
    "hardswish": (F.hardswish, "hardswish"),
    "elu": (F.elu, "elu"),
    "selu": (F.selu, "selu"),
    "softplus": (F.softplus, "softplus"),
    "logsigmoid": (F.logsigmoid, "logsigmoid"),
    "tanhshrink": (F.tanhshrink, "tanhshrink"),
}


class Mlp(nn.Module):
    """A residual block, whose second product reads the activation."""

    def __init__(self, act: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.act = act
        self.up, self.down = nn.Linear(WIDTH, HIDDEN, dtype=dtype), nn.Linear(HIDDEN, WIDTH, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(x)))


class Added(Mlp):
    """Nothing of whose activation's output is needed in backward."""

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x)) + self.act(x @ self.up.weight.t() @ self.down.weight.t())


class Gated(Mlp):
    """What the activation reads is read by a product, too."""

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        return self.down(self.act(up)) + self.down(up)


class Convolutions(nn.Module):
    """A block of pictures, channels last."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.act = act
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.act(self.first(x)))


class Halves(Mlp):
    """A gated layer of one product."""

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(2, -1)
        return self.down(torch.cat([self.act(gate) * up, x], -1))


def single(name: str, policy: str) -> Callable[[Tensor], Tensor]:
    """The function of `actfit.functional` that saves as the policy says."""
    method, bits = policies.POLICIES[policy].method, policies.POLICIES[policy].bits
    return lambda x: activation(name, x, method=method, bits=bits)


def train(model: nn.Module, x: Tensor | None = None) -> Tensor:
    """The result of a step."""
    model.zero_grad()
    made: Tensor = model(batch(ROWS) if x is None else x)
    made.float().square().mean().backward()
    return made.detach()


def compressed(model: nn.Module, policy: str | None, x: Tensor | None = None) -> Handle:
    """The handle of a model that took a step."""
    handle = compress(model, policy=policy)
    train(model, x)
    assert not handle.stock
    return handle


def saved(handle: Handle) -> int:
    return sum(graph.after for graph in handle.report.graphs)


# A formula is found whatever the policy: each has one, and gelu all.
BY = ("fewbit-3", "invact", "forward-ad")
PAIRS = [(formula, BY[place % 3]) for place, formula in enumerate(FORMULAS)]


@pytest.mark.parametrize(("formula", "policy"), [*PAIRS, *(("gelu", policy) for policy in BY[1:])])
def test_gradients_are_those_of_the_single_layer(formula: str, policy: str) -> None:
    act, name = FORMULAS[formula]
    layer = Mlp(single(name, policy))
    result = train(layer)
    ours = Mlp(act)
    handle = compress(ours, policy=policy)
    assert torch.equal(train(ours), result)
    assert not handle.refused
    assert f"{name} by {policies.POLICIES[policy].method}" in str(handle)
    assert_same(ours, layer)


@pytest.mark.parametrize("policy", policies.POLICIES)
def test_all_policies_in_bfloat16(policy: str) -> None:
    layer, ours = Mlp(single("gelu", policy), torch.bfloat16), Mlp(F.gelu, torch.bfloat16)
    train(layer, batch().bfloat16())
    handle = compressed(ours, policy, batch().bfloat16())
    assert not handle.refused
    assert_same(ours, layer)


BESIDE = {"fewbit-3": 3 / 8, "fewbit-6": 6 / 8, "invact": 1 / 8, "forward-ad": 4}  # bytes an element


@pytest.mark.parametrize("policy", BESIDE)
def test_bytes_are_as_predicted(policy: str) -> None:
    assert saved(compressed(Mlp(F.gelu), None)) == 4 * ROWS * HIDDEN  # gelu's input
    assert saved(compressed(Mlp(F.gelu), policy)) == (4 + BESIDE[policy]) * ROWS * HIDDEN
    assert saved(compressed(Mlp(F.elu), "invact")) == 4 * ROWS * HIDDEN  # monotone: without a bit


@pytest.mark.parametrize(
    ("made", "policy", "reason"),
    [
        (Mlp(torch.tanh), "fewbit-3", "the output is kept anyway, and PyTorch takes the derivative from it"),
        (Mlp(torch.tanh), "invact", "the output is kept anyway"),
        (Gated(F.gelu), "fewbit-3", "the input is kept anyway"),
        (Halves(F.silu), "invact", "the input is kept anyway"),
        (Added(F.gelu), "invact", "nothing else in backward reads the output"),
        (Added(torch.tanh), "invact", "PyTorch takes the derivative from the output already"),
        (Mlp(F.gelu), "invact-2", "bits must be 1 for gelu in float32"),
        (Mlp(lambda x: F.elu(x, 0.5)), "fewbit-3", "no function of the catalogue with its default parameters"),
        (Mlp(lambda x: x * torch.sigmoid(2 * x)), "invact", "the output is kept anyway"),
    ],
)
def test_what_is_refused_stays_exact(made: nn.Module, policy: str, reason: str) -> None:
    stock = copy.deepcopy(made)
    train(stock)
    handle = compressed(made, policy)
    assert [reason in text for text in handle.refused.values()] == [True]
    assert f"stays exact: {next(iter(handle.refused.values()))}" in str(handle)
    assert_same(made, stock)


@pytest.mark.parametrize("policy", ["fewbit-3", "invact"])
def test_layouts_and_sizes_that_change(policy: str) -> None:
    layer, ours = Convolutions(single("silu", policy)), Convolutions(F.silu)
    handle = compress(ours, policy=policy)
    for rows in (2, 3, 5):
        x = torch.randn(rows, 8, 10, 10).to(memory_format=torch.channels_last)
        train(layer, x)
        train(ours, x)
        assert_same(ours, layer)
    assert not handle.refused
    assert not handle.stock


@pytest.mark.parametrize("policy", ["fewbit-3", "invact"])
def test_autocast(policy: str) -> None:
    layer, ours = Mlp(single("gelu", policy)), Mlp(F.gelu)
    handle = compress(ours, policy=policy)
    for model in (layer, ours):
        with torch.autocast("cpu", torch.bfloat16):
            made = model(batch())
        made.float().square().mean().backward()
    assert not handle.refused
    assert_same(ours, layer)


def test_copies_keep_their_policy() -> None:
    ours = nn.Sequential(Mlp(F.gelu), Mlp(F.gelu))
    compressed(ours, "fewbit-1")
    for made in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        train(made)
        assert_same(made, ours)


@pytest.mark.parametrize("policy", ["fewbit", "fewbit-9", "exact", "", 3])
def test_names(policy: object) -> None:
    with pytest.raises(
        KernelError, match=r"policy must be one of fewbit-1, .*, invact, invact-2, forward-ad, approximate-.*, got"
    ):
        compress(Mlp(F.gelu), policy=policy)  # type: ignore[arg-type]


def test_bits_and_policy_exclude_each_other() -> None:
    with pytest.raises(KernelError, match=r"bits must be None with policy='invact', got 4"):
        compress(Mlp(F.gelu), bits=4, policy="invact")


def test_few_bits_are_all_that_is_kept_where_nothing_reads_the_output() -> None:
    inner = 4 * ROWS * (2 * HIDDEN)  # of the products
    kept = {policy: saved(compressed(Added(F.gelu), policy)) - inner for policy in (None, "fewbit-3", "forward-ad")}
    assert kept == {None: 4 * ROWS * WIDTH, "fewbit-3": ROWS * WIDTH * 3 // 8, "forward-ad": 4 * ROWS * WIDTH}
