"""What the compiled kernels cost, and the counting itself."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from actfit.codegen import disassembly
from actfit.codegen import inspect as inspecting
from actfit.codegen.inspect import inspect
from actfit.codegen.machine import predict
from actfit.codegen.options import method
from actfit.fitting.errors import InputError
from actfit.kernels.methods.method import KernelSpec
from tests.codegen.run import script

ROOT = Path(__file__).parents[2]

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton, which compiles, is not installed"
)
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


KERNELS = [
    *((function, "invact", 0) for function in ("gelu", "silu")),
    *((function, "fewbit", 3) for function in ("gelu", "silu")),
    *((function, "forward-ad", 0) for function in ("gelu", "silu")),
    *((function, "invact", 2) for function in ("gelu", "gelu_tanh", "quick_gelu", "silu", "mish", "hardswish")),
]
# Instructions an element that an H200 can give out while memory delivers the bytes, in 16 bits; nothing larger will do.
# A forward of forward-ad writes f' too: 6 bytes an element, where others move 4.1 to 4.4.
# But gelu by 3 bits: what gives 0 at -inf is its 33rd, and costs an H200 3 % there; by Triton 3.7 33.4, by 3.9 33.0.
# By 2 bits beside the output 4.25 bytes an element move, a second plane; 33 by Triton 3.9.
BUDGET = {
    ("invact", 0): (32, 46),
    ("invact", 2): (33.375, 46),
    ("fewbit", 3): (33.375, 34),
    ("forward-ad", 0): (46, 32),
}


# In a process of its own: others may have set Triton's interpreter here.
COMPILE = """
import json, re, sys
from actfit.codegen.inspect import compiled, compiling, inspect, kernel
from actfit.codegen.options import method as method_of
reports = []
for function, method, bits in json.loads(sys.argv[1]):
    for report in inspect(function, method_of(method, bits or None), "bfloat16", "sm_90"):
        code = report.code
        reports.append({
            "kernel": [function, method, bits], "direction": report.direction, "triton": report.triton,
            "instructions": report.instructions, "spilled": report.spilled,
            "accesses": [[*key, count] for key, count in report.accesses.items()], "elements": report.elements,
            "jumps": [code.loops, code.calls, code.skips],
        })
spec, addresses = kernel("gelu", method_of("fewbit", 3), "bfloat16"), []  # types of pointers and of offsets
for count in ("i64", "i32"):
    with compiling():
        texts = {
            direction: str(compiled(spec, "bfloat16", direction, "sm_90", count).asm["ttir"])
            for direction in ("forward", "backward")
        }
    addresses.append({key: re.findall(r"tt\\.addptr [^:]*: ([^,]+?), (\\S+)", text) for key, text in texts.items()})
