"""One function by one method for one dtype, as a module without imports of actfit: what `codegen emit` prints."""

import shlex

from actfit.codegen import elements, template
from actfit.codegen.function import Function, quotable
from actfit.codegen.launchers import IMPORTS, launchers
from actfit.codegen.module import text_of, texts_of
from actfit.codegen.options import TARGETS
from actfit.codegen.overflow import check_numbers, notes_on_reach, with_limits
from actfit.codegen.request import Request as Request
from actfit.fitting.errors import InputError
from actfit.kernels.engine.templates import elementwise_source, planes_source
from actfit.kernels.methods.storage import BRANCH_AND_ROUNDING, BRANCH_BIT, CODES, DERIVATIVE, OUTPUT


def emit(request: Request, target: str) -> str:
    """The text of the module, for the target "triton" or "torch".

    Raises `InputError` for what cannot be emitted, with the reason.
    """
    if target not in TARGETS:
        raise InputError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    for expression in (request.subject.forward, request.subject.derivative):
        check_numbers(expression)
    return _triton(request) if target == "triton" else _torch(request)


def _header(request: Request, notes: list[str]) -> list[str]:
    subject, file, spec = request.subject, request.file, request.spec
    saved = spec.storage.text.format(bits=spec.stored_bits, s="" if spec.stored_bits == 1 else "s")
    return [
        f"{subject.name}(x) = {subject.activation.expr}",
        "",
        f"Method {request.method.name}, dtype {request.dtype}.",
        f"Backward is left with {saved}.",
        *notes,
        *([f"Coefficients: {quotable(file.origin)}"] if file is not None else []),
        f"Made by: {quotable(shlex.join(request.command))}",
    ]


def _functions(request: Request, target: str) -> tuple[list[Function], list[str]]:
    """The element functions that the method needs, and notes on them."""
    if target == "torch" and request.spec.storage is CODES:
        functions = [elements.forward(request.subject, target)]
    else:
        names = request.method.elements(request.spec.function)
        functions = [request.element(name, target) for name in dict.fromkeys(names) if name]
    functions = with_limits(request.subject, request.dtype, target, functions)
    reach = notes_on_reach(request.subject, request.dtype, target, functions)
    return functions, [*_notes_on_rounding(request), *reach]


def _triton(request: Request) -> str:
    functions, on_functions = _functions(request, "triton")
    free = request.subject.parameters
    defaults = _defaults(request) if free else ""
    if not free:
        functions = [function.without("params") for function in functions]
    constants = {"STORAGE": request.spec.storage.name, "BITS": request.spec.stored_bits, "CUT": _cut(request)}
    names = request.method.elements(request.spec.function)._asdict()
    placeholders = {placeholder.upper(): name for placeholder, name in names.items() if name}
    source = template.Template(elementwise_source())
    kernels = tuple(
        source.kernel(name, constants, placeholders, parameters=bool(free))
        for name in ("forward_kernel", "backward_kernel")
    )
    texts = [*texts_of(functions, request.dtype, "triton"), *source.helpers("\n".join(kernels)), *kernels]
    texts += launchers(kernels, request.spec.storage, request.spec.stored_bits, request.dtype, defaults)
    notes = ["Eight elements make a row; a program does ROWS of them: grid (ceil(n / (8*ROWS)),)."]
    notes += [f"parameters: ({', '.join(free)},), by default {defaults}."] if free else []
    return text_of(_header(request, notes + on_functions), IMPORTS, texts)


def _notes_on_rounding(request: Request) -> list[str]:
    """What free parameters must be, where they are compared as the dtype holds them."""
    if not request.subject.parameters or not request.method.rounds_parameters(request.spec.function):
        return []
    reason = "y is compared with them" if request.spec.function.rounded_for == "y" else "PyTorch's function rounds them"
    return [f"parameters must be numbers of {request.dtype}, as {reason}."]


def _cut(request: Request) -> tuple[float, ...] | None:
    cut = request.spec.function.cuts.get(request.dtype)
    return None if cut is None else tuple(cut)


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

