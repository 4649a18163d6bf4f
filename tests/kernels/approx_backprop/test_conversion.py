"""Whole models by approximate backprop: converted, trained, compiled, put back."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import KernelError, convert, saved_bytes
from tests.kernels.processes import of_two

pytestmark = [
    pytest.mark.usefixtures("afresh", "one_thread"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
]
METHOD = "approx-backprop"


class PreActivated(nn.Module):
    """A block of a pre-activation ResNet with a projection, which calls its ReLUs as functions."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inward), nn.BatchNorm2d(outward)
        self.conv1 = nn.Conv2d(inward, outward, 3, padding=1, stride=2, bias=False)
        self.conv2 = nn.Conv2d(outward, outward, 3, padding=1, bias=False)
        self.past = nn.Conv2d(inward, outward, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x))
        return self.conv2(torch.relu(self.norm2(self.conv1(h)))) + self.past(h)


class Residual(nn.Module):
    """A block of a ResNet as torchvision has it: one ReLU for all, in place, after what is added in place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class Attention(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (one(h).unflatten(-1, (4, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) if x.dim() == 4 else x.mean(1)


def stem(*more: nn.Module) -> list[nn.Module]:
    return [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), *more]


MODELS = {
    "pre-activation": lambda: nn.Sequential(
        *stem(), PreActivated(16, 32), PreActivated(32, 32), Mean(), nn.Linear(32, 4)
    ),
    "residual": lambda: nn.Sequential(
        *stem(nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        Residual(16),
        Residual(16),
        nn.AvgPool2d(2),
        Mean(),
        nn.Linear(16, 4),
    ),
    "transformer": lambda: nn.Sequential(nn.Linear(8, 32), Attention(), Attention(), Mean(), nn.Linear(32, 4)),
}
SHAPES = {"transformer": (8, 16, 8)}
each_model = pytest.mark.parametrize("name", MODELS)


def made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return MODELS[name](), torch.randn(SHAPES.get(name, (16, 1, 16, 16)))


def trained(net: Any, x: Tensor, steps: int = 10) -> list[float]:
    """The loss before each step of SGD."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    target = torch.arange(len(x)) % 4
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(net(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def gradients(net: Any, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    y = net(x)
    names = [one for one in net.parameters() if one.requires_grad]
    return y.detach(), list(torch.autograd.grad(y, names, torch.ones_like(y) + torch.arange(4)))


def error(got: list[Tensor], expected: list[Tensor]) -> float:
    """Of all gradients together."""
    return float(
        torch.cat([(one - other).flatten() for one, other in zip(got, expected, strict=True)]).norm()
        / torch.cat([one.flatten() for one in expected]).norm()
    )


@pytest.mark.slow
@each_model
@pytest.mark.parametrize("bits", [8, 4])
def test_a_model_trains_and_is_put_back(name: str, bits: int) -> None:
    net, x = made(name)
    stock = copy.deepcopy(net)
    keys = list(net.state_dict())
    before = saved_bytes(net, x).total
    report = convert(net, METHOD, bits=bits, inputs=x)
    assert not report.left
    assert report.before is not None
    assert report.before.total == before
    assert report.after is not None
    assert report.after.total == saved_bytes(net, x).total < before / (2 if bits == 8 else 3)
    assert list(net.state_dict()) == keys
    y, got = gradients(net, x)
    expected, exact = gradients(stock, x)
    assert torch.equal(y, expected)
    assert all(map(torch.equal, net.buffers(), stock.buffers()))
    # A step is 1/16 of the range at 4 bits, 1/256 at 8: what errors are made of, in each of some ten layers.
    assert error(got, exact) <= (0.5 if bits == 4 else 0.05)
    ours, theirs = trained(net, x), trained(stock, x)
    assert ours[0] == theirs[0]
    assert abs(ours[-1] - theirs[-1]) < 0.1 * theirs[0]
    net.load_state_dict(stock.state_dict())
    report.revert()
    assert not any("forward" in vars(one) for one in net.modules())
    for one, other in zip(gradients(net, x)[1], gradients(stock, x)[1], strict=True):
        assert torch.equal(one, other)


@each_model
def test_in_full_gradients_are_autograds(name: str) -> None:
    net, x = made(name)
    net, x = net.double(), x.double()
    stock = copy.deepcopy(net)
    convert(
        net, METHOD, scheme="fused", include="*" if name != "transformer" else ["0", "1.norm*", "1.q", "1.out", "2.k"]
    )
    (y, got), (expected, exact) = gradients(net, x), gradients(stock, x)
    assert torch.equal(y, expected)
    # Sums of some thousand numbers, through some ten layers.
    assert error(got, exact) <= 1e6 * torch.finfo(torch.float64).eps


@pytest.mark.slow
@each_model
def test_compiled(name: str) -> None:
    net, x = made(name)
    stock = copy.deepcopy(net)
    convert(net, METHOD, bits=4, inputs=x)
    _, got = gradients(torch.compile(net, backend="aot_eager", fullgraph=True), x)
    net.load_state_dict(stock.state_dict())
    assert error(got, gradients(net, x)[1]) == 0


@pytest.mark.slow
def test_compiled_by_inductor() -> None:
    net, x = made("residual")
    net = nn.Sequential(*net[:5], *net[6:])  # one block: to compile takes long
    stock = copy.deepcopy(net)
    convert(net, METHOD, bits=4, inputs=x)
    compiled = torch.compile(net, fullgraph=True)
    kept = saved_bytes(compiled, x)
    in_bits = sum(one.bytes for one in kept.tensors if one.dtype == "uint8")
    assert in_bits == sum(one.bytes for one in saved_bytes(net, x).tensors if one.dtype == "uint8")
    weights = sum(one.numel() * 4 for one in net.parameters())  # of convolutions, which it keeps in another layout
    assert kept.total <= saved_bytes(net, x).total + weights
    net.load_state_dict(stock.state_dict())
    _, got = gradients(compiled, x)
    net.load_state_dict(stock.state_dict())
    # Its kernels round otherwise, and so a number in some thousands has another code, a step of 1/16 of the range away.
    assert error(got, gradients(net, x)[1]) <= 0.02


class Added(nn.Module):
    """Changes a norm's result in place by a statement of its own, which torch.compile gives no sign of."""

    def __init__(self, by_helper: bool) -> None:
        super().__init__()
        self.norm, self.linear, self.by_helper = nn.BatchNorm1d(8), nn.Linear(8, 4), by_helper

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        if self.by_helper:
            helper(h)
        else:
            h[:, :4] += 3
        return self.linear(h)


def helper(x: Tensor) -> None:
    x.add_(3)


@pytest.mark.slow
@pytest.mark.parametrize(("by_helper", "looks"), [(False, False), (False, True), (True, True)])
def test_what_is_changed_in_place_is_not_trusted_when_compiled(by_helper: bool, looks: bool) -> None:
    torch.manual_seed(0)
    net, x = Added(by_helper), torch.randn(64, 8)
    stock = copy.deepcopy(net)
    convert(net, METHOD, inputs=x if looks else None)
    _, exact = gradients(stock, x)
    for run in (net, torch.compile(net, backend="aot_eager")):
        _, got = gradients(run, x)
        assert error(got, exact) <= 0.05


def test_frozen_and_evaluated() -> None:
    net, x = made("residual")
    convert(net, METHOD)
    stock = copy.deepcopy(net)
    for one in (net, stock):
        one[:4].requires_grad_(False)
    net.eval()
    stock.eval()
    convert(stock, METHOD).revert()
    assert torch.equal(net(x), stock(x))
    net.train()
    _, got = gradients(net, x)
    assert all(one.isfinite().all() for one in got)


def test_sites_can_be_chosen_and_say_why_not() -> None:
    net, x = made("pre-activation")
    net[3].conv1.padding_mode = "circular"
    report = convert(net, METHOD, bits=4, inputs=x, include=["2", "3"], exclude="2.past")
    reasons = {site.name: site.reason for site in report.left}
    assert reasons["0"] == reasons["5"] == "not included"
    assert reasons["2.past"] == "excluded"
    assert "padding_mode='circular'" in reasons["3.conv1"]
    assert {site.name for site in report.converted} >= {"2.norm1", "2.relu()", "2.conv1", "3.past"}
    assert "layers and activations converted" in str(report)
    assert "| 2.conv1 | Conv2d | approx-backprop, 4 bits, robust |" in str(report)
    again = convert(net, METHOD)
    assert {site.name for site in again.converted} == {"0", "1", "2.past", "5"}
    assert "it goes by approx-backprop already; revert that first" in str(again)
    again.revert()
    report.revert()
    assert not any("forward" in vars(one) for one in net.modules())


def test_smooth_functions_keep_their_derivative_in_few_bits() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Mish(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.LeakyReLU(0.3))
    report = convert(net, METHOD, bits=8)
    now = {site.was: site.now for site in report.converted}
    assert now["Mish"] == "approx-backprop, 8 bits, group"  # there are tables up to 4 bits
    assert now["GELU"] == "fewbit, 8 bits"
    assert now["LeakyReLU"] == "approx-backprop, 8 bits, robust"


def test_fused_leaves_alone_what_it_cannot_keep_exactly() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Mish(), nn.Linear(8, 8), nn.ReLU6(), nn.Tanh(), nn.LeakyReLU(0.3))
    report = convert(net, METHOD, scheme="fused")
    assert [site.was for site in report.left] == ["Mish", "Tanh"]
    assert "is not exact" in report.left[0].reason
    assert {site.was: site.now for site in report.converted}["ReLU6"] == "fewbit, 1 bit"


def test_copies_and_pickles_stay_converted() -> None:
    net, x = made("residual")
    convert(net, METHOD, bits=4, inputs=x)
    state = copy.deepcopy(net.state_dict())
    kept, (_, exact) = saved_bytes(net, x).total, gradients(net, x)
    for one in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        one.load_state_dict(state)
        assert saved_bytes(one, x).total == kept
        assert error(gradients(one, x)[1], exact) == 0


def test_every_kind_of_module_is_told_of() -> None:
    net = nn.Sequential(nn.ReLU(), nn.GroupNorm(2, 8), nn.MultiheadAttention(8, 2))
    net[0].register_forward_hook(lambda *_: None)  # which go on to run
    report = convert(net, METHOD)
    assert [site.name for site in report.converted] == ["0"]
    assert {site.name: site.reason for site in report.left} == dict.fromkeys(
        ["1", "2"], "it is not one of the layers that can keep few bits"
    )
    assert "it goes by approx-backprop already" in str(convert(net, METHOD))
    report.revert()
    assert convert(nn.ReLU(), METHOD).converted[0].was == "ReLU"  # a model of one module


def test_hooks_of_modules_run() -> None:
    net, x = made("pre-activation")
    seen = []
    net[2].norm1.register_forward_hook(lambda *_: seen.append("norm"))
    net[2].conv1.register_full_backward_hook(lambda *_: seen.append("conv"))
    convert(net, METHOD)
    gradients(net, x)
    assert seen == ["norm", "conv"]


TINY = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 50, "n_positions": 32}),
    "llama": (
        "LlamaForCausalLM",
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "vocab_size": 50,
        },
    ),
    "bert": (
        "BertModel",
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "vocab_size": 50,
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_models_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    kind, values = TINY[name]
    kind = getattr(transformers, kind)
    torch.manual_seed(0)
    net = kind(kind.config_class(**values))
    for one in net.modules():
        if isinstance(one, nn.Dropout):
            one.p = 0.0
    stock = copy.deepcopy(net)
    tokens = {"input_ids": torch.randint(2, 50, (4, 16))}
    report = convert(net, METHOD, bits=8, inputs=tokens)
    assert not report.left
    assert report.before is not None
    assert report.after is not None
    assert report.after.total < 0.6 * report.before.total

    def run(one: nn.Module) -> tuple[Tensor, list[Tensor]]:
        y = one(**tokens)[0]
        used = [parameter for parameter in one.parameters() if parameter.requires_grad]
        found = torch.autograd.grad(y.square().sum(), used, allow_unused=True)
        return y.detach(), [gradient for gradient in found if gradient is not None]

    (y, got), (expected, exact) = run(net), run(stock)
    # Kernels of ours compute what GPT-2 writes out, and round otherwise; that goes through two layers.
    assert (y - expected).abs().max() <= (100 * torch.finfo(torch.float32).eps if name == "gpt2" else 0)
    assert error(got, exact) <= 0.05  # as above
    report.revert()
    assert all(map(torch.equal, run(net)[1], exact))


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "bits": ({"method": METHOD, "bits": 1}, "bits must be a whole number from 2 to 8 for approx-backprop, got 1"),
    "scheme": ({"method": METHOD, "scheme": "best"}, "scheme must be one of robust, paper, group, fused, got 'best'"),
    "scheme of others": ({"method": "fewbit", "scheme": "group"}, "scheme must go with method='approx-backprop', got"),
    "coefficients": ({"method": METHOD, "coefficients": "x.json"}, "coefficients must go with method='fewbit', got"),
    "bound": ({"method": METHOD, "max_derivative_error": 0.1}, "max_derivative_error must go with method='auto', got"),
    "name": (
        {"method": "approx"},
        "method must be one of auto, forward-ad, fewbit, invact, invact-precision-bit, appr",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    given, said = REFUSALS[name]
    with pytest.raises(KernelError) as caught:
        convert(nn.Sequential(nn.Linear(3, 3)), **given)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def network() -> nn.Module:
    """The same in every process. Norms of rows, so that half a batch is half the sum."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(6, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.RMSNorm(64), nn.Linear(64, 3)
    )
    convert(net.double(), METHOD, scheme="fused")
    return net


def worker(rank: int, folder: Any) -> None:
    """What each of two processes does; the first leaves its results in `folder`."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    found = {}
    for wrapper in ("ddp", "fsdp2", "fsdp2 by layer"):
        net: Any = network()
        if wrapper == "ddp":
            net = DistributedDataParallel(net)
        else:
            for layer in net if "layer" in wrapper else ():
                if not isinstance(layer, nn.ReLU):
                    fully_shard(layer, mesh=mesh)
            fully_shard(net, mesh=mesh)
        steps(net, batch().chunk(2)[rank])
        parameters = [getattr(one, "full_tensor", lambda one=one: one)() for one in net.parameters()]
        found[wrapper] = [one.detach() for one in parameters]
    if rank == 0:
        torch.save(found, folder / "results.pt")
    distributed.destroy_process_group()


def batch() -> Tensor:
    return torch.randn(16, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def steps(net: nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        net(x * 1).square().mean().backward()
        optimizer.step()


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_two_processes_are_as_one(tmp_path: Any) -> None:
    found = of_two(__file__, tmp_path, 120)
    net = network()
    steps(net, batch())
    for parameters in found.values():
        for one, other in zip(parameters, net.parameters(), strict=True):
            # Sums are taken in another order: some hundred numbers below ten, in each of two steps.
            assert (one - other).abs().max() <= 1000 * torch.finfo(torch.float64).eps


if __name__ == "__main__":
    import sys
    from pathlib import Path

    worker(int(sys.argv[1]), Path(sys.argv[2]))
