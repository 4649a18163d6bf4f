"""One function by one method for one dtype, as a module that needs nothing of ours: what `codegen emit` prints."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from codegen import elements, template
from codegen.closed import CLOSED
from codegen.function import Function, quotable
from codegen.module import primitive_function, primitives
from codegen.options import METHODS, TARGETS
from codegen.overflow import check_numbers, notes_on_reach, with_limits
from codegen.steps import MAX_BITS, code_function, level_function, planes
from codegen.subject import DTYPES, File, Subject
from codegen.torch_primitives import TORCH
from coefficients.schema import Document
from fitting.errors import InputError

SAVES = {"forward-ad": "slope", "fewbit": "codes", "invact-precision-bit": "precision-bit"}
_PACKING = Path(__file__).resolve().parents[1] / "kernels" / "packing.py"


@dataclass(frozen=True)
class Request:
    """What to emit; `command` makes it again."""

    subject: Subject
    method: str
    dtype: str
    bits: int
    command: tuple[str, ...]

    def __post_init__(self) -> None:
        for what, value, known in (("method", self.method, METHODS), ("dtype", self.dtype, DTYPES)):
            if value not in known:
                raise InputError(f"{what} must be one of {', '.join(known)}, got {value!r}")

    @property
    def file(self) -> File | None:
        """The coefficient file that the method needs, or None."""
        subject = self.subject
        if self.method == "forward-ad":
            return None
        if self.method == "fewbit":
            tables = subject.fewbit()
            if self.bits not in tables:
                there = ", ".join(map(str, tables)) or "none"
                raise InputError(
                    f"bits must be one that {subject.name} has a table for ({there}), got {self.bits}; make one:"
                    " python -m fitting.fewbit, and give it by --coefficients"
                )
            if self.bits > MAX_BITS:
                raise InputError(
                    f"bits must be at most {MAX_BITS} for a module that stands alone, got {self.bits}: a larger"
                    " table is searched in memory, by kernels.functional"
                )
            return tables[self.bits]
        formulas = subject.invact()
        if not formulas and subject.name in CLOSED:
            self._check_limits()
            return None
        if self.dtype not in formulas:
            raise InputError(
                f"method {self.method} must have a formula for {subject.name} in {self.dtype}; make one: python -m"
                " fitting.invact, and give it by --coefficients"
            )
        return formulas[self.dtype]

    def _check_limits(self) -> None:
        for name, least in (CLOSED[self.subject.name].at_least or {}).items():
            value = self.subject.activation.params[name]
            if not value >= least:
                raise InputError(
                    f"{name} must be at least {least:g} for method {self.method}, got {value:g}: below, the output of"
                    f" {self.subject.name} does not tell f'; use forward-ad"
                )

    @property
    def saves(self) -> str:
        """As kernels/template.py names it. Raises `InputError` as `file` does."""
        _ = self.file
        side = elements.side(self.subject, "torch") if self.method.startswith("invact") else None
        if self.method == "invact-precision-bit" and side is None:
            raise InputError(
                f"method invact-precision-bit must have a side to store, got {self.subject.name}, whose output alone"
                " tells f'; use invact"
            )
        if self.method == "invact-precision-bit" and self.file is not None:
            left = self.file.document["solution"]["branches"][0]["y"]
            if None in left:
                raise InputError(
                    f"method invact-precision-bit must have a bounded left side, got {self.subject.name}: an infinity"
                    " with its lowest bit set is no number; use invact"
                )
        return SAVES.get(self.method, "output" if side is None else "side")


_SAVED = {
    "slope": "f'(x) itself, a tensor like x",
    "codes": "the code of x, packed: {bits} bit{s} an element",
    "side": "y, which the next layer keeps anyway, and the side of x, packed: 1 bit an element",
    "output": "y alone, which the next layer keeps anyway",
    "precision-bit": "y alone, with the side of x in its lowest bit",
}


def emit(request: Request, target: str) -> str:
    """The text of the module. Raises `InputError` for what cannot be emitted, with the reason."""
    if target not in TARGETS:
        raise InputError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    for expression in (request.subject.forward, request.subject.derivative):
        check_numbers(expression)
    return _triton(request) if target == "triton" else _torch(request)


def _solution(file: File | None) -> Document:
    return {} if file is None else file.document["solution"]


def _header(request: Request, notes: list[str]) -> str:
    subject, file = request.subject, request.file
    bits = planes(_solution(file)) if request.method == "fewbit" else 1
    saved = _SAVED[request.saves].format(bits=bits, s="" if bits == 1 else "s")
    lines = [
        f'"""{subject.name}(x) = {subject.activation.expr}',
        "",
        f"Method {request.method}, dtype {request.dtype}.",
        f"Backward is left with {saved}.",
        *notes,
        *([f"Coefficients: {quotable(file.origin)}"] if file is not None else []),
        f"Made by: {quotable(shlex.join(request.command))}",
        '"""',
    ]
    return "\n".join(lines)


