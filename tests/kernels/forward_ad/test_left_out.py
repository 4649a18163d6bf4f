"""Models with hooks or custom backwards, which a graph would silently leave out, are refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.errors import KernelError
from kernels.forward_ad import backend, exported, traced
from tests.kernels.forward_ad.chains import mish
from tests.kernels.forward_ad.graphs import MARKS

pytestmark = MARKS


class Rounded(torch.autograd.Function):
    """Rounds; its backward is the identity."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


class WithOwnBackward(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        rounded: Tensor = Rounded.apply(mish(self[0](x)))
        return self[1](rounded)


def two_layers(kind: type[nn.Sequential] = nn.Sequential) -> nn.Sequential:
    return kind(nn.Linear(8, 8), nn.Linear(8, 1))


def test_a_backward_of_its_own_is_not_left_out_in_silence() -> None:
    model, x = two_layers(WithOwnBackward), torch.randn(4, 8)
    with pytest.raises(KernelError, match=r"Rounded, whose backward would be left out; try torch.compile"):
        exported(model, (x,))
    with pytest.raises(KernelError, match=r"torch.fx.symbolic_trace can follow"):
        traced(model, x)
    plain = torch.autograd.grad(model(x).sum(), model[0].weight)[0]
    compiled = torch.compile(model, backend=backend())
    assert torch.equal(torch.autograd.grad(compiled(x).sum(), model[0].weight)[0], plain)
    assert plain.abs().sum() > 0


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_are_not_left_out_in_silence(register: str) -> None:
    model, x = two_layers(), torch.randn(4, 8)
    getattr(model[0], register)(lambda *_: None)
    for make in (lambda: exported(model, (x,)), lambda: traced(model, x)):
        with pytest.raises(KernelError, match="a backward hook on 0, which would be left out"):
            make()


def test_hooks_on_the_model_are_not_left_out_in_silence() -> None:
    model, x = two_layers(), torch.randn(4, 8)
    model.register_forward_hook(lambda module, args, output: output * 2)
    with pytest.raises(KernelError, match="a hook on the model, which would be left out"):
        traced(model, x)


def test_code_that_depends_on_the_mode_is_not_frozen_in_silence() -> None:
    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(mish(super().forward(x)), 0.5, self.training)

    model = Own(8, 8)
    with pytest.raises(KernelError, match=r"depends on self\.training, which would stay as it is now"):
        traced(model, torch.randn(4, 8))
    assert model.training
