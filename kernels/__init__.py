"""Activation functions that save less for backward: functions, modules, whole models, and their Triton kernels."""

from typing import TYPE_CHECKING

from coefficients.lazy import lazily

if TYPE_CHECKING:
    from kernels.engine.backend import backend
    from kernels.errors import KernelError
    from kernels.gated import geglu, reglu, swiglu
    from kernels.gradients import gradient_error
    from kernels.graph.handle import Handle, compress
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
    "Handle",
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
    "compress",
    "geglu",
    "gradient_error",
    "reglu",
    "saved_bytes",
    "swiglu",
]

_HOMES = {
    "engine.backend": ("backend",),
    "errors": ("KernelError",),
    "gated": ("geglu", "reglu", "swiglu"),
    "gradients": ("gradient_error",),
    "graph.handle": ("Handle", "compress"),
    "linear": ("ActLinear",),
    "memory.measure": ("saved_bytes",),
}

if not TYPE_CHECKING:  # torch takes seconds to import, and `kernels.methods` does without
    __getattr__, __dir__ = lazily(
        __name__,
        {**_HOMES, "modules": [name for name in __all__ if not any(name in names for names in _HOMES.values())]},
        modules=("compression", "functional", "graph", "memory"),
        torch="kernels needs PyTorch, which is not installed; pip install torch triton",
    )