print(json.dumps([reports, addresses]))
"""


def kernel_of(function: str, name: str, bits: int, dtype: str) -> KernelSpec:
    return inspecting.kernel(function, method(name, bits or None), dtype)


@pytest.fixture(scope="module")
def compiled() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    reports, addresses = json.loads(script(COMPILE, json.dumps(KERNELS)))
    assert len(reports) == 2 * len(KERNELS)
    return reports, addresses


@pytest.mark.slow
@needs_triton
def test_nothing_is_spilled_and_all_is_straight(compiled):
    for report in compiled[0]:
        assert (report["spilled"], report["jumps"], report["elements"]) == (0, [0, 0, 0], 8), report


@pytest.mark.slow
@needs_triton
def test_tensors_are_read_and_written_in_wide_accesses(compiled):
    for report in compiled[0]:
        widths = [(width, count) for _, what, width, count in report["accesses"] if what == "tensor"]
        assert min(widths)[0] >= 64, report
        bits = sum(width * count for width, count in widths)
        tensors = kernel_of(*report["kernel"], "bfloat16").moved_bytes(report["direction"], "bfloat16") // 2
        assert bits == 8 * 16 * tensors, report  # each tensor once, nothing twice


@pytest.mark.slow
@needs_triton
def test_instructions_fit_between_the_bytes(compiled):
    for report in compiled[0]:
        _, *how = report["kernel"]
        assert report["instructions"] <= BUDGET[tuple(how)][report["direction"] == "backward"], report
        if how == ["invact", 2]:  # both planes are written and read
            assert sum(count for _, what, _, count in report["accesses"] if what == "packed") == 2, report


@pytest.mark.slow
@needs_triton
def test_offsets_have_64_bits(compiled):
    for count, where in zip(("i64", "i32"), compiled[1], strict=True):
        for direction in ("forward", "backward"):
            elements = [offset for pointer, offset in where[direction] if pointer.startswith("tensor")]
            assert len(elements) >= 5
            assert all(offset.endswith("xi64>") for offset in elements), elements
            planes = {offset for pointer, offset in where[direction] if not pointer.startswith("tensor")}
            assert planes == {count}  # where a plane begins, below n: n's own type holds it


@needs_torch
def test_kernels_are_compiled_as_they_run():
    from actfit.kernels.engine import launch

    assert (launch.ROWS, launch.OPTIONS["num_warps"]) == (inspecting.ROWS, inspecting.WARPS)
    assert inspecting.OPTIONS is launch.OPTIONS


@needs_triton
def test_the_interpreter_is_refused(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(InputError, match=r"TRITON_INTERPRET must not be set.*got '1'; unset it"):
        inspect("gelu", method("invact", None), "bfloat16", "sm_90")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gleu", "invact", 0, "bfloat16", "sm_90"), r"function must be .*, got 'gleu'; did you mean gelu"),
        (("gelu", "invact", 0, "float64", "sm_90"), r"dtype must be one of bfloat16, .*, got 'float64'"),
        (("gelu", "invact", 0, "bfloat16", "sm_42"), r"arch must be one of sm_80, .*, got 'sm_42'"),
        (("gelu", "invact", 2, "float32", "sm_90"), r"bits must be 1 for gelu in float32 with method='invact', got 2"),
        (
            ("relu", "invact-precision-bit", 0, "bfloat16", "sm_90"),
            r"must have two branches to tell apart, got relu, whose output alone tells f'; use method='invact'",
        ),
    ],
)
def test_errors_name_rule_value_and_way_out(arguments, message):
    function, name, bits, dtype, arch = arguments
    with pytest.raises(InputError, match=message) as caught:
        inspect(function, method(name, bits or None), dtype, arch)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kernel", "forward", "backward"),
    [
        (("gelu", "invact", 0, "bfloat16"), 2 + 2 + 1 / 8, 2 + 2 + 1 / 8 + 2),
        (("gelu", "invact", 2, "bfloat16"), 2 + 2 + 2 / 8, 2 + 2 + 2 / 8 + 2),
        (("gelu", "fewbit", 3, "bfloat16"), 2 + 2 + 3 / 8, 2 + 3 / 8 + 2),
        (("relu", "fewbit", 4, "bfloat16"), 2 + 2 + 1 / 8, 2 + 1 / 8 + 2),  # two levels: one bit is stored
        (("gelu", "forward-ad", 0, "float16"), 2 + 2 + 2, 2 + 2 + 2),
    ],
)
def test_bytes_moved(kernel, forward, backward):
    moved = kernel_of(*kernel).moved_bytes
    assert (moved("forward", kernel[-1]), moved("backward", kernel[-1])) == (forward, backward)


# The counting, on texts of a few lines.

SASS = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   ULDC.64 UR6, c[0x0][0x238] ;
        /*0020*/              @!P0 LDG.E.128 R4, desc[UR8][R2.64] ;
        /*0030*/                   LDG.E.U8 R8, desc[UR8][R2.64] ;
        /*0040*/               @P1 FFMA R4, -R12, R27, 1 ;
        /*0050*/                   HADD2.F32 R4, -RZ, R4.H0_H0 ;
        /*0060*/                   MUFU.EX2 R2, R2 ;
        /*0070*/                   FSETP.GT.AND P0, PT, R2, RZ, PT ;
        /*0080*/                   IMAD.U32 R3, R3, 0x10000, RZ ;
        /*0090*/                   F2FP.BF16.F32.PACK_AB R4, R4, R5 ;
        /*00a0*/               @P0 BRA `(.L_x_1) ;
        /*00b0*/                   NOP ;
.L_x_1:
        /*00c0*/               @P0 EXIT ;
        /*00d0*/                   STG.E desc[UR8][R8.64], R4 ;
        /*00e0*/                   EXIT ;
.L_x_2:
        /*00f0*/                   BRA `(.L_x_2);
        /*0100*/                   NOP;
"""


