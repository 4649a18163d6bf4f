"""Single layers of approximate backprop with checkpoints, autocast, changes in place and other features of torch."""

import contextlib
import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from kernels import KernelError, saved_bytes
from kernels.approx_backprop import Compressed, NormLinear, PreActivation, QLinear, avg_pool2d
from kernels.approx_backprop.forwards import Approximate
from kernels.approx_backprop.layers import approximately
from tests.kernels.approx_backprop.layers import Doubled, compared, error, gradients, layer, plain


class Part(nn.Module):
    """A norm's result goes into a checkpointed region and around it."""

    def __init__(self, ours: bool, nested: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.norm, self.after = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16)
        self.within, self.act, self.nested = nn.Linear(16, 16), nn.LeakyReLU(0.2), nested
        if ours:
            for module in self.children():
                module.forward = Approximate(module, Compressed())

    def region(self, h: Tensor) -> Tensor:
        return self.within(self.act(h))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.before(x))
        if self.nested:
            inner = checkpoint(
                lambda h: checkpoint(self.region, self.norm(h), use_reentrant=False), h, use_reentrant=False
            )
        else:
            inner = checkpoint(self.region, h, use_reentrant=False)
        return inner + self.after(h)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("on_cpu", [False, True])
def test_checkpoints_of_a_part(nested: bool, on_cpu: bool) -> None:
    x = torch.randn(40, 16)
    with torch.autograd.graph.save_on_cpu() if on_cpu else contextlib.nullcontext():
        pairs = compared(Part(True, nested), Part(False, nested), x)
    for computed, expected in pairs:
        assert error(computed, expected) <= 0.02  # codes of 8 bits in groups are off by some thousandths


@pytest.mark.parametrize("name", ["linear", "written the other way round", "relu", "leaky_relu", "convolution", "norm"])
def test_results_may_be_changed_in_place(name: str) -> None:
    other = pytest.importorskip("transformers").pytorch_utils.Conv1D if name.startswith("written") else None
    first = {
        "linear": lambda: nn.Linear(8, 8),
        "written the other way round": lambda: other(8, 8),
        "relu": nn.ReLU,
        "leaky_relu": lambda: nn.LeakyReLU(0.1),
        "convolution": lambda: nn.Conv1d(5, 5, 1),
        "norm": lambda: nn.LayerNorm(8),
    }[name]()

    class Net(nn.Module):
        def __init__(self, in_place: bool) -> None:
            super().__init__()
            self.first, self.in_place = copy.deepcopy(first), in_place

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            if not self.in_place:  # which torch's own ReLU refuses
                return (h + x) * 2
            h += x
            return h.mul_(2)

    x = torch.randn(2, 5, 8)
    ours, stock = Net(True), Net(False)
    ours.first.forward = Approximate(ours.first, Compressed(scheme="fused"))
    for computed, expected in compared(ours, stock, x):
        assert error(computed, expected) <= 10 * torch.finfo(torch.float32).eps  # sums of ten, in another order


def test_strides_of_any_kind_stay() -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    for act in (nn.ReLU(), nn.LeakyReLU(0.1)):
        for view in (x.transpose(1, 2), x[:, ::2], x.permute(2, 0, 1), x.expand(2, 2, 3, 4)):
            expected, y = act(view * 1), approximately(act, view * 1, Compressed())
            assert torch.equal(y, expected)
            assert y.stride() == expected.stride()


def test_nothing_goes_along_with_inputs_and_parameters() -> None:
    query = nn.Parameter(torch.randn(16, 64))
    QLinear(nn.Linear(64, 64))(query).sum().backward()
    assert not hasattr(query, "_actfit_copy")


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
def test_no_features() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    QLinear(nn.Linear(4, 0))(x * 1).sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


