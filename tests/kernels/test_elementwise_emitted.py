"""Files that `elementwise` emits run on their own and compile for GPUs; the emitter is imported late."""

import json
import re
from pathlib import Path

import pytest
import torch

from tests.codegen.run import module, script
from tests.kernels.written import several


def test_what_is_emitted_stands_alone(device: str, tmp_path: Path) -> None:
    x = torch.randn(1003, device=device)
    expected = torch.ops.actfit.fused_forward(x, several.program((), {}).key, True)
    emitted = module(several.source("triton", "float32"), tmp_path)
    made = tuple(part for parts in emitted.forward_pass(x) for part in parts)
    assert all(map(torch.equal, made, expected))
    dx = emitted.backward_pass(made[:3], made[3:])
    twin = module(several.source("torch", "bfloat16"), tmp_path)
    results, slopes = twin.forward_pass(x)
    for by_torch, by_triton in zip(
        (*results, *slopes, twin.backward_pass(made[:3], made[3:])), (*made, dx), strict=True
    ):
        torch.testing.assert_close(by_torch, by_triton, rtol=2.0**-21, atol=2.0**-21)


@pytest.mark.slow
def test_what_emits_is_imported_at_the_first_call_and_files_are_gone_at_the_end() -> None:
    out = script(
        "import sys, os, torch\n"
        "from actfit import elementwise\n"
        "from actfit.kernels.engine import emitted\n"
        "f = elementwise(lambda x: x * x)\n"
        "print('actfit.codegen.fused' in sys.modules)\n"
        "f(torch.ones(3))\n"
        "folder = emitted._folder(os.getpid())\n"
        "print(len(list(folder.glob('*.py'))), folder)\n"
        "if os.fork() == 0:\n"
        "    sys.exit()\n"
        "os.wait()\n"
        "print(folder.exists())\n"
    )
    first, second, third = out.splitlines()
    count, folder = second.split()
    assert (first, count, third) == ("False", "1", "True")
    assert not Path(folder).exists()


COMPILE = """
import importlib.util, json, os, sys, tempfile
from pathlib import Path
os.environ["TRITON_CACHE_DIR"], os.environ["TRITON_DEFAULT_FP_FUSION"] = tempfile.mkdtemp(), "1"
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
specification = importlib.util.spec_from_file_location("emitted", sys.argv[1])
emitted = importlib.util.module_from_spec(specification)
specification.loader.exec_module(emitted)
def texts(kernel, signature, arch):
    aligned = {}
    for place, name in enumerate(kernel.arg_names):
        many = len(signature[name]) if isinstance(signature[name], tuple) else 0
        paths = [(place, i) for i in range(many)] or [(place,)]
        aligned |= {path: [["tt.divisibility", 16]] for path in paths if name != "ROWS"}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index("ROWS"),): 128}, aligned)
    options = {"num_warps": 4, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options).asm["ptx"]
found = []
for arch in (80, 90):
    pointers = lambda count: ("*bf16",) * count
    forward = {"x_ptr": "*bf16", "result_ptrs": pointers(6), "n": "i64", "ROWS": "constexpr"}
    tuples = {"grad_ptrs": pointers(3), "derivative_ptrs": pointers(3)}
    backward = {**tuples, "dx_ptr": "*bf16", "n": "i64", "ROWS": "constexpr"}
    found += [texts(emitted.fused_forward_kernel, forward, arch), texts(emitted.fused_backward_kernel, backward, arch)]
print(json.dumps(found))
"""


def test_what_is_emitted_compiles_for_gpus(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    path = tmp_path / "several.py"
    path.write_text(several.source("triton", "bfloat16"), encoding="utf-8")
    out = script(COMPILE, str(path))
    for ptx, loads, stores in zip(json.loads(out), (1, 6, 1, 6), (6, 1, 6, 1), strict=True):
        # Each tensor is read or written once, with 128 bits for each thread and access.
        assert len(re.findall(r"ld\.global\.v4\.b32", ptx)) == loads
        assert len(re.findall(r"st\.global\.v4\.b32", ptx)) == stores
        assert not re.findall(r"(?:ld|st)\.local", ptx)
