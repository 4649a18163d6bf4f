"""Activation functions that remember less: functions, modules, whole models, and the Triton kernels behind them."""

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from coefficients.lazy import lazily

if TYPE_CHECKING:
    from kernels.conversion import convert
    from kernels.errors import KernelError
    from kernels.gated import geglu, reglu, swiglu
    from kernels.linear import ActLinear
    from kernels.memory.measure import saved_bytes
    from kernels.modules import (
        CELU,
        ELU,
        GELU,
        SELU,
        Hardshrink,
        Hardsigmoid,
        Hardswish,
        Hardtanh,
        LeakyReLU,
        LogSigmoid,
        Mish,
        QuickGELU,
        ReLU,
        ReLU2,
        ReLU6,
        Sigmoid,
        SiLU,
        Softplus,
        Softshrink,
        Softsign,
        Tanh,
        Tanhshrink,
        Threshold,
    )
    from kernels.ops import backend

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "SELU",
    "ActLinear",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "KernelError",
    "LeakyReLU",
    "LogSigmoid",
    "Mish",
    "QuickGELU",
    "ReLU",
    "ReLU2",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "backend",
    "convert",
    "geglu",
    "reglu",
    "saved_bytes",
    "swiglu",
]

# argv is ["-m"] while Python looks for a command's module: python -m kernels.memory says in its own way what it lacks.
if "torch" not in sys.modules and find_spec("torch") is None and sys.argv[:1] != ["-m"]:
    raise ImportError("kernels needs PyTorch, which is not installed; pip install torch triton", name="torch")

if not TYPE_CHECKING:  # torch takes seconds to import
    __getattr__, __dir__ = lazily(
        __name__,
        __all__,
        homes=("conversion", "errors", "gated", "linear", "memory.measure", "modules", "ops"),
        modules=("approx_backprop", "forward_ad", "functional", "memory"),
    )
