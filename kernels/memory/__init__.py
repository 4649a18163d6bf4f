"""What a model keeps for backward: counted, told apart, and measured against what the allocator gives out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernels.memory.allocator import Allocated
    from kernels.memory.measure import saved_bytes
    from kernels.memory.recorder import Recorder
    from kernels.memory.saved import Group, Kept, Saved, Saver

__all__ = ["Allocated", "Group", "Kept", "Recorder", "Saved", "Saver", "saved_bytes"]

MODULES = ("allocator", "measure", "recorder", "saved", "zoo")  # that `import kernels` gives the names of, besides

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A public name, when the first of them is asked for, or a module: see `kernels`."""
        if name in MODULES:
            return import_module(f"{__name__}.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from kernels.memory import allocator, measure, recorder, saved

        for home in (allocator, measure, recorder, saved):
            globals().update((key, value) for key, value in vars(home).items() if key in __all__)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
