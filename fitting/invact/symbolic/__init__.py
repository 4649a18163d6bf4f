"""Symbolic regression: the data, the front of forms and the child process that its two engines share."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, Popen
from threading import Timer
from typing import IO

import numpy as np
import sympy
from numpy.typing import NDArray
from sympy import Abs, Expr, Integer, Rational, preorder_traversal

from actfit.fitting.activations.tape import Tape
from actfit.fitting.errors import InputError
from actfit.fitting.invact.formula import Form, evaluate
from actfit.fitting.invact.symbolic.equations import to_form
from actfit.fitting.invact.variable import S, Y

Array = NDArray[np.float64]

MARGIN = 0.01  # by which a larger formula must be better: less is noise until the constants are refitted


@dataclass(frozen=True)
class Data:
    """g at n points of one branch; all arrays are (n,), float64."""

    y: Array  # outputs of the activation
    s: Array  # the variable
    target: Array  # g there
    weight: Array  # >= 0, of the squared error


def size(form: Form) -> int:
    """Nodes of the expression's tree."""
    return sum(1 for _ in preorder_traversal(form.expression))


def error(form: Form, data: Data) -> float:
    """The weighted mean of the squared error; NaN or infinite where the form is not finite at some point."""
    with np.errstate(all="ignore"):
        return float(np.average((evaluate(form, data.y, data.s) - data.target) ** 2, weights=data.weight))


def front(forms: Iterable[Form], data: Data) -> list[Form]:
    """The Pareto front by size and error, simplest first; each form is better than those before it by `MARGIN`."""
    ranked = sorted(
        ((size(form), error(form, data), str(form.expression), form) for form in forms),
        key=lambda entry: (entry[0], entry[1] if np.isfinite(entry[1]) else np.inf, entry[2], entry[3].values),
    )
    forms_of_front: list[Form] = []
    best = np.inf
    for _, form_error, _, form in ranked:
        if form_error < best * (1 - MARGIN):
            forms_of_front.append(form)
            best = form_error
    return forms_of_front


def pruned(form: Form) -> Iterator[Form]:
    """The forms with one constant of `form` set to 0, if they still vary and are finite."""
    numbers = dict(zip(form.constants, map(Rational, form.values), strict=True))
    for symbol in form.constants:
        rest = form.expression.xreplace(numbers | {symbol: Integer(0)})
        if rest.free_symbols and not rest.has(sympy.zoo, sympy.nan, sympy.oo):
            yield to_form(rest, form.engine)


def sound_at(form: Form, y: Array, s: Array) -> bool:
    """Whether the form varies and is finite, also in float32, and no denominator, root or logarithm leaves its domain.

    It is tested at the points y and s, both of shape (n,).
    """
    numbers = dict(zip(form.constants, map(Rational, form.values), strict=True))

    def at(node: Expr) -> Array:
        return Tape(node, Y, S, *form.constants).numpy(y, s, *form.values)

    for node in preorder_traversal(form.expression):
        if isinstance(node, sympy.log) and not np.all(at(node.args[0]) > 0):
            return False
        if node.is_Pow:
            # |u| never changes its sign, but u may.
            base = at(node.base.args[0] if isinstance(node.base, Abs) else node.base)
            exponent = node.exp.xreplace(numbers)
            whole = exponent.is_Integer or isinstance(node.base, Abs)
            if not whole and not np.all(base >= 0):
                return False
            if not exponent.is_nonnegative and not (np.all(base > 0) or np.all(base < 0)):
                return False
    single = Tape(form.expression, Y, S, *form.constants).numpy32(y, s, *form.values)
    values = at(form.expression)
    return bool(np.all(np.isfinite(values)) and np.all(np.isfinite(single)) and np.ptp(values) > 0)


@contextmanager
def child(module: str, folder: Path, stdout: IO[str] | int, limit: float | None = None) -> Iterator[Popen[str]]:
    """`python -m module folder` in a process that ends with the block, however the block ends.

    Raises `InputError`, with the last line of its stderr, if it fails or runs longer than `limit` seconds.
    """
    command = [sys.executable, "-m", module, str(folder)]
    root = Path(__file__).resolve().parents[3]  # where -m finds this package, whatever the caller's folder
    with (folder / "errors.txt").open("w+", encoding="utf-8", errors="replace") as errors:
        process = Popen(command, cwd=root, stdin=DEVNULL, stdout=stdout, stderr=errors, text=True)
        timer = Timer(limit or 0, process.kill)
        try:
            if limit is not None:
                timer.start()
            yield process
            process.wait()
        finally:
            late = timer.finished.is_set()
            timer.cancel()
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
        if process.returncode:
            errors.seek(0)
            lines = [line.strip() for line in errors if line.strip()]
            last = lines[-1] if lines else f"its process ended with code {process.returncode}"
            why = f"its process was stopped after {limit:g} seconds" if late else last
            raise InputError(f"engine {module.rpartition('.')[2]}: {why}")
