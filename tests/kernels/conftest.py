"""The device of kernels in tests: a GPU if available, else Triton's interpreter with its bfloat16 cast corrected."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch


def _exact_cast(builder: object, source: object, target: object) -> object:
    """The interpreter's cast, but float32 to bfloat16 rounds to nearest even, and subnormal numbers stay."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    scalar = target.scalar
    if source.dtype.scalar == tl.float32 and scalar == tl.bfloat16:
        bits = torch.from_numpy(np.ascontiguousarray(source.data)).to(torch.bfloat16).view(torch.int16)
        return TensorHandle(bits.numpy().view(np.uint16), scalar)
    if source.dtype.scalar == tl.bfloat16 and scalar == tl.float32:
        bits = torch.from_numpy(np.ascontiguousarray(source.data).view(np.int16)).view(torch.bfloat16)
        return TensorHandle(bits.float().numpy(), scalar)
    return _ORIGINAL(builder, source, target)


_ORIGINAL = None


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The device of the Triton kernels; every new tensor is filled with NaN, so that unwritten elements show."""
    global _ORIGINAL
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
        from triton.runtime.interpreter import InterpreterBuilder

        if _ORIGINAL is None:
            _ORIGINAL = InterpreterBuilder.cast_impl
        monkeypatch.setattr(InterpreterBuilder, "cast_impl", _exact_cast)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with np.errstate(all="ignore"):
            yield kind
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture(params=["torch", "triton"])
def place(request: pytest.FixtureRequest) -> str:
    """The device of the tensors, for each of the two backends."""
    return "cpu" if request.param == "torch" else request.getfixturevalue("device")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Each test has the same random numbers."""
    torch.manual_seed(0)


@pytest.fixture
def afresh() -> Iterator[None]:
    """Resets torch.compile."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
