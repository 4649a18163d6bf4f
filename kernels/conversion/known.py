"""Functions of the catalogue as they stand in a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernels.methods.functions import FUNCTIONS

# Read off beforehand: what torch.compile traces must not import.
DEFAULTS: dict[str, dict[str, float]] = {name: dict(info.parameters) for name, info in FUNCTIONS.items()}


@dataclass(frozen=True)
class Known:
    """A function of the catalogue, with its parameters."""

    function: str
    params: Mapping[str, float] = field(default_factory=dict)

    @property
    def called(self) -> str:
        """By the name that torch's function has, which is one for both kinds of GELU."""
        return self.function.removesuffix("_tanh")
