"""python -m benchmarks.accuracy: every function by every method over all 16-bit numbers, beside PyTorch's own.

Judged by the oracle: f and f' in float64, or in balls of 400 bits where float64 loses digits. On a GPU the kernels run,
elsewhere their reference in PyTorch. Rows, as JSON lines, in benchmarks/results/<device>/accuracy.jsonl, whole or not
at all; --quick writes to --out only. implementation: stock, or the method. mode: the function. what and unit:

    forward     the output. "ulp": the most numbers of the dtype that lie between it and f, rounded; "misses": at how
                many of the finite inputs it is not f, rounded
    derivative  the gradient where 1 comes back, in the dtype: "max" and "rms" of its distance to f', the latter with x
                from N(0, 1), of |x| up to 12
"""

from actfit.coefficients import command
from benchmarks import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("accuracy", lambda: parsers.accuracy(__doc__).parse_args())

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from actfit import KernelError
from actfit.kernels.activation import activation
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.stock import STOCK
from benchmarks.baselines.oracle import DTYPES, Truth, truth, ulps
from benchmarks.clock import origin
from benchmarks.options import device as device_of
from benchmarks.options import names, output
from benchmarks.rows import Row, record, summary

PROG = "accuracy"
PLAIN = "stock"
METHODS: dict[str, dict[str, Any]] = {
    "invact": {"method": "invact"},
    "forward-ad": {"method": "forward-ad"},
    **{f"fewbit, {bits} bit{'s' * (bits > 1)}": {"method": "fewbit", "bits": bits} for bits in (1, 2, 3, 4)},
}
QUICK = parsers.QUICK_FUNCTIONS
REACH = 12.0  # |x| up to which the derivative is judged; N(0, 1) has no mass beyond


def judged(function: str, dtype: str, device: torch.device, where: dict[str, Any]) -> list[Row]:
    """The rows of a function in a dtype, for all methods."""
    rows = []
    exact = truth(function, DTYPES[dtype])
    for name, options in {PLAIN: None, **METHODS}.items():
        if options is not None and options["method"] == "fewbit" and not FUNCTIONS[function].bounded_derivative:
            continue  # refused: no table holds for every x
        y, dx = _run(function, options, exact.x.to(device))
        base = {"implementation": name, "mode": function, "size": {"inputs": len(exact.x)}, "dtype": dtype, **where}
        errors = {"forward": forward(exact, y), "derivative": derivative(exact, dx)}
        for what, values in errors.items():
            rows += [Row(what=what, unit=unit, **base, **summary([value])) for unit, value in values.items()]
    return rows


def _run(function: str, options: dict[str, Any] | None, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output in the dtype of x, and the gradient for an upstream gradient of 1."""
    x = x.clone().requires_grad_()
    params = FUNCTIONS[function].parameters
    y = STOCK[function](x, *params.values()) if options is None else activation(function, x, **params, **options)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return y.detach().cpu(), dx.cpu()


def forward(exact: Truth, y: Tensor) -> dict[str, float]:
    """The errors of the outputs for finite inputs."""
    finite = torch.isfinite(exact.x)
    apart = ulps(y, exact.f)[finite]
    return {"ulp": float(apart.max()), "misses": float((apart > 0).sum())}


def derivative(exact: Truth, dx: Tensor) -> dict[str, float]:
    """The errors of the gradients for |x| up to REACH."""
    near = exact.x.abs() <= REACH  # NaN is not
    x, error = exact.x[near].double(), (dx[near].double() - exact.df[near]).abs()
    order = x.argsort()
    x, error = x[order], error[order]
    weight = torch.exp(-(x[1:-1] ** 2) / 2) * (x[2:] - x[:-2]) / 2
    rms = (weight * error[1:-1] ** 2).sum().div(weight.sum()).sqrt()
    return {"max": float(error.max()), "rms": float(rms)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.accuracy(__doc__).parse_args(arguments)
    functions = list(QUICK) if options.quick and options.fn is None else names("fn", options.fn, FUNCTIONS)
    device = device_of(options.device)
    out = output(options.out)
    where, rows = origin(device), []
    for function in tqdm(functions, unit="function", disable=None):
        for dtype in DTYPES:
            rows += judged(function, dtype, device, where)
    record([("accuracy", rows)], out, options.quick)
    return command.GOOD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main, (KernelError,)))
