"""Plans for a model, where its parts are compiled by themselves: layer by layer, or as FSDP2 cuts it."""

from kernels.methods.every_tensor import EveryTensor
from kernels.methods.planned import Planned


class PlannedParts(Planned):
    """As `Planned`; in a part that is compiled by itself, a site gets the most bits of those that it may be.

    Names in such a graph begin at the part: "gate: aten.mm" may be "layers.0.gate: aten.mm", or that of any other
    layer, for all of which the part is compiled once. Of the part itself, ": aten.add", only the operation is known.
    """

    def at(self, site: str) -> EveryTensor | None:
        """What codes the tensor at a site; None: it stays as it is."""
        found = self.known(site)
        if not found:
            return super().at(site)
        return None if None in found else EveryTensor(max(bits for bits in found if bits is not None), self.rounding)

    def known(self, site: str) -> tuple[int | None, ...]:
        """The bits of all sites of the plan that this one may be."""
        if site in self.at_site:
            return (self.at_site[site],)
        module, _, operation = site.rpartition(": ")
        ends = f".{module}: {operation}" if module else f": {operation}"
        return tuple(bits for name, bits in self.at_site.items() if f".{name}".endswith(ends))
