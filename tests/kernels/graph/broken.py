"""Models whose forwards PyTorch cannot capture whole, or in one graph."""

import warnings
from collections.abc import Callable

from torch import Tensor, nn

from tests.kernels.graph.nets import tower
from tests.kernels.saved import bytes_allocated

COUNTS = 64  # bytes of a few numbers that autograd keeps
CANNOT = "ignore:.*cannot be captured whole"


def kept(call: Callable[..., Tensor], x: Tensor) -> int:
    """Bytes that a call leaves allocated besides its result."""
    result, left = bytes_allocated(call, x)
    return left - result.nbytes


class Towers(nn.Module):
    """Two parts, which a forward calls in a way of its own, or by other methods."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = tower(256), tower(256)

    def encode(self, x: Tensor) -> Tensor:
        made: Tensor = self.first(x)
        return made

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.second(self.encode(x)).sin()
        return made


class Trying(Towers):
    def forward(self, x: Tensor) -> Tensor:
        try:
            x = self.first(x)
            print(end="")
        except ValueError:
            return x
        return self.second(x).sin()


class Silencing(Towers):
    def forward(self, x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            x = self.first(x)
            print(end="")
            return self.second(x).sin()


class Looping(Towers):
    def forward(self, x: Tensor) -> Tensor:
        for part in (self.first, self.second):
            x = part(x)
            print(end="")
        return x.sin()


class Listing(Towers):
    def forward(self, x: Tensor) -> Tensor:
        first, second = [part(x) for part in (self.first, self.second) if print(end="") is None]
        return (first + second).sin()


class Inside(Towers):
    """One part of it cannot be captured, and the other can."""

    def __init__(self) -> None:
        super().__init__()
        self.second = Trying()  # type: ignore[assignment]


class Rest(Towers):
    """PyTorch could capture what comes before the `with`, and leave the rest without a word."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        with warnings.catch_warnings():
            x = self.second(x)
            print(end="")
        return x


class Printing(Towers):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        print(end="")
        made: Tensor = self.second(x)
        return made


class Deep(nn.Module):
    """Parts that PyTorch captures in graphs of their own, as a number is read in each."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = Reading(), tower(256)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.inner(x).exp())
        return made


class Reading(Towers):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second(x * float(x.detach().mean() > 0)).sigmoid()
