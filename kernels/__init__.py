"""Activation functions that save less for backward: functions, modules, whole models, and their Triton kernels."""

from typing import TYPE_CHECKING

from coefficients.lazy import lazily

if TYPE_CHECKING:
    from kernels.conversion import convert
    from kernels.engine.backend import backend
    from kernels.errors import KernelError
    from kernels.gated import geglu, reglu, swiglu
    from kernels.gradients import gradient_error
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
    "gradient_error",
    "reglu",
    "saved_bytes",
    "swiglu",
]

if not TYPE_CHECKING:  # torch takes seconds to import, and `kernels.methods` does without
    __getattr__, __dir__ = lazily(
        __name__,
        __all__,
        homes=("conversion", "engine.backend", "errors", "gated", "gradients", "linear", "memory.measure", "modules"),
        modules=("approx_backprop", "compression", "forward_ad", "functional", "memory"),
        torch="kernels needs PyTorch, which is not installed; pip install torch triton",
    )
