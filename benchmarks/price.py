"""python -m benchmarks.price: what each row of the price table costs, as Triton compiles it. No GPU is needed.

One small float32 kernel per row is compiled for sm_80 and sm_90, and the instructions in its machine code are
counted, those of the special-function unit (MUFU) apart. What is stored is how the count grows from 8 elements a
thread to 16, less what a plain copy grows by: addresses and constants, paid once a thread, drop out.

Writes rows under benchmarks/results/sm_80/ and sm_90/, and prints them beside `fitting.invact.price.TABLE`. Needs
Triton, whose package holds the compiler and the disassembler: pip install triton. Half a minute.
"""

from actfit.coefficients import command
from benchmarks import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("price", lambda: parsers.plain("price", __doc__).parse_args())

import importlib.util
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from actfit.codegen.inspect import compiling, read_cubin
from actfit.fitting.invact.price import TABLE
from benchmarks.rows import RESULTS, Row, read_lines, save, summary

CAPABILITIES = (80, 90)
THREADS = 128
ELEMENTS = (8, 16)  # a thread
MISSING = "benchmarks.price needs Triton (Linux) to compile and disassemble: pip install triton"

_ROOT = "tl.sqrt(tl.maximum(y + 0.27846, 0.0))"
_GAP = f"(-5.7706 - {_ROOT} * {_ROOT})"

# Name -> the kernel's expression in y and the scalars a and b, and how many of each row of the price table it uses.
BODIES: dict[str, tuple[str, Mapping[str, int]]] = {
    "fma": ("y * a + b", {"fma": 1}),
    "sum": ("y + a", {"fma": 1}),
    "product": ("y * a", {"fma": 1}),
    "polynomial of degree 3": ("((y * a + b) * y + 0.3) * y + 0.7", {"fma": 3}),
    "max": ("tl.maximum(y, a)", {"max": 1}),
    "min": ("tl.minimum(y, a)", {"min": 1}),
    "compare, select": ("tl.where(y > a, y, b)", {"compare": 1, "select": 1}),
    "three cases": ("tl.where(y > a, y * y, tl.where(y > b, y, 0.5))", {"compare": 2, "select": 2, "fma": 1}),
    "and": ("tl.where((y > a) & (y < b), y, 0.5)", {"compare": 2, "select": 2}),
    "abs": ("tl.abs(y) * a", {"abs": 1, "fma": 1}),
    "abs in a sum": ("tl.abs(y) + a", {"abs": 1, "fma": 1}),
    "abs of a sum": ("tl.abs(y * a + b) * y + 0.3", {"fma": 2}),
    "sqrt": ("tl.sqrt(y)", {"sqrt": 1}),
    "exp2": ("tl.exp2(y)", {"exp2": 1}),
    "exp": ("tl.exp(y)", {"exp": 1}),
    "division": ("a / y", {"division": 1}),
    "quotient": ("(y + a) / (y + b)", {"division": 1, "fma": 2}),
    "quotient in a sum": ("y / (y + a) + b", {"division": 1, "fma": 1}),
    "reciprocal in a sum": ("1 / y + b", {"division": 1}),
    "rational (3, 2)": (
        "(((0.3 * y + 0.7) * y - 1.3) * y) / ((1.1 * y - 0.4) * y + 1.0)",
        {"division": 1, "fma": 5},
    ),
    "log": ("tl.log(y)", {"log": 1}),
    "power": ("tl.exp2(tl.log2(y) * 0.3)", {"power": 1}),
    "expm1": ("libdevice.expm1(y)", {"expm1": 1}),
    "log1p": ("libdevice.log1p(y)", {"log1p": 1}),
    "sigmoid": ("tl.sigmoid(y)", {"sigmoid": 1}),
    "tanh": ("libdevice.tanh(y)", {"tanh": 1}),
    "other (erf)": ("tl.erf(y)", {"other": 1}),
    # Whole formulas: the paper's (5) and (8), from y.
    "gelu left": (
        "1.6311 * tl.sqrt(y + 0.16997) * (2 * y - 0.062617 * tl.sqrt(-y))"
        " * (tl.abs(1.2947 * y * y + tl.abs(1.9806 * y + 0.2273) - 0.038978) + 1.3295)",
        {"fma": 11, "sqrt": 2},
    ),
    "silu right": (
        f"(1 + (-1.3109 + 0.84859 * {_ROOT} - 0.16299 * ({_ROOT} * {_ROOT}))"
        f" * tl.exp(0.002696 * ({_GAP} * {_GAP} * {_GAP}))) * (1 - y) + y",
        {"fma": 11, "max": 1, "sqrt": 1, "exp": 1},
    ),
}
KERNEL = """
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

@triton.jit
def kernel(p, q, a, b, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    y = tl.load(p + i)
    tl.store(q + i, {body})
"""


