"""The element functions of a subject, for one target: forward, derivative, branch_bit, derivative_from_output."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
from sympy import Expr, Piecewise, Rational, Symbol

from actfit.codegen import infinities, passes
from actfit.codegen.closed import CLOSED, Closed
from actfit.codegen.function import Function, Writer
from actfit.codegen.subject import Subject
from actfit.fitting.activations.catalogue import CATALOGUE, Row
from actfit.fitting.activations.functions import x
from actfit.fitting.activations.grammar import parse_formula
from actfit.fitting.errors import InputError
from actfit.kernels.methods.from_output import ELEMENT, FINER_ELEMENT
from actfit.kernels.methods.table import largest_float32

Y, S = Symbol("y", real=True), Symbol("s", real=True)
# Operations that a formula takes as arguments, as eager mode has faster ones on a CPU, and their defaults.
FASTER = {"sqrt": "torch.sqrt", "polynomial": "polynomial"}
_COMPOSED = ("softsign", "tanhshrink")  # torch computes them operation by operation


def _stock(subject: Subject) -> Row | None:
    """The row of the catalogue, where torch has the function."""
    row = CATALOGUE.get(subject.name)
    return row if row is not None and row.torch and subject.activation.expr == row.expr else None


def rounds_once(subject: Subject) -> bool:
    """Whether forward for PyTorch is one operation, which rounds only its result, also in 16 bits."""
    return _stock(subject) is not None and subject.name not in _COMPOSED


def forward(subject: Subject, target: str) -> Function:
    """y = f(x); for PyTorch the stock function where there is one, in the tensor's own dtype."""
    row = _stock(subject)
    if target == "torch" and row is not None:
        options = [f"{name}={value!r}" for name, value in row.torch_options.items()]
        values = subject.parameters or tuple(subject.activation.params)
        given = [
            f"{name}=params[{i}]" if subject.parameters else f"{name}={subject.activation.params[name]!r}"
            for i, name in enumerate(values)
        ]
        call = f"torch.nn.functional.{row.torch}({', '.join(['x', *given, *options])})"
        lines = infinities.stock(subject.name, call, subject.activation.limits)
        doc = f"{subject.name}(x): the stock function{', its limits where that gives NaN' if len(lines) > 1 else ''}."
        return Function("forward", ("x", "params"), doc, tuple(lines), jit=False)
    writer = Writer(target, params=subject.symbols)
    expression = infinities.forward(subject, writer)
    if expression.has(Piecewise):  # a comparison with NaN is false: the last case would hold
        writer.assign("y", expression)
        writer.lines.append(
            "return tl.where(x != x, x, y)" if target == "triton" else "return torch.where(x != x, x, y)"
        )
    else:
        writer.give(expression)
    return writer.function("forward", ("x", "params"), f"{subject.name}(x) = {subject.activation.expr}.")


def derivative(subject: Subject, target: str) -> Function:
    """f'(x)."""
    writer = Writer(target, params=subject.symbols)
    writer.give(infinities.derivative(subject, writer))
    if target == "torch" and not subject.derivative.has(x):
        writer.lines[-1] = f"return torch.full_like(x, {writer.lines[-1].removeprefix('return ')})"
    return writer.function("derivative", ("x", "params"), f"{subject.name}'(x).")


def branch_bit(subject: Subject, target: str) -> Function | None:
    """1 where x is on the right of two branches that y alone cannot tell apart; None where it can."""
    closed = _closed(subject)
    jit = target == "triton"
    arguments = ("x", "params", "k") if jit else ("x", "params")
    doc = "Whether x is on the right branch, in bit k." if jit else "Whether x is on the right branch."
    result = "return tl.where({}, 1 << k, 0)" if jit else "return {}"
    if closed is not None:
        if closed.bit is None:
            return None
        border = f"params[{subject.parameters.index(closed.bit)}]" if subject.parameters else ""
        border = border or repr(subject.activation.params[closed.bit])
        return Function("branch_bit", arguments, doc, (result.format(f"x > {border}"),), jit=jit)
    solution = subject.formulas[0].document["solution"]
    if solution["border"] is None:
        return None
    # For float32 numbers x >= T holds just where x >= the next float32 above, x > T where x > the next one below.
    exact = solution["border"]
    condition = (
        f"x >= {-largest_float32(-exact)!r}"
        if solution["border_side"] == "right"
        else f"x > {largest_float32(exact)!r}"
    )
    return Function("branch_bit", arguments, doc, (result.format(condition),), jit=jit)


def derivative_from_finer_output(subject: Subject, dtype: str, target: str) -> Function | None:
    """f'(x) from the y of `derivative_from_output` moved towards f(x), and from the branch; None without a formula."""
    file = subject.invact(2).get(dtype)
    if file is None:
        return None
    doc = f"{subject.name}'(x) from y = {subject.name}(x), moved by the second bit."
    return replace(_two_branches(file.document["solution"]["branches"], target, doc), name=FINER_ELEMENT)


