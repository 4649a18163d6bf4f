"""The stored fits, as they are read from their files, and what the page says of each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from coefficients.store import Entry, available, load
from fitting.activations import Activation
from fitting.activations.catalogue import CATALOGUE
from fitting.fewbit.table1 import EVEN, printed
from fitting.invact.papers import ENGINE as PUBLISHED
from fitting.provenance import own_params, stored_function
from fitting.words import counted

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Fit:
    """One coefficient file: where it is, its text as it stands there, what it says, and its function."""

    entry: Entry
    text: str
    document: dict[str, Any]
    activation: Activation
    paper: float | None = None  # InvAct: the error of the paper's own formulas in this dtype

    @property
    def place(self) -> str:
        """The file, from the root of its folder of coefficients."""
        return f"{self.entry.function}/{self.entry.path.name}"

    @property
    def id(self) -> str:
        """A name that no other fit on the page has."""
        return f"{self.entry.function}-{self.entry.path.stem}"

    @property
    def is_fewbit(self) -> bool:
        return bool(self.document["method"] == "fewbit")

    @property
    def is_published(self) -> bool:
        """Whether these are the paper's own formulas."""
        return bool(self.document["options"].get("engine") == PUBLISHED)

    @property
    def method(self) -> str:
        return "few-bit" if self.is_fewbit else "InvAct, the paper’s" if self.is_published else "InvAct"

    @property
    def setting(self) -> str:
        """Bits or dtype."""
        options = self.document["options"]
        return counted(options["bits"], "bit") if self.is_fewbit else str(options["dtype"])

    @property
    def label(self) -> str:
        """What tells the fit from the others of its function."""
        return f"{self.method}, {self.setting}" + f", version {self.entry.version}" * (self.entry.version > 1)

    @property
    def kept_bits(self) -> int:
        """Bits kept for backward for each element, besides an output that is kept anyway."""
        if self.is_fewbit:
            return int(self.document["options"]["bits"])
        return len(self.document["solution"]["branches"]) - 1

    @property
    def error(self) -> float:
        """∫(f' - q)²w, or the root of the mean square."""
        return float(self.document["error"]["l2_squared" if self.is_fewbit else "rms"])

    @property
    def least(self) -> float:
        """What no table of as many levels, no formula of the stored output can get below."""
        return float(self.document["error"]["lower_bound" if self.is_fewbit else "floor_rms"])

    @property
    def above(self) -> float | None:
        """How far the error is above the least, as a share of that; None where nothing can be said."""
        if self.error == self.least:
            return 0.0
        return None if self.least == 0 else (self.error - self.least) / self.least

    @property
    def proven(self) -> float | None:
        """What |q - g| is proven to be at most, over all sides; None where no bound was found, or none is needed."""
        if self.is_fewbit:
            return None
        bounds = self.document["error"]["bound"]
        return None if None in bounds else max(map(float, bounds))

    @property
    def is_relative(self) -> bool:
        """Whether that is in parts of max(1, |g|): where g grows without limit."""
        ends = self.activation.derivative_limits
        return math.isinf(ends.left) or math.isinf(ends.right)

    @property
    def instructions(self) -> int | None:
        return None if self.is_fewbit else int(self.document["solution"]["price"]["instructions"])

    @cached_property
    def printed(self) -> tuple[str, str] | None:
        """The FewBit paper's value of the same error, as printed, and for what sort of table; None without one."""
        options, name = self.document["options"], self.activation.name
        if not self.is_fewbit or own_params(self.activation):
            return None
        if (options["weight"], options["domain"]) != ("uniform", [-10.0, 10.0]):
            return None
        value = printed(name, options["bits"])
        return None if value is None else (value, "for |x|" if name in EVEN else "in contiguous intervals")


@dataclass(frozen=True)
class Shelf:
    """All fits of one function."""

    name: str
    fits: tuple[Fit, ...]

    @property
    def two_bits(self) -> Fit | None:
        """The first table of 2 bits, for small pictures."""
        return next((fit for fit in self.fits if fit.is_fewbit and fit.kept_bits == 2), None)

    @property
    def activation(self) -> Activation:
        return self.fits[0].activation

    @property
    def torch(self) -> str | None:
        """The same function in PyTorch."""
        row = CATALOGUE.get(self.name)
        if row is None or row.torch is None:
            return None
        options = "".join(f", {key}={value!r}" for key, value in row.torch_options.items())
        return f"torch.nn.functional.{row.torch}(x{options})"


def shelves(root: Path | None = None) -> list[Shelf]:
    """The fits below root (default: the packaged ones), function by function.

    By name, but last come those whose f' is a step function, which few bits hold exactly.

    Raises `CoefficientError` or `InputError` for a file that is not valid, OSError for one that cannot be read.
    """
    entries = available(root)
    found = [
        Shelf(name, _fits([entry for entry in entries if entry.function == name]))
        for name in sorted({entry.function for entry in entries})
    ]
    return sorted(found, key=lambda shelf: shelf.activation.step_values is not None)


def _fits(entries: Sequence[Entry]) -> tuple[Fit, ...]:
    """Few-bit tables by bits, then formulas by dtype, the paper's last."""
    known: dict[tuple[Any, ...], Activation] = {}
    fits = []
    for entry in entries:
        document = load(entry.path)
        function = document["function"]
        key = (function["expr"], *sorted(function["params"].items()))
        activation = known.setdefault(key, stored_function(function)) if key not in known else known[key]
        fits.append(Fit(entry, entry.path.read_text(encoding="utf-8"), document, activation))
    papers = {fit.document["options"]["dtype"]: fit.error for fit in fits if fit.is_published}
    fits = [_with_paper(fit, papers) for fit in fits]
    return tuple(sorted(fits, key=_place))


def _with_paper(fit: Fit, papers: dict[str, float]) -> Fit:
    if fit.is_fewbit or fit.is_published:
        return fit
    return Fit(fit.entry, fit.text, fit.document, fit.activation, papers.get(fit.document["options"]["dtype"]))


def _place(fit: Fit) -> tuple[Any, ...]:
    options = fit.document["options"]
    kind = options["bits"] if fit.is_fewbit else DTYPES.index(options["dtype"])
    return (not fit.is_fewbit, fit.is_published, kind, fit.entry.name, fit.entry.version)
