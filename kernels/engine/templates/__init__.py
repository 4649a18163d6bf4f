"""The Triton kernels, which import only Triton, and their text, from which codegen makes modules that stand alone."""

from pathlib import Path

ROWS = 128  # of eight elements, a program: a thread has eight elements, so packing needs no exchange between threads
WARPS = 4
# Of element-wise kernels: they count on fused multiply-adds, which Triton 3.10 leaves out unless it is told.
OPTIONS = {"num_warps": WARPS, "enable_fp_fusion": True}
_ENGINE = Path(__file__).parents[1]
FILES = tuple(sorted(Path(__file__).parent.glob("*.py")))


def elementwise_source() -> str:
    """The text of `actfit.kernels.engine.templates.elementwise`."""
    return (_ENGINE / "templates" / "elementwise.py").read_text(encoding="utf-8")


def planes_source() -> str:
    """The text of `actfit.kernels.engine.planes`: bit planes in PyTorch."""
    return (_ENGINE / "planes.py").read_text(encoding="utf-8")
