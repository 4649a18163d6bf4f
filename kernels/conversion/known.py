"""Functions of the catalogue as they stand in a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernels.kernel import facts
from kernels.stock import FUNCTIONS

# Read off beforehand: what torch.compile traces must not import.
DEFAULTS: dict[str, dict[str, float]] = {name: dict(facts(name).PARAMETERS) for name in FUNCTIONS}
LIMITS: dict[str, dict[str, float]] = {name: dict(facts(name).LIMITS) for name in FUNCTIONS}


@dataclass(frozen=True)
class Known:
    """A function of the catalogue, with its parameters."""

    function: str
    params: Mapping[str, float] = field(default_factory=dict)

    @property
    def called(self) -> str:
        """By the name that torch's function has, which is one for both kinds of GELU."""
        return self.function.removesuffix("_tanh")