def _functions(request: Request, target: str) -> tuple[list[Function], dict[str, str]]:
    """The element-wise functions, and which of them stand behind the template's names."""
    subject, saves = request.subject, request.saves
    forward = elements.forward(subject, target)
    if saves == "slope":
        return [forward, elements.derivative(subject, target)], {"FORWARD": "forward", "SAVE": "derivative"}
    if saves == "codes":
        solution = _solution(request.file)
        return (
            [forward, code_function("code", solution), level_function("level", solution)],
            {"FORWARD": "forward", "SAVE": "code", "SLOPE": "level"},
        )
    side = elements.side(subject, target)
    functions = [forward, *([side] if side is not None else []), elements.slope(subject, request.dtype, target)]
    return functions, {"FORWARD": "forward", "SAVE": "side", "SLOPE": "slope"}


def _triton(request: Request) -> str:
    functions, names = _functions(request, "triton")
    functions = with_limits(request.subject, request.dtype, "triton", functions)
    limits = notes_on_reach(request.subject, request.dtype, "triton", functions)
    called = set().union(*(function.calls for function in functions))
    found = primitives(called, request.dtype)
    free = request.subject.parameters
    if not free:
        functions = [function.without("params") for function in functions]
    constants = {
        "SAVES": request.saves,
        "BITS": planes(_solution(request.file)) if request.saves == "codes" else int(request.saves == "side"),
    }
    source = template.Template(template.FILE.read_text(encoding="utf-8"))
    kernels = [
        source.kernel(name, constants, names, params=bool(free)) for name in ("forward_kernel", "backward_kernel")
    ]
    texts = [primitive_function(name, one).text() for name, one in found.items()]
    texts += [function.text() for function in functions]
    texts += source.helpers("\n".join(kernels)) + kernels
    notes = ["Eight elements make a row; a program does ROWS of them: grid (ceil(n / (8*ROWS)),), ROWS = 128."]
    notes += [f"params: ({', '.join(free)},), by default {_defaults(request)}."] if free else []
    closed = CLOSED.get(request.subject.name)
    if free and closed is not None and closed.rounded and request.method == "invact":
        notes.append(f"They must be numbers of {request.dtype}, as y is compared with them.")
    notes += limits
    imports = "import triton\nimport triton.language as tl"
    return _header(request, notes) + f"\n\n{imports}\n\n\n" + "\n\n\n".join(texts) + "\n"


def _defaults(request: Request) -> str:
    return f"({', '.join(repr(value) for value in request.subject.activation.params.values())},)"


_TORCH_CODES = """\
BORDERS = {borders}
CODES = {codes}
LEVELS = {levels}


def code(x, params):
    \"\"\"The code of the interval of x; each is open below and closed above.\"\"\"
    borders = torch.tensor(BORDERS, dtype=torch.float64, device=x.device)
    return torch.tensor(CODES, dtype=torch.uint8, device=x.device)[torch.bucketize(x.double(), borders)]


def level(code):
    \"\"\"The level of a code.\"\"\"
    return torch.tensor(LEVELS, dtype=torch.float32, device=code.device)[code.int()]"""

_TORCH_PASSES = {
    "slope": ("derivative(wide, params).to(x.dtype)", "saved.to(wide.dtype)"),
    "codes": ("pack(code(wide, params).flatten(), {bits})", "level(unpack(saved, grad.numel())).view(grad.shape)"),
    "side": (
        "pack(side(wide, params).flatten().byte(), 1)",
        "slope(y.to(wide.dtype), unpack(saved, y.numel()).bool().view(y.shape), params)",
    ),
    "output": ("None", "slope(y.to(wide.dtype), params)"),
}


def _torch(request: Request) -> str:
    saves = request.saves
    if saves == "precision-bit":
        raise InputError("method invact-precision-bit must have target triton for a module that stands alone")
    solution = _solution(request.file)
    defaults = _defaults(request) if request.subject.parameters else "()"
    texts: list[str] = []
    if saves == "codes":
        texts.append(_TORCH_CODES.format(**{key: solution[key] for key in ("borders", "codes", "levels")}))
        functions = [elements.forward(request.subject, "torch")]
    else:
        functions, _ = _functions(request, "torch")
    functions = with_limits(request.subject, request.dtype, "torch", functions)
    limits = notes_on_reach(request.subject, request.dtype, "torch", functions)
    called = sorted(set().union(*(function.calls for function in functions)) & set(TORCH))
    texts += [primitive_function(name, TORCH[name], jit=False).text() for name in called]
    texts += [function.text() for function in functions]
    if saves in ("codes", "side"):
        texts.append(_PACKING.read_text(encoding="utf-8").partition("from torch import Tensor\n")[2].strip())
    saved, slope = (part.format(bits=planes(solution) if saves == "codes" else 1) for part in _TORCH_PASSES[saves])
    kept = "y, " if saves in ("side", "output") else ""
    result = "forward(x, params)" if elements.rounds_once(request.subject) else "forward(wide, params).to(x.dtype)"
    texts.append(
        f"def forward_pass(x, params={defaults}):\n"
        '    """y = f(x), and what backward needs besides."""\n'
        "    wide = x if x.dtype == torch.float64 else x.float()\n"
        f"    return {result}, {saved}"
    )
    texts.append(
        f"def backward_pass(grad, {kept}saved, params={defaults}):\n"
        '    """grad * f\'(x)."""\n'
        "    wide = grad if grad.dtype == torch.float64 else grad.float()\n"
        f"    return (wide * {slope}).to(grad.dtype)"
    )
    imports = "import torch\nfrom torch import Tensor" if saves in ("codes", "side") else "import torch"
    return _header(request, limits) + f"\n\n{imports}\n\n\n" + "\n\n\n".join(texts) + "\n"
