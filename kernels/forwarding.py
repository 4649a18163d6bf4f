"""What stands for a module's `forward` in the module itself: an attribute of the instance, which hides the class's."""

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
    """What torch.jit.script gets that asks for code; an AttributeError, as others ask whether there is such a name."""


class Options(nn.Module):
    """Holds options of a `Forwarding`.

    torch.compile takes numbers that a module holds for constants, and guards them. Those of any other object become
    symbols where shapes are dynamic or a second object has other numbers: with symbols no options can be checked.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.__dict__.update(options)


class Forwarding:
    """Callable in place of the forward of `module`, and by inspection like it.

    Those of one module stack: each calls what stood there before it, and they are removed in reverse order. It is
    copied and pickled with the module.
    """

    def __init__(self, module: nn.Module, **options: Any) -> None:
        self.module, self.options = module, Options(**options)
        self.before = vars(module).get("forward")

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """What the forward that it stands for gives."""
        if self.before is not None:
            return self.before(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def install(self) -> Self:
        """Put it in the place of the forward that it was made for."""
        self.module.forward = self
        return self

    def remove(self, name: str) -> None:
        """Put back what stood there before. Raises KernelError, with `name`, where something else stands there now."""
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


def standing(module: nn.Module) -> tuple[list[Forwarding], bool]:
    """Those that stand for a module's forward, the outermost first; and whether one of others stands below them."""
    found: list[Forwarding] = []
    present = vars(module).get("forward")
    while isinstance(present, Forwarding):
        found.append(present)
        present = present.before
    return found, present is not None
