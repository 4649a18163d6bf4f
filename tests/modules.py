"""Our modules as trees, for rules of the house."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What codegen may know of the runtime: methods and the text of the kernels, neither of which needs torch.
TORCH_FREE = ("kernels.methods", "kernels.errors", "kernels.engine.templates")
# package -> what it may import of ours, besides itself
ALLOWED = {
    "coefficients": (),
    "fitting": ("coefficients",),
    "codegen": ("fitting.activations", "fitting.errors", "coefficients", *TORCH_FREE),
    "kernels": ("coefficients",),
}
OURS = {*ALLOWED, "benchmarks", "notebooks", "tests"}


@dataclass(frozen=True)
class Module:
    name: str  # dotted; a package goes by the name of its folder
    tree: ast.Module
    is_package: bool = False

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


def read_modules(root: Path, folders: Iterable[str] = ALLOWED) -> list[Module]:
    """Every module of our packages, or of other folders, under root."""
    modules = []
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        *folders, stem = path.relative_to(root).with_suffix("").parts
        is_package = stem == "__init__"
        name = ".".join(folders if is_package else [*folders, stem])
        modules.append(Module(name, ast.parse(path.read_text("utf-8"), str(path)), is_package))
    return modules


def module_of(name: str, source: str) -> Module:
    return Module(name.removesuffix(".__init__"), ast.parse(source), name.endswith(".__init__"))
