"""Replaces a module's `forward` by an attribute of the instance, which hides that of the class."""

import inspect
from types import CodeType
from typing import Any, Self

from torch import nn

from kernels.errors import KernelError

SCRIPT = (
    "model must be stock for torch.jit.script, which compiles the code of each forward, got one with parts of ours;"
    " call report.revert() or unwrap first, or use torch.compile or torch.export"
)


class ScriptError(KernelError, AttributeError):
    """Raised when torch.jit.script asks for code; an AttributeError, as others only check whether the name exists."""


class Options(nn.Module):
    """Holds options of a `Forwarding`.

    torch.compile treats numbers in a module's attributes as constants, and guards them. Numbers of other objects become
    symbols if shapes are dynamic or a second object has other numbers; options cannot be checked as symbols.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.__dict__.update(options)


class Forwarding:
    """Callable instead of the forward of `module`, with the same signature.

    Several can be installed in one module: each calls the one before it, and they are removed in reverse order. They
    are copied and pickled with the module.
    """

    def __init__(self, module: nn.Module, **options: Any) -> None:
        self.module, self.options = module, Options(**options)
        self.before = vars(module).get("forward")

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the forward that it replaces."""
        if self.before is not None:
            return self.before(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def install(self) -> Self:
        """Set it as the forward of the module."""
        self.module.forward = self
        return self

    def remove(self, name: str) -> None:
        """Restore the forward before it. Raises KernelError, with `name`, if the forward was replaced since."""
        if vars(self.module).get("forward") is not self:
            raise KernelError(f"{name} must be as convert left it, but its forward was replaced since")
        del self.module.forward
        if self.before is not None:
            self.module.forward = self.before

    @property
    def __code__(self) -> CodeType:
        code: CodeType = inspect.unwrap(type(self.module).forward).__code__
        return code

    @property
    def __globals__(self) -> Any:
        raise ScriptError(SCRIPT)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(type(self.module).forward.__get__(self.module))


def installed_forwards(module: nn.Module) -> tuple[list[Forwarding], bool]:
    """The `Forwarding`s installed in a module, outermost first; and whether another replaced forward is below them."""
    forwards: list[Forwarding] = []
    forward = vars(module).get("forward")
    while isinstance(forward, Forwarding):
        forwards.append(forward)
        forward = forward.before
    return forwards, forward is not None
