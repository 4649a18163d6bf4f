"""Our modules as trees, for rules of the house."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What codegen may know of the runtime: methods, functions and the text of the kernels, none of which needs torch.
TORCH_FREE = tuple(
    f"actfit.kernels.{name}" for name in ("methods", "errors", "engine.templates", "generated.functions")
)
# package -> what it may import of ours, besides itself
ALLOWED = {
    "coefficients": (),
    "fitting": ("actfit.coefficients",),
    "codegen": (
        *(f"actfit.fitting.{name}" for name in ("activations", "errors", "options")),
        "actfit.coefficients",
        *TORCH_FREE,
    ),
    "kernels": ("actfit.coefficients",),
    "actfit": tuple(f"actfit.{name}" for name in ("coefficients", "fitting", "codegen", "kernels", "nn", "functional")),
}
OURS = {*ALLOWED, "benchmarks", "notebooks", "tests"}


def top(name: str) -> str:
    """The folder of a dotted name: folders of packages are parts of `actfit`."""
    first, _, rest = name.partition(".")
    second = rest.partition(".")[0]
    return second if first == "actfit" and second in ALLOWED else first


@dataclass(frozen=True)
class Module:
    name: str  # dotted; a package goes by the name of its folder
    tree: ast.Module
    is_package: bool = False

    @property
    def top(self) -> str:
        """The folder that it is in."""
        return top(self.name)


@cache
def read_modules(root: Path, folders: Iterable[str] = tuple(ALLOWED)) -> list[Module]:
    """Every module of our packages, or of other folders, under root."""
    modules = []
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        *folders, stem = path.relative_to(root).with_suffix("").parts
        is_package = stem == "__init__"
        parts = folders if is_package else [*folders, stem]
        name = ".".join(["actfit"] * (parts[0] in ALLOWED and parts[0] != "actfit") + parts)
        modules.append(Module(name, ast.parse(path.read_text("utf-8"), str(path)), is_package))
    return modules


def module_of(name: str, source: str) -> Module:
    return Module(name.removesuffix(".__init__"), ast.parse(source), name.endswith(".__init__"))
