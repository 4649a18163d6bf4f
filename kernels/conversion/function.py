"""A function of the catalogue with its parameters in a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernels.methods.functions import FUNCTIONS

# Read at import: code that torch.compile traces must not import.
DEFAULTS: dict[str, dict[str, float]] = {name: dict(info.parameters) for name, info in FUNCTIONS.items()}


@dataclass(frozen=True)
class Function:
    """A function of the catalogue, with its parameters."""

    name: str
    parameters: Mapping[str, float] = field(default_factory=dict)

    @property
    def torch_name(self) -> str:
        """The name of torch's function; both kinds of GELU have the same."""
        return self.name.removesuffix("_tanh")
