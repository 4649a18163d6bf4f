"""Values of a captured call that are held weakly, and whether they are still what they were."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from actfit.kernels import private


class Held:
    """Tensors, held weakly, and sizes; `state` tells of a value what changes with it, and None of no tensor."""

    def __init__(self, values: Sequence[Any], state: Callable[[Any], Any]) -> None:
        self._state, self._states = state, list(map(state, values))
        self._values = [private.TensorWeakRef(x) if isinstance(x, Tensor) else (lambda x=x: x) for x in values]

    def values(self) -> list[Any]:
        """They; None in place of a tensor that is gone."""
        return [value() for value in self._values]

    def are_as_before(self, values: Iterable[Any]) -> bool:
        """Whether these, as `values` gave them, are all there, and none was changed."""
        return list(map(self._state, values)) == self._states


def version(x: Any) -> Any:
    """How often a tensor was changed in place, but through `.data`; a size itself."""
    if not isinstance(x, Tensor):
        return x
    return -1 if x.is_inference() else x._version
