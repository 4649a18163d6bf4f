"""What stands for a module's `forward` in the module itself: an attribute of the instance, which hides the class's."""

import inspect
from types import CodeType
from typing import Any

from torch import nn


class Forwarding:
    """Callable in place of the forward of `module`, and by inspection like it.

    It is copied and pickled with the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """What the forward that it stands for gives."""
        return type(self.module).forward(self.module, *args, **kwargs)

    @property
    def __code__(self) -> CodeType:
        code: CodeType = inspect.unwrap(type(self.module).forward).__code__
        return code

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(type(self.module).forward.__get__(self.module))
