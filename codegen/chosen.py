"""Which kernel a function and a method run: what `kernels.kernel` and `kernels.launch` choose, read from their files.

codegen may not import `kernels`, and reading needs no torch. A test holds that both choose the same.
"""

import ast
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from codegen.steps import MAX_BITS
from codegen.subject import DTYPES
from coefficients import load
from fitting.errors import InputError, nearest

KERNELS = Path(__file__).parents[1] / "kernels"
TEMPLATE = KERNELS / "template.py"
METHODS = ("forward-ad", "fewbit", "invact", "invact-precision-bit")
DIRECTIONS = ("forward", "backward")
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_SAVES = {"forward-ad": "slope", "invact": "side", "invact-precision-bit": "precision-bit"}


@dataclass(frozen=True)
class Facts:
    """What `kernels/generated/<function>_torch.py` says of a function, and what is defined in `_triton.py`."""

    sides: int
    minimum: float | None
    parameters: int
    tables: dict[int, int]  # bits asked for -> bits stored
    defined: frozenset[str]


@dataclass(frozen=True)
class Choice:
    """One kernel, forward and backward."""

    function: str
    method: str
    bits: int  # asked for; 0 but for fewbit
    dtype: str

    @cached_property
    def facts(self) -> Facts:
        """Of the function."""
        return facts(self.function)

    @property
    def path(self) -> Path:
        """The file with its element-wise functions."""
        return KERNELS / "generated" / f"{self.function}_triton.py"

    @property
    def saves(self) -> str:
        """As `kernels.template` names it."""
        if self.method == "fewbit":
            return "codes" if self.bits <= MAX_BITS else "table"
        if self.method == "invact" and self.facts.sides == 1:
            return "output"
        return _SAVES[self.method]

    @property
    def stored_bits(self) -> int:
        """Bits an element that are packed."""
        return self.facts.tables[self.bits] if self.method == "fewbit" else int(self.saves == "side")

    @property
    def steps(self) -> int:
        """Of the search in a table in memory."""
        if self.saves != "table":
            return 0
        borders: list[float] = load(self.function, f"fewbit-{self.bits}bit")["solution"]["borders"]
        return len(borders).bit_length()

    @property
    def names(self) -> tuple[str, str, str]:
        """FORWARD, SAVE and SLOPE."""
        forward = self._of_dtype("forward")
        match self.saves:
            case "slope":
                return forward, self._of_dtype("derivative"), forward
            case "codes":
                return forward, f"code_{self.bits}bit", f"level_{self.bits}bit"
            case "table":
                return forward, forward, forward
        return forward, "side" if "side" in self.facts.defined else forward, self._of_dtype("slope")

    def _of_dtype(self, name: str) -> str:
        names = (f"{name}_{self.dtype}", f"{name}_16bit", name)
        return next(one for one in names if one in self.facts.defined)

    def moved(self, direction: str) -> float:
        """Bytes an element, read and written: forward x, y and what is saved; backward grad, that and dx.

        A table in memory is not counted: it stays in the cache.
        """
        tensors = {
            ("forward", "slope"): 3,
            ("backward", "codes"): 2,
            ("backward", "table"): 2,
            ("backward", "slope"): 3,
        }.get((direction, self.saves), 2 if direction == "forward" else 3)
        return tensors * BYTES[self.dtype] + self.stored_bits / 8


def choose(function: str, method: str, bits: int, dtype: str) -> Choice:
    """The kernel; raises `InputError` for what there is none of. bits: 0 but for fewbit."""
    known = sorted(path.stem.removesuffix("_triton") for path in (KERNELS / "generated").glob("*_triton.py"))
    if function not in known:
        raise InputError(
            f"function must be one that kernels were emitted for, got {function!r}; {nearest(function, known)}"
        )
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if dtype not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    choice = Choice(function, method, bits, dtype)
    tables = choice.facts.tables
    if method == "fewbit" and bits not in tables:
        raise InputError(f"bits must be one of {', '.join(map(str, tables))} for {function}, got {bits!r}")
    if method != "fewbit" and bits:
        raise InputError(f"bits must be left out, or 0, with method {method}, got {bits!r}; they go with fewbit")
    if method == "invact-precision-bit" and choice.facts.sides == 1:
        raise InputError(f"method must be invact for {function}, whose output alone tells f', got {method!r}")
    return choice


@cache
def facts(function: str) -> Facts:
    """Read from the function's two emitted modules, as text."""
    folder = KERNELS / "generated"
    plain = _values(ast.parse((folder / f"{function}_torch.py").read_text(encoding="utf-8")))
    triton = ast.parse((folder / f"{function}_triton.py").read_text(encoding="utf-8"))
    return Facts(
        sides=int(plain["SIDES"]),
        minimum=ast.literal_eval(plain["MINIMUM"]),
        parameters=len(ast.literal_eval(plain["PARAMETERS"])),
        tables=ast.literal_eval(plain["TABLES"]),
        defined=frozenset(node.name for node in triton.body if isinstance(node, ast.FunctionDef)),
    )


def _values(module: ast.Module) -> dict[str, str]:
    """The text of each constant at the top of a module."""
    found = {}
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = ast.unparse(value)
    return found
