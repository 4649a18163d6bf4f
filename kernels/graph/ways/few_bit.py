"""FewBit (Novikov et al., 2023): forward keeps a code of x; its level in backward approximates f'."""

from dataclasses import dataclass
from typing import ClassVar

from actfit.kernels.graph.ways.way import Way
from actfit.kernels.methods.few_bit import FewBit


@dataclass(frozen=True)
class FewBitDerivative(Way):
    """A certified table's code of x in `bits` bits."""

    method: ClassVar[str] = FewBit.name
    saves: ClassVar[str] = "a code of x, packed"
    error: ClassVar[str] = "the table's"

    @classmethod
    def policies(cls) -> dict[str, Way]:
        return {f"fewbit-{bits}": cls(bits) for bits in FewBit.widths}