def test_what_is_parametrized_afterwards_is_computed_once() -> None:
    linear = nn.Linear(8, 8)
    linear.forward = Approximate(linear, Compressed())
    counted = []

    class Count(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            counted.append(1)
            return weight * 2

    nn.utils.parametrize.register_parametrization(linear, "weight", Count())
    counted.clear()
    linear(torch.randn(2, 8, requires_grad=True))
    assert len(counted) == 1


def test_a_tensor_changed_in_place_is_copied_anew() -> None:
    norm, linear = nn.BatchNorm1d(8).double(), nn.Linear(8, 3).double()
    x = torch.randn(32, 8, dtype=torch.float64)
    method = Compressed()

    class Net(nn.Module):
        def __init__(self, ours: bool) -> None:
            super().__init__()
            self.norm, self.linear, self.ours = norm, linear, ours

        def forward(self, x: Tensor) -> Tensor:
            run: Callable[..., Tensor] = approximately if self.ours else lambda module, x, method: module(x)
            h = run(self.norm, x, method)
            h += 5
            return run(self.linear, h, method)

    got, exact = (gradients(Net(ours), x)[1] for ours in (True, False))
    assert error(got[3], exact[3]) <= 1e-2  # with the code of the old values, the error would be about 1


MIXED = {
    "convolution": lambda options: (
        PreActivation(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), **options),
        (4, 8, 6, 6),
    ),
    "linear": lambda options: (NormLinear(nn.LayerNorm(64), nn.Linear(64, 8), **options), (4, 5, 64)),
    "alone": lambda options: (QLinear(nn.Linear(64, 8), **options), (4, 5, 64)),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("scheme", ["robust", "fused"])
def test_autocast(name: str, scheme: str) -> None:
    torch.manual_seed(0)
    ours, shape = MIXED[name]({"scheme": scheme})
    x = torch.randn(shape)
    if name == "convolution":
        stock = plain(ours.norm, ours.act, ours.consumers[0])
    else:
        stock = copy.deepcopy(ours).eval()  # the stock modules, which a batch norm's evaluation are not
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(x).dtype == torch.bfloat16
        pairs = compared(ours, stock, x)
    for computed, expected in pairs:
        assert computed.dtype == expected.dtype
        assert error(computed, expected) <= 0.02


def test_autocast_leaves_no_copy_of_a_weight_without_gradient() -> None:
    """Autocast keeps a cast weight for its next use, which must get a gradient then."""
    linear = nn.Linear(8, 8)
    x = torch.randn(4, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        h = QLinear(linear)(x * 1)
        y = F.linear(x, linear.weight)
    (dweight,) = torch.autograd.grad(y.sum(), linear.weight)
    assert dweight.abs().sum() > 0
    h.sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("options", [{}, {"scheme": "group", "rounding": "stochastic"}], ids=str)
def test_checkpoints(reentrant: bool, options: dict) -> None:
    norm, conv, x = layer()
    ours = PreActivation(norm, nn.ReLU(), conv, **options)
    torch.manual_seed(2)
    _, exact = gradients(ours, x[:2])

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = ours

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    torch.manual_seed(2)
    if reentrant:  # which has no torch.autograd.grad
        leaf = x[:2].clone().requires_grad_()
        y = Checkpointed()(leaf * 1)
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))
        got = [leaf.grad, *(parameter.grad for parameter in ours.parameters())]
    else:
        _, got = gradients(Checkpointed(), x[:2])
    assert all(map(torch.equal, got, exact))


def test_gradients_of_gradients_are_refused() -> None:
    norm, conv, x = layer()
    leaf = x[:2].clone().requires_grad_()
    (dx,) = torch.autograd.grad(PreActivation(norm, nn.ReLU(), conv)(leaf).sum(), leaf, create_graph=True)
    with pytest.raises(KernelError, match="differentiated once only"):
        dx.sum().backward()


def test_torch_func_and_exports_take_the_stock_modules() -> None:
    ours = NormLinear(nn.LayerNorm(8), nn.Linear(8, 3))
    x = torch.randn(4, 8)
    expected = torch.func.jacrev(nn.Sequential(ours.norm, ours.linears[0]))(x)
    assert torch.equal(torch.func.jacrev(ours)(x), expected)
    names = [str(node.target) for node in torch.export.export(ours, (x,)).graph.nodes]
    assert not any("actfit" in name for name in names)


POOLS = {
    "mean": lambda: nn.AvgPool2d(2),
    "mean, with all": lambda: nn.AvgPool2d((3, 2), 2, 1, True, False, 5),
    "mean, 3d": lambda: nn.AvgPool3d(2),
    "mean to a size": lambda: nn.AdaptiveAvgPool2d((3, None)),
    "largest": lambda: nn.MaxPool2d(3, 2, 1),
    "largest, with all": lambda: nn.MaxPool2d(2, dilation=2, ceil_mode=True),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", POOLS)
def test_pooling_is_exact_and_keeps_no_input(name: str, last: bool) -> None:
    pool = POOLS[name]()
    x = torch.randn(2, 3, 9, 8, *([7] if isinstance(pool, nn.AvgPool3d) else []))
    if last:
        x = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    stock = plain(pool)
    pool.forward = Approximate(pool, Compressed())
    ((dx, exact),) = compared(pool, stock, x)
    assert torch.equal(dx, exact)
    assert dx.stride() == exact.stride()
    places = 4 * stock(x).numel() if name.startswith("largest") else 0
    assert saved_bytes(Doubled(pool), x.requires_grad_()).total == places


def test_the_mean_as_a_function() -> None:
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    assert torch.equal(avg_pool2d(x, 2), F.avg_pool2d(x, 2))
    assert saved_bytes(lambda x: avg_pool2d(x * 1.0, 2, padding=1), x).total == 0


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_inputs(value: float) -> None:
    """Results and gradients are not finite where torch's are not, and unchanged elsewhere."""
    x = torch.randn(300, 8)
    x[7, 3] = value
    for act in (nn.ReLU(), nn.LeakyReLU(0.1)):
        leaf = x.clone().requires_grad_()
        y = approximately(act, leaf, Compressed())
        assert torch.equal(y.isnan(), act(x).isnan())
        assert torch.equal(y.nan_to_num(), act(x).nan_to_num())
        (dx,) = torch.autograd.grad(y.sum(), leaf)
        other = x.clone().requires_grad_()
        (exact,) = torch.autograd.grad(act(other).sum(), other)
        same = ~x.isnan()  # torch's own two disagree there
        assert torch.equal(dx[same], exact[same])
    linear = nn.Linear(8, 2)
    leaf = x.clone().requires_grad_()
    QLinear(linear)(leaf * 1).sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, linear.weight.sum(0).expand_as(leaf).detach())
    assert not linear.weight.grad.isfinite().all()  # as with torch
