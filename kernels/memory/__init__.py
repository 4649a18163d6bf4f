"""What a model saves for backward: counted by operation and module, and compared with the allocator's counts."""

from typing import TYPE_CHECKING

from actfit.coefficients.lazy import lazily

if TYPE_CHECKING:
    from actfit.kernels.memory.compiled import Allocated
    from actfit.kernels.memory.measure import saved_bytes
    from actfit.kernels.memory.recorder import Recorder
    from actfit.kernels.memory.saved import Group, Saved, SavedTensor, Saver
    from actfit.kernels.memory.step import peak_bytes

__all__ = ["Allocated", "Group", "Recorder", "Saved", "SavedTensor", "Saver", "peak_bytes", "saved_bytes"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "compiled": ("Allocated",),
            "measure": ("saved_bytes",),
            "recorder": ("Recorder",),
            "saved": ("Group", "Saved", "SavedTensor", "Saver"),
            "step": ("peak_bytes",),
        },
        modules=("zoo",),
    )
