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
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.methods.registry import DEFAULT
from actfit.kernels.validate import kernel_for, number, resolved

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
    function, arguments
        Its name in the catalogue, and the names of its parameters, which are attributes.

    Raises
    ------
    KernelError
        For arguments that the method or the function does not support, and for inplace=True.
    """

    function: ClassVar[str]
    arguments: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, function: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if function:
            cls.function, cls.arguments = function, tuple(FUNCTIONS[function].parameters)

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


class ReLU(Activation, nn.ReLU, function="relu"):
    """`torch.nn.ReLU`."""


class LeakyReLU(Activation, nn.LeakyReLU, function="leaky_relu"):
    """`torch.nn.LeakyReLU`."""


class ReLU6(Activation, nn.ReLU6, function="relu6"):
    """`torch.nn.ReLU6`."""


class Threshold(Activation, nn.Threshold, function="threshold"):
    """`torch.nn.Threshold`."""


class Hardtanh(Activation, nn.Hardtanh, function="hardtanh"):
    """`torch.nn.Hardtanh`."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, *args: Any, **kwargs: Any) -> None:
        low, high = number("min_val", min_val), number("max_val", max_val)
        if not low < high:  # which torch asserts
            raise KernelError(f"max_val must be above min_val, got min_val={low:g} and max_val={high:g}")
        super().__init__(min_val, max_val, *args, **kwargs)


class Hardsigmoid(Activation, nn.Hardsigmoid, function="hardsigmoid"):
    """`torch.nn.Hardsigmoid`."""


class Hardshrink(Activation, nn.Hardshrink, function="hardshrink"):
    """`torch.nn.Hardshrink`."""


class Softshrink(Activation, nn.Softshrink, function="softshrink"):
    """`torch.nn.Softshrink`."""


class Hardswish(Activation, nn.Hardswish, function="hardswish"):
    """`torch.nn.Hardswish`."""


class Sigmoid(Activation, nn.Sigmoid, function="sigmoid"):
    """`torch.nn.Sigmoid`."""


class Tanh(Activation, nn.Tanh, function="tanh"):
    """`torch.nn.Tanh`."""


class Softsign(Activation, nn.Softsign, function="softsign"):
    """`torch.nn.Softsign`."""


class LogSigmoid(Activation, nn.LogSigmoid, function="logsigmoid"):
    """`torch.nn.LogSigmoid`."""


class Tanhshrink(Activation, nn.Tanhshrink, function="tanhshrink"):
    """`torch.nn.Tanhshrink`."""


class ELU(Activation, nn.ELU, function="elu"):
    """`torch.nn.ELU`."""


class CELU(Activation, nn.CELU, function="celu"):
    """`torch.nn.CELU`."""


class SELU(Activation, nn.SELU, function="selu"):
    """`torch.nn.SELU`."""


class SiLU(Activation, nn.SiLU, function="silu"):
    """`torch.nn.SiLU`."""


class Mish(Activation, nn.Mish, function="mish"):
    """`torch.nn.Mish`."""


class ReLU2(Activation, function="relu2"):
    """max(x, 0)²."""


class QuickGELU(Activation, function="quick_gelu"):
    """x·sigmoid(1.702 x)."""


class GELU(Activation, nn.GELU):
    """`torch.nn.GELU`, approximate or not."""

    def name(self) -> str:
        return gelu_name(self.approximate)


class Softplus(Activation, nn.Softplus, function="softplus"):
    """`torch.nn.Softplus`; its threshold must be 20 or more, where it changes nothing."""

    def name(self) -> str:
        check_threshold(self.threshold)
        return self.function
