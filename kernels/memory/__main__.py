"""python -m kernels.memory: what a model saves for backward, unchanged and with activations that save less."""

from coefficients import command

if __name__ == "__main__":
    command.exit_on_interrupt()  # before the imports, which take most of the time

from kernels.errors import KernelError
from kernels.memory.options import asked, bits, check, number, parser, whole, with_bits

if __name__ == "__main__":
    command.early("memory", lambda: check(parser().parse_args()), (KernelError,))
    command.exit_without("torch", "memory", "pip install torch triton")

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from coefficients import progress
from kernels import private
from kernels.conversion import Report, convert
from kernels.memory import zoo
from kernels.memory.making import line
from kernels.memory.measure import saved_bytes
from kernels.memory.planned import PlanAndFront, plan_for_budget
from kernels.memory.saved import Saved, picture, size
from kernels.memory.step import peak_bytes
from kernels.methods.auto import Auto
from kernels.methods.from_output import FromOutput
from kernels.methods.registry import of_models
from kernels.planning.plan import Plan

PEAK = (
    "Peak: alive at once in forward and backward, over what is there before, by births and deaths of tensors as this"
    " machine runs the model; the gradient of its output counts, what operations take for themselves does not."
)
NARROW = (
    "Errors are those of a narrow copy of the model with random weights, on few and short samples; train with what"
    " convert(model, inputs=..., budget=...) measures on your own."
)


@dataclass(frozen=True)
class Result:
    """What a model saves with one method or a plan; unchanged if there is no report."""

    activations: str
    saved: Saved
    report: Report | None = None
    peak: int | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises KernelError for bad input."""
    options = parser().parse_args(arguments)
    check(options)
    rows = whole("rows", options.rows) or 0
    plot = command.output_path("--plot", options.plot) if options.plot is not None else None
    if plot is not None:
        picture(plot)
    save = command.output_path("--save", options.save) if options.save is not None else None
    options.accounting = options.accounting or ("cuda" if options.budget is None else "as-run")
    model, args, kwargs, results, planned = _measured(options)
    if save is not None and planned is not None:
        planned.plan.save(save)
    if plot is not None:
        drawn = results[0].saved if planned is None or planned.front is None else planned.front
        drawn.plot(plot)
    show = _table if options.format == "table" else _json
    print(show(_title(options, model, args, kwargs), results, rows, planned.plan if planned else None))
    return command.GOOD


def _conversions(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The arguments of `convert` for each method."""
    bound = number("max-derivative-error", options.max_derivative_error)
    methods = asked(options)
    width, takers = bits(options.bits, methods), with_bits(methods)
    common = {"scheme": options.scheme, "max_derivative_error": bound}
    return [_arguments(name, {**common, "bits": width if of_models()[name] in takers else None}) for name in methods]


