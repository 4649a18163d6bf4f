"""python -m kernels.memory: what a model keeps for backward, as it is and with activations that remember less."""

from coefficients import command

if __name__ == "__main__":
    command.exit_on_interrupt()  # before the imports, which take most of the time
    command.exit_without("torch", "memory", "pip install torch triton")

import argparse
import json
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from kernels.approx_backprop.how import BITS, SCHEMES, How
from kernels.choice import DEFAULT_BITS
from kernels.conversion import Report, convert
from kernels.conversion.arguments import KNOWN
from kernels.conversion.layers import METHOD as APPROX
from kernels.errors import KernelError
from kernels.kernel import MAX_BITS
from kernels.memory import zoo
from kernels.memory.making import line
from kernels.memory.measure import ACCOUNTINGS, saved_bytes
from kernels.memory.saved import Saved, picture, size

PROG = "python -m kernels.memory"
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in zoo.DTYPES}
FORMATS = ("table", "json")
MOST = 2**30  # of anything: more elements than 2^63 have no size


def _parser() -> command.Parser:
    parser = command.Parser(prog=PROG, description="What a model keeps for backward, without running it for real.")
    known = ", ".join(zoo.names())
    parser.add_argument(
        "--model", metavar="NAME", required=True, help=f"one of {known}; or module:function that gives model and inputs"
    )
    parser.add_argument(
        "--method",
        metavar="M",
        action="append",
        help=f"{', '.join(KNOWN)}; repeatable (default: invact, fewbit and auto)",
    )
    parser.add_argument(
        "--bits",
        metavar="B",
        help=f"of fewbit (default: {DEFAULT_BITS}) or approx-backprop (8)",
    )
    parser.add_argument(
        "--scheme", metavar="S", help=f"of approx-backprop, {', '.join(SCHEMES)} (default: {SCHEMES[0]})"
    )
    parser.add_argument(
        "--max-gradient-error", metavar="E", help="of auto: bound on the error of f' (default: invact's)"
    )
    parser.add_argument("--batch", metavar="N", help="examples (default: 1; mlp and block: 2)")
    parser.add_argument("--seq", metavar="N", help="tokens of each (default: as many as the model takes)")
    parser.add_argument("--dtype", metavar="D", help=f"{', '.join(DTYPES)} (default: the model's usual one)")
    parser.add_argument(
        "--attention",
        metavar="A",
        default="sdpa",
        help=f"{', '.join(zoo.ATTENTION)} (default: sdpa, torch's fused one)",
    )
    parser.add_argument("--act", metavar="NAME", help="another activation, by the name that the model's library has")
    parser.add_argument(
        "--accounting",
        metavar="A",
        default="cuda",
        help="cuda: what CUDA keeps; as-run: what the CPU does (default: cuda)",
    )
    parser.add_argument("--format", metavar="F", default="table", help=f"{', '.join(FORMATS)} (default: table)")
    parser.add_argument("--rows", metavar="N", default="12", help="of the table of who keeps what (default: 12)")
    parser.add_argument("--plot", metavar="FILE", help="draw who keeps what in the model as it is")
    return parser


