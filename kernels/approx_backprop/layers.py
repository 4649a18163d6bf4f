"""Runs torch's modules by approx-backprop, and says which function runs which kind of module.

Results are those of torch's own modules, bit by bit. The modules' own forward runs where no gradient is needed, and in
evaluation mode.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from kernels.approx_backprop.attached import UNNAMED, Origin
from kernels.approx_backprop.derivatives import approximate_derivative
from kernels.approx_backprop.linears import LINEAR, convolution_of, is_addmm, weighted
from kernels.approx_backprop.norms import BATCH, ROWS, batch_norm, row_norm
from kernels.approx_backprop.pooling import POOLS, pooled
from kernels.approx_backprop.rectifiers import rectify
from kernels.approx_backprop.written_norms import WrittenNorm, is_like_a_norm, written_norm
from kernels.engine.elements import is_plain
from kernels.errors import KernelError
from kernels.methods.compressed import Compressed
from kernels.modules import Activation
from kernels.stock import STOCK, stock_runs
from kernels.torch_state import is_wrapper

RECTIFIERS = (nn.ReLU, nn.LeakyReLU)
KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "batch": BATCH,
    "rows": ROWS,
    "rectifier": RECTIFIERS,
    "pool": POOLS,
    "linear": LINEAR,
}


def kind_of(module: nn.Module) -> str:
    """A name in KINDS, "written" for another library's norm that is written out, or "" for other modules."""
    if isinstance(module, Activation | NonDynamicallyQuantizableLinear):  # actfit's own; attention's, never called
        return ""
    kind = next((name for name, kinds in KINDS.items() if isinstance(module, kinds)), "")
    if not kind and is_addmm(module):
        return "linear"
    if kind and not (kind == "rows" and _own_forward(module)):
        return kind
    return "written" if written_norm(module) is not None else kind


def _own_forward(module: nn.Module) -> bool:
    stock = next((cls for kinds in KINDS.values() for cls in kinds if isinstance(module, cls)), None)
    return stock is not None and type(module).forward is not stock.forward


def why_not(module: nn.Module) -> str:
    """Why a module cannot be run by `approximately`; "" if it can."""
    kind = kind_of(module)
    if isinstance(module, nn.SyncBatchNorm):
        return "it takes its statistics from several processes; nn.BatchNorm2d takes each one's own"
    if not kind and is_like_a_norm(module):
        return "it is no layer or RMS norm of the last dimension, going by what it computes of one tensor"
    if not kind:
        return "it is no batch, layer or RMS norm, ReLU, linear layer, convolution or pooling"
    if kind != "written" and _own_forward(module):
        return "it has a forward of its own"
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "its parameters are not there yet: run it once"
    if hasattr(module, "parametrizations"):
        return "its parameters are computed each time they are asked for"
    if getattr(module, "return_indices", False):
        return "it returns indices, too"
    try:
        if kind == "linear":
            convolution_of(module)
    except KernelError as error:
        return str(error)
    return ""


def approximately(
    module: nn.Module,
    x: Tensor,
    method: Compressed,
    kind: str = "",
    written: WrittenNorm | None = None,
    run: Callable[[Tensor], Tensor] | None = None,
    origin: Origin = UNNAMED,
) -> Tensor:
    """The result of a supported module for x; backward's tensors are saved as `method` says.

    Parameters
    ----------
    module, x, method
        The module, its input, and the method that encodes saved tensors.
    kind, written
        The module's kind and formula, if known.
    run
        The forward that saves nothing in few bits, if not its class's.
    origin
        The origin of the code that a norm attaches to its result.
    """
    kind = kind or kind_of(module)
    run = run or partial(type(module).forward, module)
    if not module.training or hasattr(module, "parametrizations"):  # parameters computed at each access
        return run(x)
    names = ("weight", "bias") if written is None else (written.weight, written.bias)
    parameters = [getattr(module, name) for name in names if getattr(module, name, None) is not None]
    if _needs_stock(kind, x, parameters):
        return run(x)
    match kind:
        case "batch":
            return batch_norm(module, x, method, origin)
        case "rows" | "written":
            return row_norm(module, x, method, origin, written, run)
        case "rectifier":
            return rectify(x, getattr(module, "negative_slope", 0.0), method)
        case "pool":
            return pooled(module, x)
    return weighted(module, x, method)


def rectified(x: Tensor, slope: float, method: Compressed) -> Tensor:
    """F.relu(x), or F.leaky_relu(x, slope), saved as `method` says."""
    if x.numel() == 0 or stock_runs(x):
        return F.leaky_relu(x, slope) if slope else F.relu(x)
    return rectify(x, slope, method)


def activated(function: str, params: Mapping[str, float], x: Tensor, method: Compressed) -> Tensor:
    """A function of the catalogue with all its parameters: a ReLU saves one bit, other functions save f'(x)."""
    if function in ("relu", "leaky_relu"):
        return rectified(x, params.get("negative_slope", 0.0), method)
    if x.numel() == 0 or stock_runs(x):
        result: Tensor = STOCK[function](x, *params.values())
        return result
    return approximate_derivative(function, [float(value) for value in params.values()], x, method)


def _needs_stock(kind: str, x: Any, parameters: list[Tensor]) -> bool:
    if not is_plain(x) or x.numel() == 0 or any(map(is_wrapper, parameters)):
        return True
    if kind == "linear" and (not x.requires_grad or x.dim() < parameters[0].dim()):
        return True  # x is data, which the caller holds anyway; or it has no batch dimension
    return stock_runs(x, *parameters)
