"""Compile the kernels that run, without a GPU, and report what they cost: bytes, instructions, registers, slack.

The template and the emitted functions are compiled by Triton as for `actfit.kernels.engine.launch`. Compiling needs
Triton's package alone, which brings the assembler and the disassembler; importing this module needs nothing.
"""

import importlib
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from actfit.codegen import disassembly
from actfit.codegen.costs import Report as Report
from actfit.codegen.options import ARCHS
from actfit.fitting.errors import InputError, nearest
from actfit.kernels.engine.templates import OPTIONS, ROWS, WARPS
from actfit.kernels.errors import KernelError
from actfit.kernels.methods.method import KernelSpec, Method
from actfit.kernels.methods.storage import TABLE_CODES

DIRECTIONS = ("forward", "backward")

_POINTEES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def kernel(function: str, method: Method, dtype: str) -> KernelSpec:
    """The kernel of a function of the catalogue with its default parameters.

    Raises
    ------
    InputError
        For a function, method or dtype without a kernel.
    """
    from actfit.kernels.generated.functions import FUNCTIONS  # emitted: `emit --all` works without

    if function not in FUNCTIONS:
        raise InputError(
            f"function must be one that kernels were emitted for, got {function!r}; {nearest(function, FUNCTIONS)}"
        )
    if dtype not in _POINTEES:
        raise InputError(f"dtype must be one of {', '.join(_POINTEES)}, got {dtype!r}")
    try:
        method.check_dtype(FUNCTIONS[function], dtype)
        return method.bind(FUNCTIONS[function], FUNCTIONS[function].parameters)
    except KernelError as error:
        raise InputError(str(error)) from None


def inspect(function: str, method: Method, dtype: str, arch: str) -> list[Report]:
    """Forward and backward of one kernel, compiled for `arch`.

    Parameters
    ----------
    function
        A name of the catalogue; the function has its default parameters.
    method
        By which it saves.
    dtype
        "bfloat16", "float16" or "float32".
    arch
        One of ARCHS.

    Raises
    ------
    InputError
        For a kernel or target that does not exist, without Triton, and under Triton's interpreter.
    """
    spec = kernel(function, method, dtype)
    _check(arch)
    with compiling() as folder:
        return [_report(spec, dtype, direction, arch, folder) for direction in DIRECTIONS]


def _check(arch: str) -> None:
    if arch not in ARCHS:
        raise InputError(f"arch must be one of {', '.join(ARCHS)}, got {arch!r}")
    interpret = os.environ.get("TRITON_INTERPRET", "")
    if interpret.lower() in ("1", "true", "on", "yes", "y"):
        raise InputError(
            f"TRITON_INTERPRET must not be set, since nothing is compiled then, got {interpret!r}; unset it"
        )
    if importlib.util.find_spec("triton") is None:
        raise InputError("inspect must have Triton to compile with, got none; pip install triton (Linux)")


@contextmanager
def compiling() -> Iterator[Path]:
    """A temporary folder as Triton's cache, so that nothing compiled earlier is used."""
    with tempfile.TemporaryDirectory() as name:
        settings = {"TRITON_CACHE_DIR": name, "TRITON_DEFAULT_FP_FUSION": "1"}  # else Triton warns of its next default
        before = {key: os.environ.get(key) for key in settings}
        os.environ.update(settings)
        try:
            yield Path(name)
        finally:
            for key, value in before.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value


def compiled(spec: KernelSpec, dtype: str, direction: str, arch: str, count: str = "i64") -> Any:
    """Triton's result; `asm` has the texts of all stages. All pointers, and n, are multiples of 16.

    `count` is the type of n, "i64", or "i32" as for a count below 2**31.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    template = importlib.import_module("actfit.kernels.engine.templates.elementwise")
    kernel = getattr(template, f"{direction}_kernel")
    constants = _constants(spec, dtype)
    signature = {name: _type(name, spec, dtype, count) for name in kernel.arg_names}
    places = {name: index for index, name in enumerate(kernel.arg_names)}
    aligned = [name for name in places if name.endswith("_ptr") or name == "n"]
    source = ASTSource(
        kernel,
        signature,
        {(places[name],): value for name, value in constants.items() if name in places},
        {(places[name],): [["tt.divisibility", 16]] for name in aligned},
    )
    return triton.compile(source, target=GPUTarget(*ARCHS[arch]), options=OPTIONS)


def _constants(spec: KernelSpec, dtype: str) -> Mapping[str, Any]:
    """The kernels' constants by name."""
    module = importlib.import_module(f"actfit.kernels.generated.{spec.function.name}_triton")
    elements = (getattr(module, name) for name in spec.elements(dtype))
    names = ("FORWARD", "ENCODE", "DECODE")
    return {**dict(zip(names, elements, strict=True)), **spec.constants(dtype), "ROWS": ROWS}


def _type(name: str, spec: KernelSpec, dtype: str, count: str) -> str | tuple[str, ...]:
    """The type of a kernel's argument, as `actfit.kernels.engine.launch` passes it."""
    like_x = f"*{_POINTEES[dtype]}"
    match name:
        case "n":
            return count
        case "parameters":
            return ("fp32",) * max(1, len(spec.function.parameters))
        case "saved_ptr":
            return f"*{_POINTEES[spec.method.stored_dtype(dtype)]}" if spec.storage.like_input else "*u8"
        case "table_ptr":
            return "*fp32" if spec.storage is TABLE_CODES else like_x
    return like_x if name.endswith("_ptr") else "constexpr"


def _report(spec: KernelSpec, dtype: str, direction: str, arch: str, folder: Path) -> Report:
    import triton

    made = compiled(spec, dtype, direction, arch)
    backend, _, lanes = ARCHS[arch]
    if backend == "cuda":
        code, registers, spilled = read_cubin(made.asm["cubin"], folder)
    else:
        text = str(made.asm["amdgcn"])
        code, used = disassembly.amdgcn(text), disassembly.amd_usage(text)
        registers, spilled = used["vgpr_count"], used["vgpr_spill_count"] + used["sgpr_spill_count"]
    elements = 8 * ROWS // (WARPS * int(lanes))
    shared, version = int(made.metadata.shared), str(triton.__version__)
    return Report(spec, dtype, direction, arch, code, elements, registers, spilled, shared, version)


def read_cubin(cubin: bytes, folder: Path) -> tuple[disassembly.Code, int, int]:
    """The code, registers, and bytes of local memory a thread (spills), by the tools that Triton brings along."""
    import triton

    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    tools = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "bin"

    def run(*words: str) -> str:
        command = [str(tools / words[0]), *words[1:], str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    code = disassembly.sass(run("nvdisasm", "-c", "-ndf"))
    used = disassembly.usage(run("cuobjdump", "-res-usage"))
    return code, used["REG"], used["STACK"] + used["LOCAL"]
