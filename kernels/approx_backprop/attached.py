"""Codes that go with tensors: what a norm saved of its result serves the layers after it, too.

A norm attaches the code of its result to that tensor, as an attribute. A ReLU that is given such a tensor adds the bit
that tells the sign, and layers that are given it, or what a ReLU made of it, save the attached code. So however modules
are put together, and whoever else uses the tensor, it is saved once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.approx_backprop.encoding import Encoded, Encoding
from kernels.hooks import saving_hooks
from kernels.methods.compressed import Compressed


@dataclass(frozen=True)
class Origin:
    """The layer that attaches a code.

    Attributes
    ----------
    name
        In its model.
    trusted
        Whether its result is taken to stay as it is under torch.compile, where in-place changes cannot be seen.
    """

    name: str = ""
    trusted: bool = True


UNNAMED = Origin()


@dataclass(frozen=True)
class AttachedCode:
    """The code of a tensor, and who attached it."""

    encoding: Encoding
    encoded: Encoded
    origin: Origin = Origin()

    def rectified(self, slope: float, signs: Tensor | None) -> "AttachedCode":
        """The code of what a ReLU makes of the tensor."""
        encoding, encoded = replace(self.encoding, slope=slope), self.encoded._replace(signs=signs)
        return AttachedCode(encoding, encoded, self.origin)


_changed_in_place: list[set[str]] = []  # one for each `watching`


def attach_code(x: Tensor, code: AttachedCode) -> Tensor:
    """x with its code attached."""
    if not torch.compiler.is_compiling():
        x._actfit_code = x._version, saving_hooks(), code
    elif code.origin.trusted:
        x = x.view_as(x)  # Dynamo has attributes on some tensors only
        x._actfit_code = None, None, code
    return x


def attached_code(x: Tensor, method: Compressed) -> AttachedCode | None:
    """The code that goes with x, if it serves the method and x was not changed in place since.

    A code is taken neither into nor out of a checkpointed region: that is computed twice, and its input is then another
    tensor, which has no code. One can tell by the hooks that saved tensors go through.
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
    """The names of layers whose results are seen to be changed in place, and then asked for their codes."""
    names: set[str] = set()
    _changed_in_place.append(names)
    try:
        yield names
    finally:
        _changed_in_place.pop()
