"""Plans for models whose parts are compiled separately: layer by layer, or as FSDP2 cuts them."""

from actfit.kernels.methods.every_tensor import EveryTensor
from actfit.kernels.methods.planned import Planned


class PlannedParts(Planned):
    """As `Planned`; in a separately compiled part, a site gets the most bits of all planned sites it may stand for.

    Names in such a graph begin at the part: "gate: aten.mm" may be "layers.0.gate: aten.mm", or that of another layer,
    as the part is compiled once for all. In the part itself, ": aten.add", only the operation is known.
    """

    def at(self, site: str) -> EveryTensor | None:
        """The method for the tensor at a site; None: it stays whole."""
        candidates = self.known(site)
        if not candidates:
            return super().at(site)
        return (
            None
            if None in candidates
            else EveryTensor(max(bits for bits in candidates if bits is not None), self.rounding)
        )

    def known(self, site: str) -> tuple[int | None, ...]:
        """The bits of all planned sites that this site may stand for."""
        if site in self.at_site:
            return (self.at_site[site],)
        module, _, operation = site.rpartition(": ")
        ends = f".{module}: {operation}" if module else f": {operation}"
        return tuple(bits for name, bits in self.at_site.items() if f".{name}".endswith(ends))
