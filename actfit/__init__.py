"""Training in less memory: fewer and smaller saved tensors, for whole models and for single activation functions.

    handle = actfit.compress(model)           # the same gradients, with less saved
    handle = actfit.compress(model, bits=8)   # approximate gradients, with saved tensors in 8 bits
    print(handle)

`coefficients`, `fitting`, `codegen` and `kernels` are parts of this package. In a checkout they lie beside this folder.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if not Path(__file__).with_name("kernels").is_dir():
    __path__.append(str(Path(__file__).parents[1]))

from actfit.coefficients.lazy import lazily

if TYPE_CHECKING:
    from actfit import functional, nn
    from actfit.codegen.runtime import elementwise
    from actfit.kernels.compression.report import report
    from actfit.kernels.engine.backend import backend
    from actfit.kernels.errors import KernelError
    from actfit.kernels.gradients import gradient_error
    from actfit.kernels.graph.handle import Handle, compress
    from actfit.kernels.graph.inductor import options
    from actfit.kernels.memory.measure import saved_bytes
    from actfit.kernels.memory.step import peak_bytes
    from actfit.kernels.planning.fronts import front
    from actfit.kernels.planning.make import make_plan
    from actfit.kernels.planning.plan import Plan

__all__ = [
    "Handle",
    "KernelError",
    "Plan",
    "backend",
    "compress",
    "elementwise",
    "front",
    "functional",
    "gradient_error",
    "make_plan",
    "nn",
    "options",
    "peak_bytes",
    "report",
    "saved_bytes",
]

if not TYPE_CHECKING:  # torch takes seconds to import, and fits do without
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "codegen.runtime": ("elementwise",),
            "kernels.compression.report": ("report",),
            "kernels.engine.backend": ("backend",),
            "kernels.errors": ("KernelError",),
            "kernels.gradients": ("gradient_error",),
            "kernels.graph.handle": ("Handle", "compress"),
            "kernels.graph.inductor": ("options",),
            "kernels.memory.measure": ("saved_bytes",),
            "kernels.memory.step": ("peak_bytes",),
            "kernels.planning.fronts": ("front",),
            "kernels.planning.make": ("make_plan",),
            "kernels.planning.plan": ("Plan",),
        },
        modules=("functional", "nn"),
        torch="actfit needs PyTorch to train models, which is not installed; pip install torch triton",
    )