def derivative_from_output(subject: Subject, dtype: str, target: str) -> Function:
    """f'(x) from y = f(x) rounded to `dtype`, and from the branch of x where that is needed."""
    closed = _closed(subject)
    doc = f"{subject.name}'(x) from y = {subject.name}(x)."
    if closed is not None:
        writer = Writer(target, params=subject.symbols)
        if closed.bit is not None:
            writer.lines.append(
                "return tl.where(on_right, 1.0, 0.0)" if target == "triton" else "return on_right.to(y.dtype)"
            )
            return _from_output(writer, doc, 2)
        names = tuple(Symbol(name, real=True) for name in subject.activation.params)
        formula = parse_formula(closed.formula, (Y, *names)).xreplace(
            _values(subject, dtype if closed.rounded_for else None)
        )
        writer.give(passes.derivative(formula))
        return _from_output(writer, doc)
    file = subject.invact().get(dtype)
    if file is None:
        raise InputError(f"{subject.name} has no formula for {dtype}; make one: actfit invact")
    branches = file.document["solution"]["branches"]
    if len(branches) == 1:
        writer = _writer(target, branches[0])
        _assign_s(writer, branches[0])
        writer.give(_formula(branches[0], "expression"))
        return _from_output(writer, doc)
    return _two_branches(branches, target, doc)


def _two_branches(branches: list[dict[str, Any]], target: str, doc: str) -> Function:
    left, right = branches
    where = "tl.where" if target == "triton" else "torch.where"
    same = left["expression"] == right["expression"] and left["constants"] == right["constants"]
    if same and left["variable"] and left["variable"] == f"-{right['variable']}":
        writer = _writer(target, right)
        _assign_s(writer, right)
        writer.lines.append(f"s = {where}(on_right, s, -s)")
        writer.give(_formula(right, "expression"))
        return _from_output(writer, doc, 2)
    renamed = [{**left, "suffix": "_left"}, {**right, "suffix": "_right"}]
    constants = {**_constants(renamed[0]), **_constants(renamed[1])}
    writer = Writer(target, constants=constants, calls_polynomials=target == "torch")
    for branch, name in zip(renamed, ("left", "right"), strict=True):
        _assign_s(writer, branch)
        writer.assign(name, _formula(branch, "expression"))
    writer.lines.append(f"return {where}(on_right, right, left)")
    return _from_output(writer, doc, 2)


def _from_output(writer: Writer, doc: str, branches: int = 1) -> Function:
    """The statements so far as the function. For PyTorch it takes those operations of FASTER that it uses."""
    arguments = ["y", "on_right", "params"] if branches == 2 else ["y", "params"]
    if writer.target == "torch":
        writer.lines = [line.replace("torch.sqrt(", "sqrt(") for line in writer.lines]
        called = set(re.findall(r"(?<![\w.])\w+(?=\()", " ".join(writer.lines)))
        options = [f"{name}={default}" for name, default in FASTER.items() if name in called]
        arguments += ["*", *options] if options else []
    return writer.function(ELEMENT, tuple(arguments), doc)


def _constants(branch: dict[str, Any]) -> dict[Symbol, float]:
    """Values by their names in the function; those of two branches differ by a suffix."""
    suffix = branch.get("suffix", "")
    return {Symbol(f"{name}{suffix}", real=True): value for name, value in branch["constants"].items()}


def _formula(branch: dict[str, Any], key: str) -> Expr:
    """The stored text as an expression in y, s and the branch's constants under their names in the function."""
    plain = {name: Symbol(name, real=True) for name in branch["constants"]}
    expression = parse_formula(branch[key], (Y, S, *plain.values()))
    renamed = dict(zip(plain.values(), _constants(branch), strict=True))
    return passes.derivative(expression.xreplace(renamed))


def _writer(target: str, branch: dict[str, Any]) -> Writer:
    return Writer(target, constants=_constants(branch), calls_polynomials=target == "torch")


def _assign_s(writer: Writer, branch: dict[str, Any]) -> None:
    if branch["variable"] is not None:
        writer.assign("s", _formula(branch, "variable"))


def in_dtype(subject: Subject, dtype: str) -> Subject:
    """The subject as the dtype has it: its numbers are rounded where PyTorch's own function rounds parameters."""
    closed, activation = CLOSED.get(subject.name), subject.activation
    if closed is None or closed.rounded_for != "x":
        return subject
    rounded = {name: _nearest(value, dtype) for name, value in activation.params.items()}
    return replace(subject, activation=replace(activation, params=rounded))


def _closed(subject: Subject) -> Closed | None:
    """The formula for any parameters, where they are free or not those of the files."""
    return None if subject.formulas and not subject.parameters else CLOSED.get(subject.name)


def _values(subject: Subject, dtype: str | None) -> dict[Symbol, Rational]:
    """The numbers that replace parameters which are not free, rounded to a dtype if one is given."""
    fixed = {} if subject.parameters else subject.activation.params
    return {Symbol(name, real=True): Rational(_nearest(value, dtype)) for name, value in fixed.items()}


def _nearest(value: float, dtype: str | None) -> float:
    """The value rounded to the dtype, to even."""
    match dtype:
        case None:
            return value
        case "float16":
            return float(np.float16(value))
        case "bfloat16":
            bits = int(np.float32(value).view(np.uint32))
            return float(np.uint32((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32))
    return float(np.float32(value))
