"""InvAct (Novikov, Oseledets): f' from the output, which the next layer keeps anyway, and a bit for the branch of x."""

from dataclasses import dataclass
from typing import ClassVar

from actfit.kernels.graph.ways.way import Site, Way
from actfit.kernels.methods.from_output import FromOutput


@dataclass(frozen=True)
class FromOutputDerivative(Way):
    """y and a bit; with two bits also which way y was rounded. Monotone functions need none."""

    method: ClassVar[str] = FromOutput.name
    saves: ClassVar[str] = "y, and a bit or two an element"
    error: ClassVar[str] = "what y, rounded to its dtype, does not tell"

    @classmethod
    def policies(cls) -> dict[str, Way]:
        return {"invact": cls(1), "invact-2": cls(2)}

    def refuses(self, site: Site) -> str:
        if site.from_output:
            return "PyTorch takes the derivative from the output already"
        if not site.y_kept:
            return "nothing else in backward reads the output, which takes as much as the input"
        return ""
