"""Replacements for modules of torch.nn that save less for backward, with three more arguments.

Each is a subclass of the module that it replaces. It takes `method`, `bits` and `coefficients` by keyword, as functions
of `actfit.functional` do, and checks them in its constructor. The state dict is empty.
"""

from typing import Any, ClassVar

import torch
import torch.fx
from torch import Tensor, nn

from actfit.kernels.activation import Path, activation
from actfit.kernels.errors import KernelError, shown
from actfit.kernels.functional import check_threshold, gelu_name
from actfit.kernels.methods.registry import DEFAULT
from actfit.kernels.parameters import number
from actfit.kernels.validate import kernel_for, resolved

torch.fx.wrap("activation")  # in a traced graph it stays one call
SCRIPT = (
    "model must be stock for torch.jit.script, which compiles the code of each forward, got one with parts of ours;"
    " put PyTorch's own modules back first, or use torch.compile or torch.export"
)


class Activation(nn.Module):
    """Base of all modules here.

    Parameters
    ----------
    *args, **kwargs
        Arguments of torch's module.
    method, bits, coefficients
        As for functions of `actfit.functional`; `actfit.elementwise` takes files of other functions, and formulas.

    Attributes
    ----------
    function
        Its name in the catalogue.
    arguments
        Names of the attributes that are parameters of the function.

    Raises
    ------
    KernelError
        For arguments that the method or the function does not support, and for inplace=True.
    """

    function: ClassVar[str]
    arguments: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *args: Any,
        method: str = DEFAULT,
        bits: int | None = None,
        coefficients: Path | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        inplace = getattr(self, "inplace", False)
        if not isinstance(inplace, int) or inplace:
            raise KernelError(f"inplace must be False, got {shown(inplace)}: use the stock module for that")
        spec, _ = kernel_for(self.name(), self._params(), method, bits, coefficients)
        if coefficients is None:
            bits = spec.method.arguments().get("bits")
        self.method, self.bits, self.coefficients = method, bits, resolved(coefficients)

    def name(self) -> str:
        """The function's name in the catalogue."""
        return self.function

    def _params(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.arguments}

    def forward(self, input: Tensor) -> Tensor:
        """f(input), in its shape, dtype and memory layout."""
        return activation(
            self.name(), input, method=self.method, bits=self.bits, coefficients=self.coefficients, **self._params()
        )

    def __prepare_scriptable__(self) -> None:
        raise KernelError(SCRIPT)

    def extra_repr(self) -> str:
        """torch's own text, then method and bits."""
        given = {"bits": self.bits, "coefficients": self.coefficients and str(self.coefficients)}
        ours = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        return ", ".join(filter(None, [super().extra_repr(), f"method={self.method!r}", *ours]))


class ReLU(Activation, nn.ReLU):
    """`torch.nn.ReLU`."""

    function = "relu"


class LeakyReLU(Activation, nn.LeakyReLU):
    """`torch.nn.LeakyReLU`."""

    function = "leaky_relu"
    arguments = ("negative_slope",)


class ReLU6(Activation, nn.ReLU6):
    """`torch.nn.ReLU6`."""

    function = "relu6"


class Threshold(Activation, nn.Threshold):
    """`torch.nn.Threshold`."""

    function = "threshold"
    arguments = ("threshold", "value")


class Hardtanh(Activation, nn.Hardtanh):
    """`torch.nn.Hardtanh`."""

    function = "hardtanh"
    arguments = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, *args: Any, **kwargs: Any) -> None:
        low, high = number("min_val", min_val), number("max_val", max_val)
        if not low < high:  # which torch asserts
            raise KernelError(f"max_val must be above min_val, got min_val={low:g} and max_val={high:g}")
        super().__init__(min_val, max_val, *args, **kwargs)


class Hardsigmoid(Activation, nn.Hardsigmoid):
    """`torch.nn.Hardsigmoid`."""

    function = "hardsigmoid"


class Hardshrink(Activation, nn.Hardshrink):
    """`torch.nn.Hardshrink`."""

    function = "hardshrink"
    arguments = ("lambd",)


class Softshrink(Activation, nn.Softshrink):
    """`torch.nn.Softshrink`."""

    function = "softshrink"
    arguments = ("lambd",)


class Hardswish(Activation, nn.Hardswish):
    """`torch.nn.Hardswish`."""

    function = "hardswish"


class Sigmoid(Activation, nn.Sigmoid):
    """`torch.nn.Sigmoid`."""

    function = "sigmoid"


class Tanh(Activation, nn.Tanh):
    """`torch.nn.Tanh`."""

    function = "tanh"


class Softsign(Activation, nn.Softsign):
    """`torch.nn.Softsign`."""

    function = "softsign"


class LogSigmoid(Activation, nn.LogSigmoid):
    """`torch.nn.LogSigmoid`."""

    function = "logsigmoid"


class Tanhshrink(Activation, nn.Tanhshrink):
    """`torch.nn.Tanhshrink`."""

    function = "tanhshrink"


class ELU(Activation, nn.ELU):
    """`torch.nn.ELU`."""

    function = "elu"
    arguments = ("alpha",)


class CELU(Activation, nn.CELU):
    """`torch.nn.CELU`."""

    function = "celu"
    arguments = ("alpha",)


class SELU(Activation, nn.SELU):
    """`torch.nn.SELU`."""

    function = "selu"


class SiLU(Activation, nn.SiLU):
    """`torch.nn.SiLU`."""

    function = "silu"


class Mish(Activation, nn.Mish):
    """`torch.nn.Mish`."""

    function = "mish"


class ReLU2(Activation):
    """max(x, 0)²."""

    function = "relu2"


class QuickGELU(Activation):
    """x·sigmoid(1.702 x)."""

    function = "quick_gelu"


class GELU(Activation, nn.GELU):
    """`torch.nn.GELU`, approximate or not."""

    def name(self) -> str:
        return gelu_name(self.approximate)


class Softplus(Activation, nn.Softplus):
    """`torch.nn.Softplus`; its threshold must be 20 or more, where it changes nothing."""

    function = "softplus"
    arguments = ("beta",)

    def name(self) -> str:
        check_threshold(self.threshold)
        return self.function
