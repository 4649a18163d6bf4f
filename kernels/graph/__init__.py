"""One engine for what training saves: each block's graph of forward and backward is captured, cut, and run.

    handle = compress(model)           # exact: cheap operations are computed again in backward, masks take one bit
    handle = compress(model, bits=8)   # tensors that backward needs are saved in 8 bits, too
    print(handle)
    handle.remove()

`units` finds the parts of a model that are captured, `capture` captures their calls, `partition` cuts the graphs,
`codes` writes codes into them, and `execute` runs them by PyTorch's own kernels.
"""

from typing import TYPE_CHECKING

from coefficients.lazy import lazily

if TYPE_CHECKING:
    from kernels.graph.handle import Handle, compress

__all__ = ["Handle", "compress"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, {"handle": __all__})
