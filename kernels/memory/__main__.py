"""actfit memory: what a model saves for backward, as it is and by `compress`."""

from actfit.coefficients import command

if __name__ == "__main__":
    command.exit_on_interrupt()  # before the imports, which take most of the time

from actfit.kernels.errors import KernelError
from actfit.kernels.memory.options import WITH_GPU, check, parser, ways, whole

if __name__ == "__main__":
    command.early("memory", lambda: check(parser().parse_args()), (KernelError,))
    command.exit_without("torch", "memory", "pip install torch triton")

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from actfit.coefficients import progress
from actfit.kernels import private
from actfit.kernels.graph.ways.policies import method_of
from actfit.kernels.memory import gpu, zoo
from actfit.kernels.memory.making import line
from actfit.kernels.memory.measure import saved_bytes
from actfit.kernels.memory.planned import plan_for_budget
from actfit.kernels.memory.saved import Saved, picture, size
from actfit.kernels.memory.step import peak_bytes
from actfit.kernels.planning.batches import Call
from actfit.kernels.planning.plan import Plan

PEAK = (
    "Peak: alive at once in forward and backward, over what is there before, by births and deaths of tensors; the"
    " gradient of the output counts, what operations take for themselves does not."
)
PLACES = 3  # that are named of those that stay exact for one reason
NARROW = (
    "Errors are those of a narrow copy of the model with random weights, on few and short samples; train with what"
    " compress(model, fit=..., inputs=...) measures on your own."
)


@dataclass(frozen=True)
class Result:
    """What a model saves as it is, or in another way, and the peak of a step, if it is asked for."""

    way: str
    saved: Saved
    peak: int | None
    refused: Mapping[str, str]  # activations that stay exact with a policy, and the reason


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises KernelError for bad input."""
    options = parser().parse_args(arguments)
    check(options)
    for name in options.policy or ():
        if name != "exact":
            method_of(name)
    rows = whole("rows", options.rows) or 0
    plot = command.output_path("--plot", options.plot) if options.plot is not None else None
    if plot is not None:
        picture(plot)
    save = command.output_path("--save", options.save) if options.save is not None else None
    if options.gpu is not None:
        print(_card(options))
        return command.GOOD
    options.accounting = options.accounting or ("cuda" if options.budget is None else "as-run")
    options.peak = options.peak or options.budget is not None
    plan, front = None, None
    with _built(options) as (model, call, doing):
        if options.budget is not None:
            plan, front = plan_for_budget(options, model, call, doing)
        results = _results(options, model, call, ways(options) if plan is None else {"plan": {"plan": plan}})
    if save is not None and plan is not None:
        plan.save(save)
    if plot is not None:
        (front or results[0].saved).plot(plot)
    show = _table if options.format == "table" else _json
    print(show(_title(options, model, call), results, rows, plan))
    return command.GOOD


def _card(options: argparse.Namespace) -> str:
    """What fits a GPU, as it is to be printed."""
    options.optimizer = options.optimizer or WITH_GPU[0]
    with _built(options) as (model, call, doing):
        fits = gpu.measure(options, model, call, doing)
    title = {name: value for name, value in _title(options, model, call).items() if name != "accounting"}
    if options.format == "json":
        rows = [{**asdict(row), "fits": fits.fits(row)} for row in fits.rows]
        return json.dumps({**title, "gpu": fits.gpu, "before": fits.before._asdict(), "results": rows}, indent=1)
    return f"{_heading(title)}\n{fits}"


@contextmanager
def _built(options: argparse.Namespace) -> Iterator[tuple[nn.Module, Call, Callable[[str], object]]]:
    """The model, what it is called with, and a function that shows what is being done; what it raises is a KernelError.

    Tensors are fake, but for a budget of a user's own model, on which errors are measured.
    """
    batch, seq, dtype = whole("batch", options.batch), whole("seq", options.seq), zoo.DTYPES.get(options.dtype)
    given: Any = {"batch": batch, "seq": seq, "dtype": dtype, "attention": options.attention, "act": options.act}
    real = options.budget is not None and options.model not in zoo.names()
    try:
        with command.ended_by_interrupt(), progress.shown() as doing:
            with nullcontext() if real else private.FakeTensorMode(allow_non_fake_inputs=True):
                model, args, kwargs = zoo.build(options.model, **given)
            yield model, Call(args, kwargs), doing
    except KernelError:
        raise
    except Exception as error:
        raise KernelError(
            f"{options.model} must run with its inputs on fake tensors, as nothing is allocated here, got"
            f" {line(error)}; actfit.saved_bytes in Python runs it for real"
        ) from error


def _results(
    options: argparse.Namespace, model: nn.Module, call: Call, asked: Mapping[str, Mapping[str, Any]]
) -> list[Result]:
    counted = {"accounting": options.accounting, **call.kwargs}
    results = []
    for name, way in {"as it is": None, **asked}.items():
        with nullcontext() if way is None else gpu.compressed(model, **way) as handle:
            peak = peak_bytes(model, *call.args, **counted) if options.peak else None
            saved = saved_bytes(model, *call.args, fake=True, **counted)
            results.append(Result(name, saved, peak, handle.refused if handle else {}))
    return results


def _title(options: argparse.Namespace, model: nn.Module, call: Call) -> dict[str, Any]:
    named = call.kwargs or {f"input{index}": value for index, value in enumerate(call.args)}
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


def _heading(title: Mapping[str, Any]) -> str:
    fed = ", ".join("×".join(map(str, shape)) for shape in title["inputs"].values())
    return f"{title['model']} ({title['class']}), {title['dtype']}, input {fed}"


def _table(title: dict[str, Any], results: list[Result], rows: int, plan: Plan | None) -> str:
    stock, stock_peak = results[0].saved, results[0].peak
    counted = "as CUDA keeps it" if title["accounting"] == "cuda" else "as this machine runs it"
    lines = [
        f"{_heading(title)}; {counted}",
        "",
        f"| | kept for backward | less by |{' peak of a step |' if stock_peak else ''}",
        f"|---|---:|---:|{'---:|' if stock_peak else ''}",
    ]
    for result in results:
        less = f"{1 - result.saved.total / stock.total:.2%}" if stock.total and result is not results[0] else ""
        peak = f" {size(result.peak)}, {result.peak / stock_peak:.2f}× |" if result.peak and stock_peak else ""
        lines.append(f"| {result.way} | {size(result.saved.total)} | {less} |{peak}")
    for result in results:
        for reason in dict.fromkeys(result.refused.values()):
            places = [place for place, given in result.refused.items() if given == reason]
            named = ", ".join(places[:PLACES]) + " …" * (len(places) > PLACES)
            lines += ["", f"{result.way}, {len(places)} exact ({named}): {reason}"]
    if stock_peak:
        lines += ["", PEAK]
    if plan is not None:
        lines += ["", str(plan)]
        lines += ["", NARROW] if plan.measured_on else []
    return "\n".join([*lines, "", "As it is, by who keeps it:", "", stock.table(rows), "", stock.besides()])


def _json(title: dict[str, Any], results: list[Result], rows: int, plan: Plan | None) -> str:
    entries = []
    for result in results:
        entry: dict[str, Any] = {"way": result.way, **json.loads(result.saved.to_json())}
        entry |= {"peak": result.peak} if result.peak is not None else {}
        entry |= {"refused": dict(result.refused)} if result.refused else {}
        del entry["tensors"]
        entries.append(entry)
    return json.dumps({**title, "results": entries, **({"plan": asdict(plan)} if plan else {})}, indent=1)


if __name__ == "__main__":
    sys.exit(command.run("memory", main, (KernelError,)))
