"""compress by a plan: for each tensor that a model saves, the plan has the bits, or saves it as it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from actfit.kernels.methods.every_tensor import BITS, EveryTensor

WIDTHS = tuple(BITS)  # bits that a plan may give to a tensor


def in_model(module: str, site: str) -> str:
    """The name in the model of a site in a module; the model's own name is ""."""
    return f"{module}{site}" if site.startswith(":") or not module else f"{module}.{site}"


@dataclass(frozen=True)
class Planned(EveryTensor):
    """Codes of as many bits as a plan says at each site; `bits` are for sites that are not in the plan."""

    name: ClassVar[str] = "plan"

    # Bits by the names of sites, see `actfit.kernels.compression.cut.site_names`; None: the tensor is saved as it is.
    at_site: Mapping[str, int | None] = field(default_factory=dict)

    def at(self, site: str) -> EveryTensor | None:
        """The method for the tensor at a site; None: it is saved as it is."""
        bits = self.at_site.get(site, self.bits)
        return None if bits is None else EveryTensor(bits, self.rounding)

    def under(self, module: str) -> "Planned":
        """The method for the sites in a module, by their names within it; the model's own name is ""."""
        if not module:
            return self
        within = (f"{module}.", f"{module}:")
        sites = {name: bits for name, bits in self.at_site.items() if name.startswith(within)}
        return replace(self, at_site={name.removeprefix(module).removeprefix("."): sites[name] for name in sites})

    def __hash__(self) -> int:
        return hash((self.bits, self.rounding, tuple(sorted(self.at_site.items(), key=str))))

    def __str__(self) -> str:
        return "as planned"
