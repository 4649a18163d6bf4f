"""The repeated modules of a model: a plan of 4 layers is none of a model of 6."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate

from torch import nn

from actfit.kernels.errors import KernelError
from actfit.kernels.memory.saved import like


def repeated_modules(model: nn.Module) -> dict[str, int]:
    """How many modules there are of each name with numbers, which are written as *."""
    return dict(sorted(Counter(like(name) for name in _numbered(name for name, _ in model.named_modules())).items()))


def check_repeated(planned: Mapping[str, int], names: Iterable[str], where: str) -> None:
    """Raise KernelError if more modules are like one of a plan than it was made for.

    Parameters
    ----------
    planned
        As `repeated_modules` of the model that the plan was made for; empty, as in older files: nothing is known.
    names
        Names of modules, or of some in which there are sites.
    where
        What has these modules, for the message.
    """
    by_kind: dict[str, set[str]] = {}
    for name in _numbered({outer for inner in names for outer in _around(inner)}):
        by_kind.setdefault(like(name), set()).add(name)
    for kind, alike in by_kind.items():
        known = planned.get(kind, len(alike))
        if len(alike) > known:
            raise KernelError(
                f"plan must be of this model, got one of a model with {known} modules {kind!r}, where {where} has"
                f" {len(alike)}: it has nothing for {max(alike, key=_numbers)!r}, for one; make one of this model by"
                " make_plan"
            )


def _numbered(names: Iterable[str]) -> Iterable[str]:
    return (name for name in names if like(name).endswith("*"))


def _around(name: str) -> Iterable[str]:
    """The names of a module and of those that it is in."""
    return accumulate(name.split("."), lambda outer, inner: f"{outer}.{inner}")


def _numbers(name: str) -> list[int]:
    return [int(part) for part in name.split(".") if part.isdecimal()]
