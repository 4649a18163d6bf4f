"""Activation functions that remember less: functions, modules, whole models, and the Triton kernels behind them."""

from kernels.conversion import convert
from kernels.errors import KernelError
from kernels.gated import geglu, reglu, swiglu
from kernels.linear import ActLinear
from kernels.memory import saved_bytes
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
