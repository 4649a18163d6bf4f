"""The stored fits and the properties that the page shows: a class for each method."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from actfit.coefficients.store import Entry
from actfit.fitting.activations import Activation
from actfit.fitting.fewbit.table1 import EVEN, printed
from actfit.fitting.invact.engines.papers import ENGINE as PUBLISHED
from actfit.fitting.provenance import own_params
from actfit.fitting.words import counted

DTYPES = ("bfloat16", "float16", "float32")
# Of tables on cards, and of joint codes with texts to copy. Texts have a line for each interval, up to 512: those of 5
# to 8 bits would be two thirds of the page, which phones must load. Programs read them from the files.
MOST_BITS = 4


@dataclass(frozen=True)
class Fit(ABC):
    """One coefficient file: its entry, its text, its parsed document, and its function.

    `paper`: the error of the paper's fit of the same kind, or None.
    """

    entry: Entry
    text: str
    document: dict[str, Any]
    activation: Activation
    paper: float | None = None

    method: ClassVar[str]  # its name on the page
    group: ClassVar[str]  # the title of the buttons of such fits
    rank: ClassVar[int]  # the order of these buttons
    error_key: ClassVar[str]  # the key of the error that the fit minimises
    least_key: ClassVar[str]  # the key of the least possible error

    @property
    def place(self) -> str:
        """The file's path below the root of the coefficients."""
        return f"{self.entry.function}/{self.entry.path.name}"

    @property
    def id(self) -> str:
        """A name that no other fit on the page has."""
        return f"{self.entry.function}-{self.entry.path.stem}"

    @property
    @abstractmethod
    def kind(self) -> str:
        """Bits or dtype."""

    @property
    def short_kind(self) -> str:
        """The kind on a button."""
        return self.kind

    @property
    @abstractmethod
    def kind_rank(self) -> int:
        """The order of the kind within the method."""

    @property
    @abstractmethod
    def usual_name(self) -> str:
        """The file's name if all options are defaults."""

    @property
    @abstractmethod
    def kept_bits(self) -> int:
        """Bits saved for backward for each element, besides an output that is saved anyway."""

    @property
    def manner(self) -> str:
        """The options that are not defaults, as in the file's name after method and kind: norm, domain=-4.0_4.0."""
        return self.entry.name.removeprefix(self.usual_name).removeprefix("-")

    @property
    def setting(self) -> str:
        """Kind and manner: 3 bits, norm."""
        return ", ".join(filter(None, (self.kind, self.manner)))

    @property
    def label(self) -> str:
        """A label that no other fit of the shelf has."""
        return f"{self.method}, {self.setting}" + f", version {self.entry.version}" * (self.entry.version > 1)

    @property
    def error(self) -> float:
        """The error that the fit minimises: an integral of squares, or a root mean square."""
        return float(self.document["error"][self.error_key])

    @property
    def least(self) -> float:
        """The least possible error of a table of as many levels, or of a formula of the stored output."""
        return float(self.document["error"][self.least_key])

    @property
    def above(self) -> float | None:
        """How far the error is above the least, relative to that; None if the least is 0 and the error is not."""
        if self.error == self.least:
            return 0.0
        return None if self.least == 0 else (self.error - self.least) / self.least

    @property
    def largest(self) -> float | None:
        """The largest error, or None if the file does not have it."""
        value = self.document["error"].get("linf")
        return None if value is None else float(value)

    # Properties of some methods only.

    @property
    def printed(self) -> tuple[str, str] | None:
        """The FewBit paper's printed value of the same error, and its kind of table; None if there is none."""
        return None

    @property
    def shares(self) -> tuple[float, float] | tuple[None, None]:
        """Relative root mean square errors of f' and of f."""
        return None, None

    @property
    def proven(self) -> float | None:
        """The proven bound of |q - g| over all branches, or None."""
        return None

    @property
    def instructions(self) -> int | None:
        """GPU instructions for each element."""
        return None


class Coded(Fit):
    """A table whose code is saved for backward: few-bit tables and joint codes."""

    least_key = "lower_bound"

    @property
    def kept_bits(self) -> int:
        return int(self.document["options"]["bits"])

    @property
    def gap(self) -> float:
        """How far the proven bound is below the error, in parts of the error."""
        return float(self.document["error"]["gap"])

    @property
    def kind(self) -> str:
        return counted(self.kept_bits, "bit")

    @property
    def short_kind(self) -> str:
        return str(self.kept_bits)

    @property
    def kind_rank(self) -> int:
        return self.kept_bits

    @property
    def usual_name(self) -> str:
        return f"{self.document['method']}-{self.kept_bits}bit"


class FewBit(Coded):
    """Levels of f' on intervals of x."""

    method = "few-bit"
    group = "Few bits"
    rank = 0
    error_key = "l2_squared"

    @property
    def printed(self) -> tuple[str, str] | None:
        options, name = self.document["options"], self.activation.name
        if own_params(self.activation) or (options["weight"], options["domain"]) != ("uniform", [-10.0, 10.0]):
            return None
        value = printed(name, self.kept_bits)
        return None if value is None else (value, "for |x|" if name in EVEN else "in contiguous intervals")


class Joint(Coded):
    """Levels of f' and of f on the same intervals of x."""

    method = "joint"
    group = "One code for f′ and f"
    rank = 1
    error_key = "total"

    @property
    def output_weight(self) -> float:
        """λ: the weight of the squared error of f relative to that of f'."""
        return float(self.document["options"]["lambda"])

    @property
    def shares(self) -> tuple[float, float]:
        error = self.document["error"]
        return float(error["derivative_share"]), float(error["output_share"])


class InvAct(Fit):
    """Formulas that compute f' from the output."""

    method = "InvAct"
    group = "From the output"
    rank = 2
    error_key = "rms"
    least_key = "floor_rms"

    @property
    def kind(self) -> str:
        options = self.document["options"]
        return str(options["dtype"]) + (f" and {counted(options['bits'], 'bit')}" if "bits" in options else "")

    @property
    def kind_rank(self) -> int:
        return DTYPES.index(self.document["options"]["dtype"])

    @property
    def usual_name(self) -> str:
        options = self.document["options"]
        return f"invact-{options['dtype']}" + (f"-{options['bits']}bit" if "bits" in options else "")

    @property
    def kept_bits(self) -> int:
        return int(self.document["options"].get("bits", len(self.document["solution"]["branches"]) - 1))

    @property
    def proven(self) -> float | None:
        bounds = self.document["error"]["bound"]
        return None if None in bounds else max(map(float, bounds))

    @property
    def is_relative(self) -> bool:
        """Whether the bound is relative to max(1, |g|), as for an unbounded g."""
        ends = self.activation.derivative_limits
        return math.isinf(ends.left) or math.isinf(ends.right)

    @property
    def instructions(self) -> int:
        return int(self.document["solution"]["price"]["instructions"])


class Published(InvAct):
    """The InvAct paper's own formulas."""

    method = "InvAct, the paper’s"
    group = "The paper’s"
    rank = 3

    @property
    def usual_name(self) -> str:
        return f"{super().usual_name}-{PUBLISHED}"
