"""Activation functions that remember less: functions, modules, whole models, and the Triton kernels behind them."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

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

# That `import kernels` gives the names of, besides.
MODULES = (
    "approx_backprop",
    "conversion",
    "errors",
    "forward_ad",
    "functional",
    "gated",
    "linear",
    "memory",
    "modules",
    "ops",
)

# argv is ["-m"] while Python looks for a command's module: python -m kernels.memory says in its own way what it lacks.
if "torch" not in sys.modules and find_spec("torch") is None and sys.argv[:1] != ["-m"]:
    raise ImportError("kernels needs PyTorch, which is not installed; pip install torch triton", name="torch")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A public name, when the first of them is asked for, or a module: torch takes seconds to import."""
        if name in MODULES:
            return import_module(f"{__name__}.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from kernels import conversion, errors, gated, linear, modules, ops
        from kernels.memory import measure

        for home in (conversion, errors, gated, linear, measure, modules, ops):
            globals().update((key, value) for key, value in vars(home).items() if key in __all__)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
