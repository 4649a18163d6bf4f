"""The fits by function as on the page: a shelf for each function and set of parameters."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from actfit.coefficients.store import available, load
from actfit.fitting.activations import Activation
from actfit.fitting.activations.catalogue import CATALOGUE
from actfit.fitting.invact.engines.papers import ENGINE as PUBLISHED
from actfit.fitting.provenance import own_params, stored_function
from notebooks.gallery.fits import MOST_BITS, FewBit, Fit, InvAct, Joint, Published


@dataclass(frozen=True)
class Shelf:
    """All fits of one function with the same parameters; `id`: a unique name.

    `others`: tables of more than `MOST_BITS` bits, which have no place on the card.
    """

    id: str
    fits: tuple[Fit, ...]
    others: tuple[FewBit, ...] = ()

    @property
    def name(self) -> str:
        return self.fits[0].entry.function

    @property
    def is_usual(self) -> bool:
        """Whether this is the catalogue's function, with its own parameters."""
        return self.name in CATALOGUE and not own_params(self.activation)

    @property
    def title(self) -> str:
        """The name and the parameters that are not defaults: softplus, beta = 2."""
        own = own_params(self.activation) if self.name in CATALOGUE else {}
        return ", ".join([self.name, *(f"{key} = {value:g}" for key, value in own.items())])

    @property
    def two_bits(self) -> FewBit | None:
        """The first table of 2 bits, for small pictures."""
        return next((fit for fit in self.fits if isinstance(fit, FewBit) and fit.kept_bits == 2), None)

    @property
    def activation(self) -> Activation:
        return self.fits[0].activation

    @property
    def torch(self) -> str | None:
        """The same function in PyTorch, or None; None also if parameters are not defaults."""
        row = CATALOGUE[self.name] if self.is_usual else None
        if row is None or row.torch is None:
            return None
        options = "".join(f", {key}={value!r}" for key, value in row.torch_options.items())
        return f"torch.nn.functional.{row.torch}(x{options})"


def shelves(root: Path | None = None) -> list[Shelf]:
    """The shelves of the fits below root (default: the packaged ones).

    Sorted by name, those whose f' is a step function last, as few bits hold it exactly. Functions with nothing but
    tables of more than `MOST_BITS` bits are left out.

    Raises `CoefficientError` or `InputError` for a file that is not valid, OSError for one that cannot be read.
    """
    by_function: dict[str, dict[tuple[Any, ...], list[Fit]]] = {}
    for entry in available(root):
        document = load(entry.path)
        kind = _class(document)
        function = document["function"]
        shelf = by_function.setdefault(entry.function, {}).setdefault(
            (function["expr"], *sorted(function["params"].items())), []
        )
        activation = shelf[0].activation if shelf else stored_function(function)
        text = entry.path.read_text(encoding="utf-8")
        shelf.append(kind(entry, text, document, activation))
    # Further shelves of a function get a number after a minus sign, which no function's name has.
    made = [
        Shelf(f"{name}-{i}" if i > 1 else name, _arranged(shown), tuple(others))
        for name, like in sorted(by_function.items())
        for i, (shown, others) in enumerate(filter(itemgetter(0), map(_parted, sorted(like.values(), key=_unusual))), 1)
    ]
    return sorted(made, key=lambda shelf: shelf.activation.step_values is not None)


def _parted(fits: Sequence[Fit]) -> tuple[list[Fit], list[FewBit]]:
    """The fits that cards show, and the others."""
    others = [fit for fit in fits if isinstance(fit, FewBit) and fit.kept_bits > MOST_BITS]
    return [fit for fit in fits if fit not in others], others


def _class(document: dict[str, Any]) -> type[Fit]:
    if document["options"].get("engine") == PUBLISHED:
        return Published
    return {"fewbit": FewBit, "joint": Joint, "invact": InvAct}[document["method"]]


def _unusual(fits: Sequence[Fit]) -> tuple[bool, str]:
    """A sort key: shelves with default parameters come first."""
    return bool(own_params(fits[0].activation)), fits[0].entry.name


def _arranged(fits: Sequence[Fit]) -> tuple[Fit, ...]:
    """Tables by bits, then formulas by dtype, the paper's last; formulas get the paper's error."""
    papers = {fit.kind: fit.error for fit in fits if isinstance(fit, Published)}
    informed = (replace(fit, paper=papers.get(fit.kind)) if type(fit) is InvAct else fit for fit in fits)
    return tuple(sorted(informed, key=_place))


def _place(fit: Fit) -> tuple[Any, ...]:
    return fit.rank, fit.kind_rank, fit.entry.name, fit.entry.version