def test_sass_is_counted():
    code = disassembly.sass(SASS)
    assert code.total == 14
    assert code.kinds == {
        "float": 1, "integer and logic": 2, "conversion": 2, "special": 1, "memory": 4, "uniform": 1,
        "control, other": 3,
    }  # fmt: skip
    assert code.units == {"issue": 14, "float": 3, "logic": 2, "special": 1}
    assert code.accesses == {("load", 128): 1, ("load", 8): 1, ("store", 32): 1}
    assert (code.loops, code.skips, code.calls) == (0, 1, 0)


def test_a_loop_and_a_subroutine_are_seen():
    loop = disassembly.sass(
        SASS.replace("BRA `(.L_x_1)", "BRA `(.L_x_0)").replace("        /*0040*/", ".L_x_0:\n /*0040*/")
    )
    assert (loop.loops, loop.skips) == (1, 0)
    call = disassembly.sass(SASS.replace("BRA `(.L_x_2)", "FADD R1, R1, R1"))
    assert (call.total, call.calls) == (14, 1)


def test_amd_assembly_is_counted():
    code = disassembly.amdgcn(
        "kernel:\n\ts_load_dwordx2 s[2:3], s[0:1], 0x0\n\ts_waitcnt lgkmcnt(0)\n\tv_fma_f32 v0, v1, v2, v3\n"
        "\tglobal_load_dwordx4 v[0:3], v[6:7], off\n\tv_exp_f32_e32 v0, v0\n\ts_cbranch_execz .LBB0_2\n"
        "\tv_and_b32_e32 v1, 1, v7\n\tglobal_store_byte v[0:1], v10, off\n.LBB0_2:\n\ts_endpgm\n"
        ".Lfunc_end0:\n\ts_nop 0\n"
    )
    assert code.total == 9
    assert code.kinds == {
        "float": 1, "integer and logic": 1, "conversion": 0, "special": 1, "memory": 3, "uniform": 0,
        "control, other": 3,
    }  # fmt: skip
    assert code.accesses == {("load", 128): 1, ("store", 8): 1}
    assert (code.loops, code.skips) == (0, 1)


def test_resources_are_read():
    used = disassembly.usage(" Function k:\n  REG:32 STACK:8 SHARED:0 LOCAL:4 CONSTANT[0]:592 TEXTURE:0\n")
    assert used == {"REG": 32, "STACK": 8, "SHARED": 0, "LOCAL": 4}
    used = disassembly.amd_usage("    .sgpr_spill_count: 1\n    .vgpr_count:     22\n    .vgpr_spill_count: 2\n")
    assert used == {"sgpr_spill_count": 1, "vgpr_count": 22, "vgpr_spill_count": 2}


# What counts make of a GPU.


def test_prediction():
    _, h200 = predict("sm_90", 4.125, {"issue": 24.0, "float": 4.0, "logic": 16.0, "special": 1.0})
    clocks = 4.125 / (4300 / (132 * 1.98))
    assert h200.memory == pytest.approx(4.125 / 4.3)
    assert h200.shares["issue"] == pytest.approx(24 / 128 / clocks)
    assert h200.issuing == pytest.approx(24 / 128 / (132 * 1.98) * 1000)
    assert (h200.tightest, h200.memory_bound) == ("logic", True)
    assert h200.shares["logic"] == pytest.approx(16 / 64 / clocks)
    assert not predict("sm_90", 4.125, {"issue": 33.0, "float": 0, "logic": 0, "special": 0})[1].memory_bound
    assert predict("sm_100", 4.125, {}) == ()
