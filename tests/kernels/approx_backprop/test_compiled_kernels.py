"""The Triton kernels of approximate backprop compiled for GPUs: no spills, no fused operations, wide accesses."""

import json

import pytest

import kernels.engine.ops  # noqa: F401
from tests.codegen.run import script

pytestmark = pytest.mark.slow

COMPILE = """
import json, os, subprocess, sys, tempfile
from pathlib import Path
folder = Path(sys.argv[2])
os.environ["TRITON_CACHE_DIR"] = str(folder)
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from codegen import disassembly
from kernels.engine import launch_codes as launch
from kernels.engine.templates import codes, groups
from kernels.engine.templates import ROWS, WARPS
tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
def read(*words):
    command = [tools / words[0], *words[1:], folder / "cubin"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
def type_of(name, argument, constants, count):
    if argument in constants:
        return "constexpr"
    if argument in ("planes_ptr", "signs_ptr"):
        return "*u8"
    if argument in ("x_ptr", "y_ptr", "grad_ptr", "dx_ptr", "values_ptr") or (
        name in ("group_range", "encode_groups") and argument in ("minimum_ptr", "scale_ptr")
    ):
        return "*bf16"
    if argument.endswith("_ptr"):
        return "*fp32"
    return {"slope": "fp32", "n": count}.get(argument, "i32")
def compiled(name, arch, count, constants, multiples, warps):
    kernel = getattr(groups if name in ("group_range", "encode_groups") else codes, name + "_kernel")
    places = {argument: (place,) for place, argument in enumerate(kernel.arg_names)}
    source = ASTSource(
        kernel,
        {argument: type_of(name, argument, constants, count) for argument in places},
        {places[one]: value for one, value in constants.items()},
        {places[one]: [["tt.divisibility", 16]] for one in places if one.endswith("_ptr") or one in multiples},
    )
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps, **launch.EXACT})
    (folder / "cubin").write_bytes(made.asm["cubin"])
    used, code = (
        disassembly.usage(read("cuobjdump", "-res-usage")), disassembly.sass(read("nvdisasm", "-c", "-ndf"))
    )
    fused = sum(many for opcode, many in code.opcodes.items() if opcode.startswith("FFMA"))
    return {
        "kernel": name, "arch": arch, **constants, "count": count, "multiples": multiples, "registers": used["REG"],
        "spilled": used["STACK"] + used["LOCAL"], "shared": made.metadata.shared, "instructions": code.total,
        "fused": fused, "calls": code.calls, "widths": sorted({width for _, width in code.accesses}),
    }
kernels = []
for arch, name, constants, count, multiples in json.loads(sys.argv[1]):
    warps = constants.pop("warps", WARPS)
    rows = {"group_range": {}, "encode_groups": {"RUN": 32, "RUNS": 32 * WARPS}}.get(name, {"ROWS": ROWS})
    kernels.append(compiled(name, arch, count, {**constants, **rows}, multiples, warps))
print(json.dumps(kernels))
"""
# A kernel, its constants, and its arguments that are multiples of 16, for which Triton compiles another variant.
VARIANTS = [
    (
        "group_range",
        {"features": 1, "BITS": 4, "GROUPS": 4, "WIDTH": 256},
        ["n", "group_size", "tokens"],
    ),
    (
        "group_range",
        {"features": 1, "BITS": 4, "GROUPS": 1, "WIDTH": 8192, "warps": 16},
        ["n", "group_size", "tokens"],
    ),
    (
        "group_range",
        {"BITS": 4, "GROUPS": 128, "WIDTH": 8},
        ["n", "group_size", "tokens", "features"],
    ),
    ("encode", {"PLACES": "one", "NOISE": "one", "BITS": 4}, ["n"]),
    ("encode", {"PLACES": "row", "NOISE": "each", "BITS": 4}, ["n", "group_size"]),
    ("encode", {"PLACES": "two", "NOISE": "none", "BITS": 8}, ["n"]),
    ("encode", {"PLACES": "eight", "NOISE": "one", "BITS": 4}, ["n", "length"]),
    ("encode", {"PLACES": "each", "NOISE": "one", "BITS": 4}, ["n"]),
    ("encode", {"PLACES": "wide", "NOISE": "one", "BITS": 4}, ["n", "group_size", "tokens", "features"]),
    ("encode", {"PLACES": "any", "NOISE": "one", "BITS": 8}, ["n"]),
    (
        "decode",
        {"PLACES": "row", "GAIN": "none", "BIAS": "none", "SIGNS": False, "SLOPED": False, "CLAMP": True, "BITS": 2},
        ["n", "group_size"],
    ),
    (
        "decode",
        {"PLACES": "row", "GAIN": "row", "BIAS": "row", "SIGNS": True, "SLOPED": False, "CLAMP": True, "BITS": 4},
        ["n", "group_size", "inner"],
    ),
    (
        "decode",
        {"PLACES": "two", "GAIN": "each", "BIAS": "eight", "SIGNS": True, "SLOPED": True, "CLAMP": True, "BITS": 8},
        ["n"],
    ),
    (
        "decode",
        {"PLACES": "wide", "GAIN": "eight", "BIAS": "eight", "SIGNS": True, "SLOPED": False, "CLAMP": False, "BITS": 8},
        ["n", "group_size", "tokens", "features"],
    ),
    *((name, {"SLOPED": sloped}, ["n"]) for name in ("rectify", "rectify_backward") for sloped in (False, True)),
    ("encode_groups", {"NOISE": False, "WHOLE": False, "GROUP": 128, "BITS": 4}, []),
    ("encode_groups", {"NOISE": False, "WHOLE": True, "GROUP": 128, "BITS": 4}, ["n"]),
    ("encode_groups", {"NOISE": True, "WHOLE": True, "GROUP": 32, "BITS": 8}, ["n"]),
    ("encode_groups", {"NOISE": False, "WHOLE": True, "GROUP": 128, "BITS": 2}, ["n"]),
]
OF_RANGES = ("group_range", "encode_groups")  # they divide, exchange numbers between threads, and write bfloat16


