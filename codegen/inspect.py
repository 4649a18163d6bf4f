"""Compile the kernels that run, without a GPU, and report what they cost: bytes, instructions, registers, slack.

The template and the emitted functions are loaded from their files (codegen may not import `kernels`) and compiled by
Triton as `kernels.launch` would have it. Compiling needs Triton's package alone, which brings the assembler and the
disassembler; importing this module needs nothing.
"""

import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from codegen import disassembly
from codegen.chosen import DIRECTIONS, TEMPLATE, Choice, choose
from codegen.costs import Report, as_table
from codegen.options import ARCHS
from fitting.errors import InputError

__all__ = ["ARCHS", "ROWS", "WARPS", "Report", "as_table", "inspect", "offsets"]

ROWS = 128  # as kernels.launch has them
WARPS = 4
_POINTEES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def inspect(function: str, method: str, bits: int, dtype: str, arch: str, *, ragged: bool = False) -> list[Report]:
    """Forward and backward of one kernel, compiled for `arch`.

    bits: 0 but for fewbit. ragged: for element counts that 16 does not divide, for which Triton compiles another one.
    Raises `InputError` for what there is no kernel or target of, without Triton, and under Triton's interpreter.
    """
    choice = choose(function, method, bits, dtype)
    _check(arch)
    with _compiling() as folder:
        return [_report(choice, direction, arch, ragged, folder) for direction in DIRECTIONS]


def offsets(
    function: str, method: str, bits: int, dtype: str, arch: str, *, count: str = "i64"
) -> dict[str, list[tuple[str, str]]]:
    """By direction, each address that is computed: type of the pointer and of the offset, in Triton's first text.

    count: the type of the element count n, "i64" or, as for a count below 2**31, "i32". Raises as `inspect` does.
    """
    choice = choose(function, method, bits, dtype)
    _check(arch)
    with _compiling():
        texts = {direction: _compiled(choice, direction, arch, count).asm["ttir"] for direction in DIRECTIONS}
    return {direction: disassembly.offsets(str(text)) for direction, text in texts.items()}


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
def _compiling() -> Iterator[Path]:
    """A folder of its own with Triton's cache in it, so that nothing compiled earlier is taken up."""
    with tempfile.TemporaryDirectory() as name:
        wanted = {"TRITON_CACHE_DIR": name, "TRITON_DEFAULT_FP_FUSION": "1"}  # else Triton warns of its next default
        before = {key: os.environ.get(key) for key in wanted}
        os.environ.update(wanted)
        try:
            yield Path(name)
        finally:
            for key, value in before.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value


@cache
def _module(path: Path) -> ModuleType:
    """A module from its file, under a name of its own; Triton reads the kernels' source from the file."""
    specification = importlib.util.spec_from_file_location(f"inspected_{path.stem}", path)
    if specification is None or specification.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _compiled(choice: Choice, direction: str, arch: str, count: str = "i64", ragged: bool = False) -> Any:
    """Triton's result; `asm` has the texts of all stages. All pointers, and n unless `ragged`, are multiples of 16."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(_module(TEMPLATE), f"{direction}_kernel")
    constants = _constants(choice)
    signature = {name: _type(name, choice, count) for name in kernel.arg_names}
    places = {name: index for index, name in enumerate(kernel.arg_names)}
    aligned = [name for name in places if name.endswith("_ptr") or (name == "n" and not ragged)]
    source = ASTSource(
        kernel,
        signature,
        {(places[name],): value for name, value in constants.items() if name in places},
        {(places[name],): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": WARPS, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget(*ARCHS[arch]), options=options)


def _constants(choice: Choice) -> Mapping[str, Any]:
    """By the kernels' names of them."""
    functions = _module(choice.path)
    forward, save, slope = (getattr(functions, name) for name in choice.names)
    return {
        "FORWARD": forward,
        "SAVE": save,
        "SLOPE": slope,
        "SAVES": choice.saves,
        "MINIMUM": choice.facts.minimum,
        "BITS": choice.stored_bits,
        "STEPS": choice.steps,
        "ROWS": ROWS,
    }


def _type(name: str, choice: Choice, count: str) -> str | tuple[str, ...]:
    """Of a kernel's argument, as `kernels.launch` passes it."""
    like_x = f"*{_POINTEES[choice.dtype]}"
    match name:
        case "n":
            return count
        case "params":
            return ("fp32",) * max(1, choice.facts.parameters)
        case "saved_ptr":
            return like_x if choice.saves == "slope" else "*u8"
        case "table_ptr":
            return "*fp32" if choice.saves == "table" else like_x
    return like_x if name.endswith("_ptr") else "constexpr"


def _report(choice: Choice, direction: str, arch: str, ragged: bool, folder: Path) -> Report:
    import triton

    compiled = _compiled(choice, direction, arch, ragged=ragged)
    backend, _, lanes = ARCHS[arch]
    if backend == "cuda":
        code, registers, spilled = _read_cubin(compiled.asm["cubin"], folder)
    else:
        text = str(compiled.asm["amdgcn"])
        code, used = disassembly.amdgcn(text), disassembly.amd_usage(text)
        registers, spilled = used["vgpr_count"], used["vgpr_spill_count"] + used["sgpr_spill_count"]
    elements = 8 * ROWS // (WARPS * int(lanes))
    shared, version = int(compiled.metadata.shared), str(triton.__version__)
    return Report(choice, direction, arch, code, elements, registers, spilled, shared, version, ragged)


def _read_cubin(cubin: bytes, folder: Path) -> tuple[disassembly.Code, int, int]:
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