@dataclass(frozen=True)
class Result:
    """A model's bytes by one way of remembering. report: None for the model as it is."""

    how: str
    saved: Saved
    report: Report | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises KernelError for bad input."""
    options = _parser().parse_args(arguments)
    for name, value, allowed in (
        ("format", options.format, FORMATS),
        ("accounting", options.accounting, ACCOUNTINGS),
        ("dtype", options.dtype, (None, *DTYPES)),
    ):
        if value not in allowed:
            raise KernelError(f"{name} must be one of {', '.join(filter(None, allowed))}, got {value!r}")
    rows = _whole("rows", options.rows) or 0
    plot = command.output_path("--plot", options.plot) if options.plot is not None else None
    if plot is not None:
        picture(plot)
    bound = _number("max-gradient-error", options.max_gradient_error)
    methods = list(dict.fromkeys(options.method or ("invact", "fewbit", "auto")))
    _check_goes_with(options, methods)
    hows = _hows(methods, _bits(options.bits, methods), options.scheme, bound)
    model, args, kwargs, results = _measured(options, hows)
    if plot is not None:
        results[0].saved.plot(plot)
    show = _table if options.format == "table" else _json
    print(show(_title(options, model, args, kwargs), results, rows))
    return command.GOOD


def _whole(name: str, text: str | None, least: int = 1, most: int = MOST, of: str = "") -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or len(text) > len(str(MOST)) or not least <= int(text) <= most:
        raise KernelError(f"{name} must be a whole number from {least} to {most}{of}, got {text!r}")
    return int(text)


def _bits(text: str | None, methods: Sequence[str]) -> int | None:
    """As each of the methods that has bits can have them."""
    few, approx = (1, MAX_BITS, " for fewbit"), (min(BITS), max(BITS), f" for {APPROX}")
    return _whole("bits", text, *(approx if APPROX in methods else few))


def _number(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    with suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise KernelError(f"{name} must be a number of 0 or more, got {text!r}")


def _check_goes_with(options: argparse.Namespace, methods: Sequence[str]) -> None:
    """Raise KernelError for an option that none of the methods takes."""
    for name, of in (("bits", ("fewbit", APPROX)), ("scheme", (APPROX,)), ("max_gradient_error", ("auto",))):
        if getattr(options, name) is not None and not set(of) & set(methods):
            option = name.replace("_", "-")
            raise KernelError(f"{option} must go with --method {' or '.join(of)}, got --method {', '.join(methods)}")


def _hows(methods: Sequence[str], bits: int | None, scheme: str | None, bound: float | None) -> list[dict[str, Any]]:
    """The arguments of `convert` for each method."""
    takes: dict[str, dict[str, Any]] = {
        "fewbit": {"bits": bits or DEFAULT_BITS},
        APPROX: {"bits": bits or How.bits},
        "auto": {},
    }
    takes[APPROX] |= {} if scheme is None else {"scheme": scheme}
    takes["auto"] |= {} if bound is None else {"max_gradient_error": bound}
    return [{"method": name, **takes.get(name, {})} for name in methods]


def _measured(options: argparse.Namespace, hows: list[dict[str, Any]]) -> tuple[Any, Any, Any, list[Result]]:
    """The model, what it is called with, and what it keeps by each method and as it is."""
    batch, seq = _whole("batch", options.batch), _whole("seq", options.seq)
    try:
        with command.ended_by_interrupt():
            with FakeTensorMode(allow_non_fake_inputs=True):
                model, args, kwargs = zoo.build(
                    options.model,
                    batch=batch,
                    seq=seq,
                    dtype=DTYPES.get(options.dtype),
                    attention=options.attention,
                    act=options.act,
                )
            return model, args, kwargs, _results(model, args, kwargs, hows, options.accounting)
    except KernelError:
        raise
    except Exception as error:
        raise KernelError(
            f"{options.model} must run with its inputs on fake tensors, as nothing is allocated here, got"
            f" {line(error)}; kernels.saved_bytes in Python runs it for real"
        ) from error


def _results(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], hows: list[dict[str, Any]], accounting: str
) -> list[Result]:
    results = [Result("as it is", saved_bytes(model, *args, accounting=accounting, **kwargs))]
    in_place = any(getattr(module, "inplace", False) for module in model.modules())
    for how in hows:
        if how["method"] == "auto" or in_place:  # convert looks whether what is changed in place is read again
            how = {**how, "inputs": kwargs or args}
        report = convert(model, **how)
        name = how["method"] + (f", {how['bits']} bit{'s' * (how['bits'] > 1)}" if "bits" in how else "")
        name += f", {how['scheme']}" if "scheme" in how else ""
        results.append(Result(name, saved_bytes(model, *args, accounting=accounting, **kwargs), report))
        report.revert()
    return results


def _title(options: argparse.Namespace, model: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    given = kwargs or {f"input{index}": one for index, one in enumerate(args)}
    inputs = {name: list(one.shape) for name, one in given.items() if isinstance(one, Tensor)}
    dtypes = {str(one.dtype).removeprefix("torch.") for one in model.parameters()}
    return {
        "model": options.model,
        "class": type(model).__name__,
        "inputs": inputs,
        "dtype": ", ".join(sorted(dtypes)),
        "accounting": options.accounting,
        "parameters": sum(one.nbytes for one in model.parameters()),
    }


def _table(title: dict[str, Any], results: list[Result], rows: int) -> str:
    stock = results[0].saved
    fed = ", ".join("×".join(map(str, shape)) for shape in title["inputs"].values())
    counted = "as CUDA keeps it" if title["accounting"] == "cuda" else "as this machine runs it"
    lines = [
        f"{title['model']} ({title['class']}), {title['dtype']}, input {fed}; {counted}",
        "",
        "| activations | kept for backward | less by | converted |",
        "|---|---:|---:|---:|",
    ]
    for one in results:
        less = f"{1 - one.saved.total / stock.total:.2%}" if stock.total and one.report else ""
        changed = f"{len(one.report.converted)} of {len(one.report.sites)}" if one.report else ""
        lines.append(f"| {one.how} | {size(one.saved.total)} | {less} | {changed} |")
    return "\n".join([*lines, "", "As it is, by who keeps it:", "", stock.table(rows), "", stock.besides()])


def _json(title: dict[str, Any], results: list[Result], rows: int) -> str:
    found = []
    for one in results:
        entry: dict[str, Any] = {"activations": one.how, **json.loads(one.saved.to_json())}
        del entry["tensors"]
        if one.report is not None:
            entry["sites"] = json.loads(one.report.to_json())["sites"]
        found.append(entry)
    return json.dumps({**title, "results": found}, indent=1)


if __name__ == "__main__":
    sys.exit(command.run("memory", main, (KernelError,)))
