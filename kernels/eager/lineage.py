"""Which saved tensors a living tensor was made of, element by element: those that meet it in a quotient are exact.

The backward pass of log(p) divides by p, and that of p = sigmoid(x) multiplies by p (1 - p): where p is small, decoded
p over exact p may be anything. Only the logarithm, some calls later, shows that a code does not do for sigmoid. So
exact tensors are held until then, at most as long as what was made of them lives.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from kernels.eager import calls
from kernels.eager.provenance import A_STATISTIC, ALIVE, INPUT, Provenance, RunningCall
from kernels.eager.tensors import tensors, version_of
from kernels.eager.values import Value
from kernels.methods.every_tensor import STATISTIC

MET = "a later call divides, and what meets it must be exact, too"
HANDED_OUT = "an output, by which a loss may divide; who called forward holds it"
MOST_STEPS = 8  # calls between a saved tensor and the quotient that it meets in


class Ancestor(NamedTuple):
    """A saved tensor that another was made of.

    Attributes
    ----------
    tensor, version
        The exact tensor, and its version when it was saved.
    name
        Of the function that saved it.
    steps
        Calls from it to the other.
    handed_out
        Whether a function that handed it out saved it, as sigmoid: it must be exact if an output is made of it.
    """

    tensor: Tensor
    version: int
    name: str = ""
    steps: int = 0
    handed_out: bool = False

    @staticmethod
    def of(x: Tensor, name: str = "", handed_out: bool = False) -> "Ancestor":
        """Of a tensor that is saved now."""
        return Ancestor(x.detach(), version_of(x), name, 0, handed_out)

    def is_unchanged(self) -> bool:
        """Whether the tensor still is what was saved."""
        return version_of(self.tensor) == self.version


Ancestors = dict[Value, Ancestor]


class Lineage:
    """The ancestors of each living tensor of a forward pass."""

    def __init__(self) -> None:
        self._of = WeakTensorKeyDictionary()
        self._now: dict[Value, Ancestor] = {}

    def clear(self) -> None:
        """Forget all tensors."""
        self._of.clear()
        self._now.clear()

    def begin(self) -> None:
        """A call begins."""
        self._now = {}

    def saves(self, value: Value, x: Tensor, saver: RunningCall, is_result: bool) -> None:
        """The running call saves a tensor, whose value may be decoded in backward."""
        if saver.name not in calls.BY_SIDE:
            value.read = saver.name if is_result else value.read
            handed_out = is_result and saver.name in calls.SATURATED
            self._now[value] = Ancestor.of(x, saver.name, handed_out)

    def follow(self, running: RunningCall, result: Any, provenance: Provenance) -> None:
        """The running call ended: its results have the ancestors of its arguments, and what it saved.

        Not the sum with a tensor that has none, as a residual: that is not small where its ancestors are.
        """
        if running.name in calls.MIXING or self._is_statistic(running, result):
            return
        made = [x for x in running.operands if x in self._of]
        others = [
            x
            for x in running.operands
            if (x.requires_grad or provenance.exact(x) == INPUT) and not any(x is known for known in made)
        ]
        if running.name in ("add", "sub", "rsub") and any(x.numel() == result.numel() for x in others):
            return
        ancestors = {
            value: old._replace(steps=old.steps + 1)
            for x in made
            for value, old in self._of[x].items()
            if old.steps < MOST_STEPS
        }
        for value, new in self._coded_now(ancestors).items():
            ancestors[value] = new._replace(handed_out=new.handed_out or self._is_handed_out(value, ancestors))
        written = running.operands[0] if running.name == "setitem" else result
        for x in tensors((written,)) if ancestors else ():
            self._of[x] = ancestors

    @staticmethod
    def _is_handed_out(value: Value, ancestors: Ancestors) -> bool:
        return value in ancestors and ancestors[value].handed_out

    def view(self, args: Iterable[Any], result: Any) -> None:
        """A view of an argument was made, which has its ancestors."""
        ancestors = next((self._of[x] for x in tensors(args) if x in self._of), None)
        for x in tensors((result,)) if ancestors else ():
            self._of[x] = ancestors

    @staticmethod
    def _is_statistic(running: RunningCall, result: Any) -> bool:
        if running.name not in calls.REDUCTIONS or not isinstance(result, Tensor):
            return False
        return any(result.numel() * STATISTIC <= x.numel() for x in running.operands)

    def met(self, running: RunningCall, provenance: Provenance) -> Ancestors:
        """The saved tensors that meet an exact one in the running call, which just ended."""
        if running.name not in calls.QUOTIENTS:
            return {}
        if running.name in ("div", "truediv"):
            dividend, *divisor = running.operands
            if not divisor or not self._is_of_elements(divisor[0], dividend, provenance):
                return {}
        meeting = {value: known for x in running.operands for value, known in self._of.get(x, {}).items()}
        meeting |= self._coded_now(meeting)
        return {value: known for value, known in meeting.items() if not value.is_made_of(meeting.keys() - {value})}

    def _coded_now(self, others: Ancestors) -> Ancestors:
        """What the running call saved, but not what is recomputed from that and others: it is exact if they are.

        What functions hand out is among it anyhow: if an output is made of it, it is kept without those others.
        """
        return {
            value: new
            for value, new in self._now.items()
            if new.handed_out or not value.is_made_of({*others, *self._now})
        }

    @staticmethod
    def _is_of_elements(divisor: Tensor, dividend: Tensor, provenance: Provenance) -> bool:
        """Whether a divisor belongs to elements rather than to rows, and may be small where these are."""
        few = divisor.numel() * STATISTIC <= dividend.numel()
        return not few and provenance.exact(divisor) not in (A_STATISTIC, *ALIVE[:2])

    def handed_out(self) -> Iterator[tuple[Value, Ancestor]]:
        """What a loss outside may divide by: results of saturated functions that living tensors were made of.

        After forward only outputs live, and what the model keeps on itself.
        """
        for x, ancestors in list(self._of.items()):
            if x.requires_grad:  # not a record of it, as x.detach()
                yield from (item for item in ancestors.items() if item[1].handed_out)
