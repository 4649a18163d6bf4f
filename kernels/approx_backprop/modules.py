"""PreActivation, NormLinear, QLinear: layers that run forward exactly and save K-bit copies for backward."""

from typing import Any

from torch import Tensor, nn

from kernels.approx_backprop.layers import RECTIFIERS, approximately, kind_of, why_not
from kernels.approx_backprop.linears import LINEAR
from kernels.approx_backprop.norms import BATCH, ROWS
from kernels.errors import KernelError
from kernels.methods.compressed import Compressed


class _Layer(nn.Module):
    """The base class: the method, and the checks of the modules."""

    def __init__(self, method: Compressed) -> None:
        super().__init__()
        self.method = method

    def _checked(self, argument: str, module: nn.Module, kinds: tuple[type[nn.Module], ...], names: str) -> nn.Module:
        if not isinstance(module, kinds):
            raise KernelError(f"{argument} must be {names}, got {type(module).__name__}")
        if reason := why_not(module) or "it has a forward of its own" * (kind_of(module) == "written"):
            kind = type(module).__name__
            raise KernelError(f"{argument} must be one that can be saved in few bits, got {kind}: {reason}")
        return module

    def extra_repr(self) -> str:
        return self.method.label


class PreActivation(_Layer):
    """consumer(act(norm(x))) for each of `consumers`: a tensor for a single consumer, else a tuple.

    The forward is torch's, bit by bit. The gradient of the norm's bias is exact, and so are two of the three terms of
    the gradient of x. Hooks on the modules do not run.

    Parameters
    ----------
    norm
        nn.BatchNorm1d, 2d or 3d.
    act
        nn.ReLU or nn.LeakyReLU, in place or not.
    *consumers
        nn.Linear, nn.Conv1d to 3d, nn.ConvTranspose1d to 3d. They share one code, as a ResNet's convolution and its
        shortcut do.
    **options
        bits, scheme, clip, rounding of approx-backprop, see `Compressed`.

    Raises
    ------
    KernelError
        For other modules and options.
    """

    def __init__(self, norm: nn.Module, act: nn.Module, *consumers: nn.Module, **options: Any) -> None:
        super().__init__(Compressed(**options))
        self.norm = self._checked("norm", norm, BATCH, "a batch norm")
        self.act = self._checked("act", act, RECTIFIERS, "nn.ReLU or nn.LeakyReLU")
        if not consumers:
            raise KernelError("consumers must be one or more, got none; give a convolution or a linear layer")
        checked = (
            self._checked("consumers", consumer, LINEAR, "linear layers or convolutions") for consumer in consumers
        )
        self.consumers = nn.ModuleList(checked)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """consumer(act(norm(x))) for each consumer."""
        h = approximately(self.act, approximately(self.norm, x, self.method), self.method)
        results = tuple(approximately(consumer, h, self.method) for consumer in self.consumers)
        return results[0] if len(results) == 1 else results


class NormLinear(_Layer):
    """linear(norm(x)) for each of `linears`: a tensor for a single layer, else a tuple.

    It saves the normalised x in K bits, between minimum and maximum of 64 tokens of a feature, and 1/std of each row.
    Hooks on the modules do not run.

    Parameters
    ----------
    norm
        nn.LayerNorm or nn.RMSNorm.
    *linears
        Linear layers, which share one code.
    **options
        bits, scheme, clip, rounding of approx-backprop, see `Compressed`.

    Raises
    ------
    KernelError
        For other modules and options.
    """

    def __init__(self, norm: nn.Module, *linears: nn.Module, **options: Any) -> None:
        super().__init__(Compressed(**options))
        self.norm = self._checked("norm", norm, ROWS, "nn.LayerNorm or nn.RMSNorm")
        if not linears:
            raise KernelError("linears must be one or more, got none; give an nn.Linear")
        self.linears = nn.ModuleList(self._checked("linears", linear, LINEAR, "linear layers") for linear in linears)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """linear(norm(x)) for each linear layer."""
        h = approximately(self.norm, x, self.method)
        results = tuple(approximately(linear, h, self.method) for linear in self.linears)
        return results[0] if len(results) == 1 else results


class QLinear(_Layer):
    """A linear layer or convolution that saves its input in K bits, between minimum and maximum of 64 tokens.

    Parameters
    ----------
    linear
        nn.Linear, nn.Conv1d to 3d, nn.ConvTranspose1d to 3d.
    **options
        bits, scheme, clip, rounding of approx-backprop, see `Compressed`.

    Raises
    ------
    KernelError
        For other modules and options.
    """

    def __init__(self, linear: nn.Module, **options: Any) -> None:
        super().__init__(Compressed(**options))
        self.linear = self._checked("linear", linear, LINEAR, "a linear layer or a convolution")

    def forward(self, x: Tensor) -> Tensor:
        """linear(x)."""
        return approximately(self.linear, x, self.method)
