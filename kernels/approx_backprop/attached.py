"""Codes attached to tensors: the code that a norm saved of its result serves the layers after it, too.

A norm attaches the code of its result to that tensor, as an attribute. A ReLU of such a tensor adds a bit for the
sign, and layers that take the norm's or the ReLU's result save the attached code. So the tensor is saved once, however
modules are combined and whatever else uses the tensor.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.approx_backprop.encoding import Encoded, Encoding
from kernels.methods.compressed import Compressed
from kernels.torch_state import saving_hooks


@dataclass(frozen=True)
class Origin:
    """The layer that attaches a code.

    Attributes
    ----------
    name
        Its name in the model.
    trusted
        Whether its result counts as unchanged under torch.compile, where in-place changes cannot be seen.
    """

    name: str = ""
    trusted: bool = True


UNNAMED = Origin()


@dataclass(frozen=True)
class AttachedCode:
    """The code of a tensor, and the layer that attached it."""

    encoding: Encoding
    encoded: Encoded
    origin: Origin = Origin()

    def rectified(self, slope: float, signs: Tensor | None) -> "AttachedCode":
        """The code of a ReLU's result for the tensor."""
        encoding, encoded = replace(self.encoding, slope=slope), self.encoded._replace(signs=signs)
        return AttachedCode(encoding, encoded, self.origin)


_changed_in_place: list[set[str]] = []  # a set for each active `watching`


def attach_code(x: Tensor, code: AttachedCode) -> Tensor:
    """x with its code attached."""
    if not torch.compiler.is_compiling():
        x._actfit_code = x._version, saving_hooks(), code
    elif code.origin.trusted:
        x = x.view_as(x)  # Dynamo supports attributes only on some tensors
        x._actfit_code = None, None, code
    return x


def attached_code(x: Tensor, method: Compressed) -> AttachedCode | None:
    """The code attached to x, if it serves the method and x was not changed in place since.

    A code is not used across the border of a checkpointed region: the region is computed twice, the second time from
    an input without a code. The border shows in a change of the hooks on saved tensors.
    """
    attached = getattr(x, "_actfit_code", None)
    if attached is None:
        return None
    version, hooks, code = attached
    if torch.compiler.is_compiling():
        unchanged = version is None  # made in this graph
    else:
        unchanged = version == x._version
        for names in () if unchanged or version is None else _changed_in_place:
            names.add(code.origin.name)
        unchanged = unchanged and hooks == saving_hooks()
    return code if unchanged and code.encoding.method.serves(method) else None


@contextmanager
def watching() -> Iterator[set[str]]:
    """Collects the names of layers whose results were changed in place before their codes were asked for."""
    names: set[str] = set()
    _changed_in_place.append(names)
    try:
        yield names
    finally:
        _changed_in_place.pop()
