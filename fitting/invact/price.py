"""The price of a formula: the instructions that a GPU issues for one element.

Counted as Triton compiles them for NVIDIA GPUs (sm_80, sm_90) in float32. A shared subexpression counts once; a
product that is added to something is one fused multiply-add, and so is the last multiplication of a quotient or a
power; a sign is a modifier and free. `python -m benchmarks.price` compiles each row of the table and counts.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import sympy
from sympy import Expr
from sympy.core.relational import Relational
from sympy.functions.elementary.piecewise import ExprCondPair

from actfit.fitting.activations.functions import expm1, log1p, maximum, minimum, sigmoid, tanh

# function -> (special-function instructions, others). Measured; log, expm1 and the like are software sequences.
TABLE: dict[str, tuple[int, int]] = {
    "fma": (0, 1),  # also a sum or a product alone
    "abs": (0, 1),  # of a loaded value; of a computed one it is a modifier and free
    "select": (0, 1),  # also each `and` and `or`
    "compare": (0, 1),
    "max": (0, 1),
    "min": (0, 1),
    "sqrt": (1, 0),
    "exp2": (1, 0),
    "exp": (1, 4),
    "division": (1, 7),
    "log": (0, 25),
    "power": (1, 28),  # a root other than the square root, by log2 and exp2
    "expm1": (1, 24),
    "log1p": (0, 29),
    "sigmoid": (2, 9),
    "tanh": (2, 14),
    "other": (1, 27),  # erf's price, for functions without a row
}
DIVISION = sum(TABLE["division"])
_FUNCTIONS = {maximum: "max", minimum: "min", expm1: "expm1", log1p: "log1p", sigmoid: "sigmoid", tanh: "tanh"}
_FUNCTIONS |= {sympy.exp: "exp", sympy.log: "log"}

Item = TypeVar("Item")


@dataclass(frozen=True)
class Price:
    """Instructions per element, by kind: `special` are those of the special-function unit."""

    fma: int
    other: int
    special: int
    divisions: int

    @property
    def total(self) -> int:
        """All instructions; a division is a sequence of eight, one of them special."""
        return self.fma + self.other + self.special + DIVISION * self.divisions

    def __str__(self) -> str:
        parts = [(self.fma, "fma"), (self.other, "other"), (self.special, "special"), (self.divisions, "division")]
        kinds = ", ".join(f"{count} {kind}" for count, kind in parts if count)
        return f"{self.total} ({kinds})" if kinds else "0"


def price(*expressions: Expr) -> Price:
    """The price of evaluating all of `expressions`; common parts are paid for once."""
    bill = _Bill()
    for expression in expressions:
        bill.add(expression)
    counts = bill.counts
    special = sum(TABLE[kind][0] * n for kind, n in counts.items() if kind != "division")
    other = sum(TABLE[kind][1] * n for kind, n in counts.items() if kind not in ("fma", "division"))
    return Price(counts["fma"], other, special, counts["division"])


def improving(items: Iterable[Item], error: Callable[[Item], float]) -> list[Item]:
    """The items that err less than all items before them; the items come in order of their price."""
    kept: list[Item] = []
    for item in items:
        if not kept or error(item) < error(kept[-1]):
            kept.append(item)
    return kept


class _Bill:
    """Counts by row of the table.

    `seen` are the nodes that are paid for; `fused` are those of them whose last multiplication is part of a sum.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.seen: set[Expr] = set()
        self.fused: set[Expr] = set()

    def add(self, node: Expr) -> None:
        node = _unsigned(node)
        if node in self.fused:  # its value is needed by itself, too
            self.fused.remove(node)
            self.counts["fma"] += 1
        if node in self.seen or not node.free_symbols:
            return
        self.seen.add(node)
        if node.is_Add:
            self._sum(node)
        elif node.is_Mul:
            self._product(node)
        elif node.is_Pow:
            self._power(node)
        else:
            self._function(node)

    def _function(self, node: Expr) -> None:
        for argument in node.args:
            self.add(argument)
        if isinstance(node, sympy.Piecewise | sympy.And | sympy.Or):
            self.counts["select"] += len(node.args) - 1
        elif isinstance(node, Relational):
            self.counts["compare"] += 1
        elif isinstance(node, sympy.Abs):
            self.counts["abs"] += node.args[0].is_Symbol
        elif node.args and not isinstance(node, ExprCondPair | sympy.Not):
            self.counts[_FUNCTIONS.get(type(node), "other")] += 1

    def _sum(self, node: Expr) -> None:
        """k terms cost k - 1 instructions, each of which also does the last multiplication of one term."""
        terms = [_unsigned(term) for term in _without_numbers(node)]
        additions = len(terms) - (len(terms) == len(node.args))
        again = [term for term in terms if term in self.fused][:additions]
        ready = [term for term in terms if term not in self.seen and _ends_in_product(term)][: additions - len(again)]
        self.fused.difference_update(again)
        for term in terms:
            self.add(term)
        self.fused.update(again, ready)
        self.counts["fma"] += additions - len(ready)

    def _product(self, node: Expr) -> None:
        """Numerator and denominator are chains of multiplications; between them is one division."""
        factors = _without_numbers(node)
        below = [factor.args[0] ** -factor.args[1] for factor in factors if _is_divisor(factor)]
        above = [factor for factor in factors if not _is_divisor(factor)]
        for factor in (*above, *below):
            self.add(factor)
        numbers = len(factors) < len(node.args)
        self.counts["fma"] += max(len(above) + numbers - 1, 0) + max(len(below) - 1, 0)
        self.counts["division"] += bool(below)

    def _power(self, node: Expr) -> None:
        base, exponent = node.args
        if base.is_number:
            self.add(exponent)
            self.counts["exp2"] += 1
            self.counts["fma"] += base != 2  # times log2 of the base
            return
        if _is_divisor(node):
            self.add(base**-exponent)
            self.counts["division"] += 1
            return
        self.add(base)
        self.add(exponent)
        if not (2 * exponent).is_Integer:
            self.counts["power"] += 1
            return
        whole, half = divmod(int(2 * exponent), 2)
        self.counts["sqrt"] += half
        self.counts["fma"] += whole.bit_length() + whole.bit_count() - 2 + half if whole else 0


def _without_numbers(node: Expr) -> list[Expr]:
    """Terms or factors that are not constant; the constant ones become one number before the formula runs."""
    return [part for part in node.args if part.free_symbols]


def _unsigned(node: Expr) -> Expr:
    """`node` without a factor -1, which costs nothing."""
    return -node if node.is_Mul and node.args[0] == -1 else node


def _ends_in_product(term: Expr) -> bool:
    """Whether the last operation of `term`, which has no factor -1, is a multiplication."""
    if term.is_Pow:
        exponent = term.args[1]
        return bool((2 * exponent).is_Integer and exponent != sympy.Rational(1, 2))
    return bool(term.is_Mul and term.free_symbols)


def _is_divisor(factor: Expr) -> bool:
    """Whether `factor` is one over a power or a square root; another root's negative exponent costs nothing."""
    return bool(factor.is_Pow and (2 * factor.args[1]).is_Integer and factor.args[1].is_negative)