def variants() -> list[tuple[int, str, dict[str, object], str, list[str]]]:
    """The variants to compile, with the GPU's architecture and the type of the element count."""
    wide = {name: {"WIDE": False} if name in ("encode", "decode") else {} for name, _, _ in VARIANTS}
    cases = [(90, name, {**constants, **wide[name]}, "i32", multiples) for name, constants, multiples in VARIANTS]
    # For the older GPU, only the most expensive variant of each kernel: the last, of group_range the widest.
    last = {
        name: (80, name, {**constants, **wide[name]}, "i32", multiples)
        for name, constants, multiples in (*VARIANTS, VARIANTS[1])
    }
    cases += last.values()
    for name, constants, multiples in (VARIANTS[0], VARIANTS[5], VARIANTS[12]):
        cases.append((90, name, {**constants, **dict.fromkeys(wide[name], True)}, "i64", multiples))
        cases.append((90, name, {**constants, **wide[name]}, "i32", []))
    return cases


def test_kernels_compile_for_gpus(tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed")
    kernels = json.loads(script(COMPILE, json.dumps(variants()), str(tmp_path)))
    assert len(kernels) == len(variants())
    assert {(kernel["arch"], kernel["kernel"]) for kernel in kernels} == {
        (arch, name) for arch in (80, 90) for name, _, _ in VARIANTS
    }
    for kernel in kernels:
        assert kernel["spilled"] == 0, kernel
        # A division has its own fused operations, correctly rounded at the end.
        assert kernel["kernel"] in OF_RANGES or (kernel["fused"], kernel["shared"]) == (0, 0), kernel
        if kernel.get("WHOLE"):  # a thread has whole runs, and threads of a group exchange ends in registers
            assert kernel["shared"] == 0, kernel
            assert set(kernel["widths"]) == {16, 32, 128}, kernel  # ends, a plane's codes of a run, and tensors
        # Tensors of 16 bits in wide accesses; else the codes of a row in bytes, minimum and scale in 16 bits each.
        elif kernel["multiples"]:
            assert set(kernel["widths"]) <= {8, 16 if kernel["kernel"] in OF_RANGES else 8, 32, 128}, kernel
            assert 128 in kernel["widths"], kernel