def table_value(parts: Mapping[str, int]) -> tuple[int, int]:
    """The table's special and other instructions for these counts of its rows."""
    special, other = (sum(n * TABLE[kind][column] for kind, n in parts.items()) for column in (0, 1))
    return special, other


def instructions(body: str, capability: int, elements: int, folder: Path) -> tuple[int, int]:
    """Special and other instructions of the kernel that computes `body`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = folder / "kernel.py"
    source.write_text(KERNEL.format(body=body), encoding="utf-8")  # Triton reads a kernel's source from its file
    specification = importlib.util.spec_from_file_location("kernel", source)
    if specification is None or specification.loader is None:
        raise RuntimeError(f"cannot import {source}")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    signature = {"p": "*fp32", "q": "*fp32", "a": "fp32", "b": "fp32", "SIZE": "constexpr"}
    aligned = {(i,): [["tt.divisibility", 16]] for i in (0, 1)}
    kernel = ASTSource(module.kernel, signature, {(4,): THREADS * elements}, aligned)
    options = {"num_warps": THREADS // 32, "enable_fp_fusion": True}
    compiled = triton.compile(kernel, target=GPUTarget("cuda", capability, 32), options=options)
    code, *_ = read_cubin(compiled.asm["cubin"], folder)
    return code.kinds["special"], code.total - code.kinds["special"]


def growth(body: str, capability: int, folder: Path) -> tuple[float, float]:
    """Special and other instructions that each element a thread from ELEMENTS[0] to ELEMENTS[1] adds."""
    few, many = (instructions(body, capability, elements, folder) for elements in ELEMENTS)
    special, other = ((more - less) / (ELEMENTS[1] - ELEMENTS[0]) for less, more in zip(few, many, strict=True))
    return special, other


def measure(capability: int) -> list[Row]:
    """Special and other instructions per element of every row, for one generation of GPUs."""
    rows, size = [], {"elements": ELEMENTS[1] - ELEMENTS[0]}
    where = {"device": f"sm_{capability}", "versions": versions()}
    with compiling() as folder:
        _, copied = growth("y", capability, folder)
        for what, (body, _) in BODIES.items():
            special, other = growth(body, capability, folder)
            for unit, value in (("special per element", special), ("other per element", other - copied)):
                rows.append(Row("price", what, body, size, "float32", unit, **summary([value]), **where))
    return rows


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "triton": metadata.version("triton")}


def load(capability: int) -> dict[str, tuple[float, float]]:
    """Stored special and other instructions per element, by row."""
    medians: dict[str, dict[str, Any]] = {}
    for row in read_lines(RESULTS / f"sm_{capability}" / "price.jsonl"):
        medians.setdefault(row["implementation"], {})[row["unit"]] = row["median"]
    return {what: (by_what["special per element"], by_what["other per element"]) for what, by_what in medians.items()}


def main() -> int:
    parsers.plain("price", __doc__).parse_args()
    if importlib.util.find_spec("triton") is None:
        print(MISSING, file=sys.stderr)
        return 2
    paths = [save(measure(capability), "price") for capability in CAPABILITIES]
    print(f"{'':24}{'table':>14}" + "".join(f"{f'sm_{capability}':>18}" for capability in CAPABILITIES))
    loaded = [load(capability) for capability in CAPABILITIES]
    for what, (_, parts) in BODIES.items():
        special, other = table_value(parts)
        measured = "".join(f"{f'{prices[what][0]:.2f} + {prices[what][1]:.2f}':>18}" for prices in loaded)
        print(f"{what:24}{f'{special} + {other}':>14}{measured}")
    print("special + other instructions per element; wrote", *paths)
    return 0


if __name__ == "__main__":
    sys.exit(main())
