"""Operations of backward that would magnify the error of a code, and programs drawn at random."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.kernels.compression.cuts import Step, allowed, full_width, same
from tests.kernels.compression.graph_programs import drawn
from tests.kernels.compression.graphs import code_from, error, partitioner, stock
from tests.kernels.programs import inputs

BITS = 8


class Net(nn.Module):
    """An operation between two layers, and a loss that weighs all outputs differently."""

    def __init__(self, operation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64))
        self.operation = operation

    def forward(self, x: Tensor) -> Tensor:
        y = self.operation(self.layers(x))
        return (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum()


# Functions that jump; a decoded value near a jump would be on the other side.
JUMPS: dict[str, Callable[[Tensor], Tensor]] = {
    "floor": lambda h: h * h.floor(),
    "round": lambda h: h * (h * 3).round(),
    "remainder": lambda h: h * torch.remainder(h, 0.7),
    "to integers": lambda h: h * (h * 4).int(),
    "copysign": lambda h: torch.copysign(h.exp(), h),
    "signbit": lambda h: torch.where(torch.signbit(h), h.sin(), h.cos()),
    "a sign behind a comparison": lambda h: torch.where(h < -0.5, 0.25, h).abs(),
    "a sign of a constant": lambda h: torch.where(h > torch.tensor(0.3), torch.tensor(0.25), h).abs(),
    "two comparisons": lambda h: torch.where((h > 0) & ~(h > 0.3), h.sin(), h.cos()),
}
# Functions with a pole; a decoded value may be on it, or beyond it.
POLES: dict[str, Callable[[Tensor], Tensor]] = {
    "reciprocal": lambda h: 1 / h,
    "quotient": lambda h: h.sin() / (h.square() + 1e-6),
    "logarithm": lambda h: h.square().log(),
    "root": lambda h: (F.relu(h) + 1e-6).sqrt(),
    "power": lambda h: h.abs().pow(0.5),
    "arcus": lambda h: h.sin().acos(),
}
# Functions that look like these, but are coded.
AWAY: dict[str, Callable[[Tensor], Tensor]] = {
    "softsign": F.softsign,
    "softplus": F.softplus,
    "1 / (1 + x * x)": lambda h: 1 / (h * h + 1),
}
OPERATIONS = JUMPS | POLES | AWAY
QUICK = ("floor", "logarithm")
FACTORS = ("remainder", "1 / (1 + x * x)")  # the gradient is multiplied once, by their product, which crosses


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in OPERATIONS]
)
def test_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code_from(64, monkeypatch)
    torch.manual_seed(0)
    step, cut = Step(Net(OPERATIONS[name]), stock), partitioner(bits=BITS)
    step.run(torch.randn(64, 32)).backward()
    exact = step.again(stock)
    assert error(step.again(cut)[1], exact[1]) < allowed(cut.graphs, BITS)
    with full_width():
        if name in FACTORS:  # by PyTorch's default tolerances of a few roundings
            torch.testing.assert_close(step.again(partitioner()), exact)
        else:
            assert same(step.again(partitioner()), exact)
    whole = "backward divides by it" in {row.reason for row in cut.graphs[0].crossings}
    assert whole == (name in POLES)


def same_draws(run: Callable[[], Tensor]) -> bool:
    """Whether no random number is drawn: graphs draw others than eager mode."""
    before = torch.get_rng_state()
    run()
    return torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_random_programs(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    code_from(16, monkeypatch)
    tried = 0
    for seed in range(programs // 60):
        program, (x, weight) = drawn(seed), inputs()
        try:
            plain = torch.autograd.grad(program(x, weight), (x, weight), materialize_grads=True)
        except RuntimeError:  # the program changes a tensor that its backward needs
            continue
        step, cut = Step(program, stock), partitioner(bits=BITS)
        step.run(x, weight).backward()
        exact = step.again(stock)
        gradients = [torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in (x, weight)]
        if same_draws(lambda: program(x, weight)):  # noqa: B023, it is called here
            # Sums of 36 float64, in chains of up to 16 operations.
            torch.testing.assert_close(gradients, list(plain), rtol=1e-12, atol=1e-12, msg=f"{seed}")
        with full_width():
            assert same(step.again(partitioner()), exact), seed
        if any(bool(tensor.any()) for tensor in exact[1]):
            assert error(step.again(cut)[1], exact[1]) <= allowed(cut.graphs, BITS), seed
            tried += 1
    assert tried > programs // 120
