"""The stored fits, as they are read from their files, and what the page says of each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from coefficients.store import Entry, available, load
from fitting.activations import Activation
from fitting.activations.catalogue import CATALOGUE
from fitting.fewbit.table1 import EVEN, printed
from fitting.invact.engines.papers import ENGINE as PUBLISHED
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
    def kind(self) -> str:
        """Bits or dtype."""
        options = self.document["options"]
        if self.is_fewbit:
            return counted(options["bits"], "bit")
        return str(options["dtype"]) + (f" and {counted(options['bits'], 'bit')}" if "bits" in options else "")

    @property
    def manner(self) -> str:
        """The options that are not defaults, as in the file's name after method and kind: norm, domain=-4.0_4.0."""
        options = self.document["options"]
        usual = f"invact-{options.get('dtype')}{'-2bit' * ('bits' in options)}"
        usual = f"fewbit-{options['bits']}bit" if self.is_fewbit else usual
        return self.entry.name.removeprefix(usual).removeprefix(f"-{PUBLISHED}").removeprefix("-")

    @property
    def setting(self) -> str:
        """Kind and manner: 3 bits, norm."""
        return ", ".join(filter(None, (self.kind, self.manner)))

    @property
    def label(self) -> str:
        """A label that no other fit of the shelf has."""
        return f"{self.method}, {self.setting}" + f", version {self.entry.version}" * (self.entry.version > 1)

    @property
    def kept_bits(self) -> int:
        """Bits kept for backward for each element, besides an output that is kept anyway."""
        if self.is_fewbit:
            return int(self.document["options"]["bits"])
        return int(self.document["options"].get("bits", len(self.document["solution"]["branches"]) - 1))

    @property
    def error(self) -> float:
        """∫(f' - q)²w, or the root of the mean square."""
        return float(self.document["error"]["l2_squared" if self.is_fewbit else "rms"])

    @property
    def least(self) -> float:
        """The least error of any table of as many levels, or of any formula of the stored output."""
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
    """All fits of one function with the same parameters; `id`: a name that no other shelf has."""

    id: str
    fits: tuple[Fit, ...]

    @property
    def name(self) -> str:
        return self.fits[0].entry.function

    @property
    def is_usual(self) -> bool:
        """Whether this is the catalogue's function, with its own parameters."""
        return self.name in CATALOGUE and not own_params(self.activation)

    @property
    def title(self) -> str:
        """The name, and the parameters that are not as by default: softplus, beta = 2."""
        own = own_params(self.activation) if self.name in CATALOGUE else {}
        return ", ".join([self.name, *(f"{key} = {value:g}" for key, value in own.items())])

    @property
    def two_bits(self) -> Fit | None:
        """The first table of 2 bits, for small pictures."""
        return next((fit for fit in self.fits if fit.is_fewbit and fit.kept_bits == 2), None)

    @property
    def activation(self) -> Activation:
        return self.fits[0].activation

    @property
    def torch(self) -> str | None:
        """The same function in PyTorch; None where it has none, and for other parameters than the usual ones."""
        row = CATALOGUE[self.name] if self.is_usual else None
        if row is None or row.torch is None:
            return None
        options = "".join(f", {key}={value!r}" for key, value in row.torch_options.items())
        return f"torch.nn.functional.{row.torch}(x{options})"


def shelves(root: Path | None = None) -> list[Shelf]:
    """The fits below root (default: the packaged ones), function by function, each with its parameters by itself.

    By name, but last come those whose f' is a step function, which few bits hold exactly.

    Raises `CoefficientError` or `InputError` for a file that is not valid, OSError for one that cannot be read.
    """
    by_function: dict[str, dict[tuple[Any, ...], list[Fit]]] = {}
    for entry in available(root):
        document = load(entry.path)
        function = document["function"]
        shelf = by_function.setdefault(entry.function, {}).setdefault(
            (function["expr"], *sorted(function["params"].items())), []
        )
        activation = shelf[0].activation if shelf else stored_function(function)
        shelf.append(Fit(entry, entry.path.read_text(encoding="utf-8"), document, activation))
    # Further shelves of a function: minus signs are in no function's name.
    made = [
        Shelf(f"{name}-{i}" if i > 1 else name, _arranged(fits))
        for name, like in sorted(by_function.items())
        for i, fits in enumerate(sorted(like.values(), key=_unusual), 1)
    ]
    return sorted(made, key=lambda shelf: shelf.activation.step_values is not None)


def _unusual(fits: Sequence[Fit]) -> tuple[bool, str]:
    """A sort key: shelves with the usual parameters come first."""
    return bool(own_params(fits[0].activation)), fits[0].entry.name


def _arranged(fits: Sequence[Fit]) -> tuple[Fit, ...]:
    """Few-bit tables by bits, then formulas by dtype, the paper's last; formulas get the paper's error."""
    papers = {fit.kind: fit.error for fit in fits if fit.is_published}
    informed = (fit if fit.is_fewbit or fit.is_published else replace(fit, paper=papers.get(fit.kind)) for fit in fits)
    return tuple(sorted(informed, key=_place))


def _place(fit: Fit) -> tuple[Any, ...]:
    options = fit.document["options"]
    kind = options["bits"] if fit.is_fewbit else DTYPES.index(options["dtype"])
    return (not fit.is_fewbit, fit.is_published, kind, fit.entry.name, fit.entry.version)
