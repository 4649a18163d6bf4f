"""PreActivation, NormLinear, QLinear: layers that run forward exactly and save K-bit copies for backward."""

from typing import Any

from torch import Tensor, nn

from kernels.approx_backprop.layers import RECTIFIERS, approximately, kind_of, why_not
from kernels.approx_backprop.linears import LINEAR
from kernels.approx_backprop.norms import BATCH, ROWS
from kernels.errors import KernelError
from kernels.methods.compressed import Compressed


class _Layer(nn.Module):
    """What all have in common: the modules in turn, of which the last may be several, that take the same."""

    def __init__(self, method: Compressed) -> None:
        super().__init__()
        self.method = method

    def _given(self, argument: str, module: nn.Module, kinds: tuple[type[nn.Module], ...], names: str) -> nn.Module:
        if not isinstance(module, kinds):
            raise KernelError(f"{argument} must be {names}, got {type(module).__name__}")
        if reason := why_not(module) or "it has a forward of its own" * (kind_of(module) == "written"):
            kind = type(module).__name__
            raise KernelError(f"{argument} must be one that can be saved in few bits, got {kind}: {reason}")
        return module

    def extra_repr(self) -> str:
        return self.method.label


class PreActivation(_Layer):
    """consumer(act(norm(x))) for each of `consumers`: the tensor that the only one gives, or a tuple of all theirs.

    The forward is torch's, bit by bit; exact are the gradient of the norm's bias, and that of x but for one term of
    three. Hooks on the modules do not run.

    Parameters
    ----------
    norm
        nn.BatchNorm1d, 2d or 3d.
    act
        nn.ReLU or nn.LeakyReLU, which works in place or not.
    *consumers
        nn.Linear, nn.Conv1d to 3d, nn.ConvTranspose1d to 3d, which share one code, as a ResNet's convolution and its
        shortcut do.
    **options
        bits, scheme, clip, rounding, see `Compressed`.

    Raises
    ------
    KernelError
        For other modules and options.
    """

    def __init__(self, norm: nn.Module, act: nn.Module, *consumers: nn.Module, **options: Any) -> None:
        super().__init__(Compressed(**options))
        self.norm = self._given("norm", norm, BATCH, "a batch norm")
        self.act = self._given("act", act, RECTIFIERS, "nn.ReLU or nn.LeakyReLU")
        if not consumers:
            raise KernelError("consumers must be one or more, got none; give a convolution or a linear layer")
        given = (self._given("consumers", one, LINEAR, "linear layers or convolutions") for one in consumers)
        self.consumers = nn.ModuleList(given)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """consumer(act(norm(x))), of each consumer."""
        h = approximately(self.act, approximately(self.norm, x, self.method), self.method)
        found = tuple(approximately(one, h, self.method) for one in self.consumers)
        return found[0] if len(found) == 1 else found


class NormLinear(_Layer):
    """linear(norm(x)) for each of `linears`: the tensor that the only one gives, or a tuple of all theirs.

    Saved are the normalised x in K bits between minimum and maximum of 64 tokens of a feature, and 1/std of rows. Hooks
    on the modules do not run.

    Parameters
    ----------
    norm
        nn.LayerNorm or nn.RMSNorm.
    *linears
        Linear layers, which share one code.
    **options
        bits, scheme, clip, rounding, see `Compressed`.

    Raises
    ------
    KernelError
        For other modules and options.
    """

    def __init__(self, norm: nn.Module, *linears: nn.Module, **options: Any) -> None:
        super().__init__(Compressed(**options))
        self.norm = self._given("norm", norm, ROWS, "nn.LayerNorm or nn.RMSNorm")
        if not linears:
            raise KernelError("linears must be one or more, got none; give an nn.Linear")
        self.linears = nn.ModuleList(self._given("linears", one, LINEAR, "linear layers") for one in linears)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """linear(norm(x)), of each linear layer."""
        h = approximately(self.norm, x, self.method)
        found = tuple(approximately(one, h, self.method) for one in self.linears)
        return found[0] if len(found) == 1 else found


class QLinear(_Layer):
    """A linear layer or convolution that saves its input in K bits, between minimum and maximum of 64 tokens.

    Parameters
    ----------
    linear
        nn.Linear, nn.Conv1d to 3d, nn.ConvTranspose1d to 3d.
    **options
        bits, scheme, clip, rounding, see `Compressed`.

    Raises
    ------
    KernelError
        For other modules and options.
    """

    def __init__(self, linear: nn.Module, **options: Any) -> None:
        super().__init__(Compressed(**options))
        self.linear = self._given("linear", linear, LINEAR, "a linear layer or a convolution")

    def forward(self, x: Tensor) -> Tensor:
        """linear(x)."""
        return approximately(self.linear, x, self.method)