_TORCH_ROUNDING = """\
def branch_and_rounding(x, y, params):
    \"\"\"The branch of x in bit 0, and in bit 1 whether f(x) was rounded away from zero to y{but_for_one}.\"\"\"
    away = forward(x, params).abs() < {border}.abs()
    return (branch_bit(x, params).byte() | away.byte() << 1).flatten()


def from_codes(y, codes, params):
    \"\"\"f'(x) from y a quarter of its spacing back or on, in the middle of what it was rounded from.\"\"\"
    codes, share = codes.view(y.shape), torch.finfo(y.dtype).eps / 4
    y = y.float()
    power = (y.view(torch.int32) & -0x800000).view(torch.float32)  # sign and exponent
    z = {z}
    return derivative_from_finer_output(z, (codes & 1).bool(), params)"""


def _torch_rounding(cut: tuple[float, ...] | None) -> str:
    """The second bit in PyTorch, with the one output that is cut elsewhere."""
    border, z, but_for_one = "y.to(x.dtype)", "y + power * torch.where(codes >= 2, -share, share)", ""
    if cut is not None:
        output, at, inner, outer = map(repr, cut)
        border, but_for_one = f"{border}.masked_fill(y == {output}, {at})", f"; for y = {output} to {at}"
        z = f"torch.where(y == {output}, torch.where(codes >= 2, {inner}, {outer}), {z})"
    return _TORCH_ROUNDING.format(border=border, z=z, but_for_one=but_for_one)


_TORCH_PASSES = {
    BRANCH_AND_ROUNDING: (
        "pack(branch_and_rounding(wide, y, params), 2)",
        "from_codes(y, unpack(saved, y.numel()), params)",
    ),
    DERIVATIVE: ("derivative(wide, params).to(x.dtype)", "saved.to(wide.dtype)"),
    CODES: ("pack(code(wide, params).flatten(), {bits})", "level(unpack(saved, grad.numel())).view(grad.shape)"),
    BRANCH_BIT: (
        "pack(branch_bit(wide, params).flatten().byte(), 1)",
        "derivative_from_output(y.to(wide.dtype), unpack(saved, y.numel()).bool().view(y.shape), params)",
    ),
    OUTPUT: ("None", "derivative_from_output(y.to(wide.dtype), params)"),
}


def _torch(request: Request) -> str:
    storage = request.spec.storage
    if storage not in _TORCH_PASSES:
        raise InputError(f"method {request.method} must have target triton for a module that stands alone")
    defaults = _defaults(request) if request.subject.parameters else "()"
    texts: list[str] = []
    functions, notes = _functions(request, "torch")
    if storage is CODES:
        texts.append(_TORCH_CODES.format(**{key: request.solution[key] for key in ("borders", "codes", "levels")}))
    texts += texts_of(functions, request.dtype, "torch")
    if storage is BRANCH_AND_ROUNDING:
        texts.append(_torch_rounding(_cut(request)))
    if storage.packed:
        texts.append(planes_source().partition("from torch import Tensor\n")[2].strip())
    saved, derivative = (part.format(bits=request.spec.stored_bits) for part in _TORCH_PASSES[storage])
    kept = "y, " if storage.keeps_output else ""
    result = "forward(x, params)" if elements.rounds_once(request.subject) else "forward(wide, params).to(x.dtype)"
    texts.append(
        f"def forward_pass(x, params={defaults}):\n"
        '    """y = f(x), and what backward needs besides."""\n'
        "    wide = x if x.dtype == torch.float64 else x.float()\n"
        f"    y = {result}\n"
        f"    return y, {saved}"
    )
    texts.append(
        f"def backward_pass(grad, {kept}saved, params={defaults}):\n"
        '    """grad * f\'(x)."""\n'
        "    wide = grad if grad.dtype == torch.float64 else grad.float()\n"
        f"    return (wide * {derivative}).to(grad.dtype)"
    )
    imports = "import torch\nfrom torch import Tensor" if storage.packed else "import torch"
    return text_of(_header(request, notes), imports, texts)
