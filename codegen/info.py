"""`FunctionInfo` of functions, and the module that lists them: kernels/generated/functions.py."""

from collections.abc import Iterable
from math import isfinite

import numpy as np

from actfit.codegen import elements
from actfit.codegen.closed import CLOSED
from actfit.codegen.module import MARK, triton_functions
from actfit.codegen.steps import planes
from actfit.codegen.subject import Subject
from actfit.coefficients.cut_output import CutOutput
from actfit.fitting.activations.calculus import values
from actfit.fitting.activations.tape import Tape
from actfit.kernels.methods.from_output import FINER_ELEMENT
from actfit.kernels.methods.function_info import FunctionInfo

# Arguments where a bounded f' is next to its limits, and a size that only an unbounded f' exceeds there.
_FAR, _HUGE = np.array([-1e30, 1e30]), 1e15
_ELEMENTS = ("forward", "derivative", "branch_bit", "code_", "level_")


def info(subject: Subject) -> FunctionInfo:
    """The properties of any function; free parameters have their defaults."""
    closed, minimum = CLOSED.get(subject.name), subject.activation.minimum.value
    two = (subject.formulas or closed) and elements.branch_bit(subject, "torch") is not None
    far = np.abs(values(Tape(subject.activation.d1_expression), _FAR))
    return FunctionInfo(
        name=subject.name,
        parameters=dict(subject.activation.params),
        lower_limits=dict(closed.at_least or {}) if closed else {},
        rounded_for=closed.rounded_for if closed else "",
        rounds_once=elements.rounds_once(subject),
        branches=2 if two else 1,
        minimum=float(minimum) if isfinite(minimum) else None,
        bounded_derivative=bool((far <= _HUGE).all()),
        tables={bits: planes(file.document["solution"]) for bits, file in subject.fewbit().items()},
        elements=frozenset({"branch_bit"} if two else ()) | ({FINER_ELEMENT} if subject.invact(2) else set()),
        cuts=_cuts(subject),
    )


def _cuts(subject: Subject) -> dict[str, CutOutput]:
    cuts = {dtype: CutOutput.of(file.document["solution"]) for dtype, file in subject.invact(2).items()}
    return {dtype: cut for dtype, cut in cuts.items() if cut is not None}


def functions_module(subjects: Iterable[Subject]) -> str:
    """The text of `functions.py`: all functions of the catalogue."""
    lines = [
        '"""What is known of each function: found from its expression and its coefficient files.',
        "",
        MARK,
        "To make it again: actfit emit --all",
        '"""',
        "",
        "from actfit.coefficients.cut_output import CutOutput",
        "from actfit.kernels.methods.function_info import FunctionInfo",
        "",
        "FUNCTIONS = {",
    ]
    for subject in subjects:
        lines += _entry(subject)
    return "\n".join([*lines, "}"]) + "\n"


def _entry(subject: Subject) -> list[str]:
    function_info = info(subject)
    names = [function.name for function in triton_functions(subject) if function.name.startswith(_ELEMENTS)]
    lines = [f"    {subject.name!r}: FunctionInfo("]
    for field in (
        "name", "parameters", "lower_limits", "rounded_for", "rounds_once", "branches", "minimum",
        "bounded_derivative", "tables",
    ):  # fmt: skip
        lines.append(f"        {field}={getattr(function_info, field)!r},")
    lines.append("        elements=frozenset({")
    lines += [f"            {name!r}," for name in names]
    lines.append("        }),")
    if function_info.cuts:
        lines += ["        cuts={", *(f"            {dtype!r}: {cut!r}," for dtype, cut in function_info.cuts.items())]
        lines.append("        },")
    return [*lines, "    ),"]