def _arguments(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `convert` for a method: those of the options given that it takes, and its bits."""
    kind = of_models()[name]
    takes = {option: value for option, value in given.items() if option in kind.options and value is not None}
    default = {"bits": vars(kind())["bits"]} if kind.widths and kind is not FromOutput else {}
    return {"method": name, **default, **takes}


def _measured(options: argparse.Namespace) -> tuple[Any, Any, Any, list[Result], PlanAndFront | None]:
    """The model, its arguments, what it saves unchanged and with each method, and the plan for a budget, if any."""
    batch, seq, dtype = whole("batch", options.batch), whole("seq", options.seq), zoo.DTYPES.get(options.dtype)
    real = options.budget is not None and options.model not in zoo.names()  # errors are measured on the model itself
    planned: PlanAndFront | None = None
    try:
        with command.ended_by_interrupt(), progress.shown() as doing:
            with nullcontext() if real else private.FakeTensorMode(allow_non_fake_inputs=True):
                model, args, kwargs = zoo.build(
                    options.model,
                    batch=batch,
                    seq=seq,
                    dtype=dtype,
                    attention=options.attention,
                    act=options.act,
                )
            if options.budget is not None:
                planned = plan_for_budget(options, model, args, kwargs, doing or (lambda text: None))
                options.peak = True
            conversions = (
                _conversions(options) if planned is None else [{"plan": planned.plan}] * (not options.compiled)
            )
            return model, args, kwargs, _results(model, args, kwargs, conversions, options), planned
    except KernelError:
        raise
    except Exception as error:
        raise KernelError(
            f"{options.model} must run with its inputs on fake tensors, as nothing is allocated here, got"
            f" {line(error)}; kernels.saved_bytes in Python runs it for real"
        ) from error


def _results(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    conversions: list[dict[str, Any]],
    options: argparse.Namespace,
) -> list[Result]:
    def result(name: str, report: Report | None = None) -> Result:
        saved = saved_bytes(model, *args, accounting=options.accounting, **kwargs)
        return Result(name, saved, report, peak_bytes(model, *args, **kwargs) if options.peak else None)

    results = [result("as it is")]
    in_place = any(getattr(module, "inplace", False) for module in model.modules())
    for arguments in conversions:
        width, scheme, plan = (arguments.get(key) for key in ("bits", "scheme", "plan"))
        name = "plan" if plan else arguments["method"]
        if name == Auto.name or (
            in_place and not plan
        ):  # convert runs the model to see whether inputs of in-place modules are read again
            arguments = {**arguments, "inputs": kwargs or args}
        report = convert(model, **arguments)
        name = f"{name}{f', {width} bit' if width else ''}{'s' * ((width or 0) > 1)}{f', {scheme}' if scheme else ''}"
        results.append(result(name, report))
        report.revert()
    return results


def _title(options: argparse.Namespace, model: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    named = kwargs or {f"input{index}": value for index, value in enumerate(args)}
    inputs = {name: list(value.shape) for name, value in named.items() if isinstance(value, Tensor)}
    dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()}
    return {
        "model": options.model,
        "class": type(model).__name__,
        "inputs": inputs,
        "dtype": ", ".join(sorted(dtypes)),
        "accounting": options.accounting,
        "parameters": sum(parameter.nbytes for parameter in model.parameters()),
    }


def _table(title: dict[str, Any], results: list[Result], rows: int, plan: Plan | None) -> str:
    stock, stock_peak = results[0].saved, results[0].peak
    fed = ", ".join("×".join(map(str, shape)) for shape in title["inputs"].values())
    counted = "as CUDA keeps it" if title["accounting"] == "cuda" else "as this machine runs it"
    lines = [
        f"{title['model']} ({title['class']}), {title['dtype']}, input {fed}; {counted}",
        "",
        f"| activations | kept for backward | less by | converted |{' peak of a step |' if stock_peak else ''}",
        f"|---|---:|---:|---:|{'---:|' if stock_peak else ''}",
    ]
    for result in results:
        saved, report = result.saved, result.report
        less = f"{1 - saved.total / stock.total:.2%}" if stock.total and report else ""
        converted = (
            (report.converted if report else [])
            if plan is None
            else [site for site in plan.sites if site.bits is not None]
        )
        changed = f"{len(converted)} of {len(report.sites if plan is None else plan.sites)}" if report else ""
        peak = f" {size(result.peak)}, {result.peak / stock_peak:.2f}× |" if result.peak and stock_peak else ""
        lines.append(f"| {result.activations} | {size(saved.total)} | {less} | {changed} |{peak}")
    if stock_peak:
        lines += ["", PEAK]
    if plan is not None:
        lines += ["", str(plan)]
        lines += ["", NARROW] if plan.measured_on else []
    return "\n".join([*lines, "", "As it is, by who keeps it:", "", stock.table(rows), "", stock.besides()])


def _json(title: dict[str, Any], results: list[Result], rows: int, plan: Plan | None) -> str:
    entries = []
    for result in results:
        entry: dict[str, Any] = {"activations": result.activations, **json.loads(result.saved.to_json())}
        entry |= {"peak": result.peak} if result.peak is not None else {}
        del entry["tensors"]
        if result.report is not None:
            entry["sites"] = json.loads(result.report.to_json())["sites"]
        entries.append(entry)
    return json.dumps({**title, "results": entries, **({"plan": asdict(plan)} if plan else {})}, indent=1)


if __name__ == "__main__":
    sys.exit(command.run("memory", main, (KernelError,)))
