"""Triton binds arguments and compiles kernels as for a launch, for a GPU that is not there."""

import json
import re

import pytest

from actfit.kernels.engine.templates import FILES
from tests.codegen.run import script

pytestmark = pytest.mark.slow

LAUNCHES = """
import json, re
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from actfit.kernels.engine import launch, launch_codes
from tests.kernels.specs import spec
from tests.kernels.written import several

class Absent:
    '''The driver of a GPU that is not there.'''

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

driver.set_active(Absent())
run, compiled = JITFunction.run, []

def warm_up(self, *args, grid, warmup, **kwargs):
    made = run(self, *args, grid=grid, warmup=True, **kwargs)
    patterns = (r"\\.entry", r"ld\\.global\\.v4\\.b32", r"st\\.global\\.v4\\.b32", r"(?:ld|st)\\.local")
    compiled.append((self.fn.__name__, [len(re.findall(pattern, made.asm["ptx"])) for pattern in patterns]))

JITFunction.run = warm_up

x, grad = torch.randn(8, 1024), torch.randn(8, 1024)
y, planes = torch.empty_like(x), torch.empty(4, 1024, dtype=torch.uint8)
METHODS = [
    *[("gelu", "forward-ad", 0), ("celu", "forward-ad", 0), ("leaky_relu", "invact", 0), ("silu", "fewbit", 3)],
    *[("gelu", "invact", 0), ("gelu", "invact", 2), ("gelu", "invact-precision-bit", 0), ("gelu", "fewbit", 8)],
]
for name, method, bits in METHODS:
    kernel = spec(name, method, bits)
    values = tuple(kernel.function.parameters.values())
    _, saved = launch.forward(kernel, x.bfloat16(), values)
    launch.backward(kernel, grad.bfloat16(), y.bfloat16(), saved, values)
launch.levels(kernel, saved, x.numel(), torch.bfloat16)
launch.gated("silu", x, x)
launch.gated_backward("silu", grad, x, x)
derivatives = launch.fused_forward(x.bfloat16(), several.program((), {}).key, True)[3:]
launch.fused_backward([grad.bfloat16()] * 3, derivatives)
for group_size in (64, 112):
    launch_codes.encode_groups(x, None, group_size, 4)
    launch_codes.encode_groups(x, torch.rand_like(x), group_size, 4)
launch_codes.encode_groups(x.flatten()[:8100], None, 64, 8)
vector = torch.randn(128).bfloat16()
launch_codes.decode_groups(planes, vector, vector, 64, x.numel(), torch.bfloat16)
launch_codes.unpack(launch_codes.pack((x > 0).flatten()), x.numel())
print(json.dumps(compiled))
"""


def test_every_kernel_takes_its_arguments() -> None:
    """Triton writes a Python function for them, in which some names are its own."""
    pytest.importorskip("triton", reason="Triton is not installed")
    compiled = json.loads(script(LAUNCHES))
    texts = [path.read_text(encoding="utf-8") for path in FILES]  # not imported: other tests want them interpreted
    kernels = {name for text in texts for name in re.findall(r"^def (\w+_kernel)\(", text, re.MULTILINE)}
    assert {name for name, _ in compiled} == kernels
    assert {entries for _, (entries, *_) in compiled} == {1}
    # Of several results each tensor is read or written once, with 128 bits for each thread and access.
    fused = {name: accesses for name, (_, *accesses) in compiled if name.startswith("fused")}
    assert fused == {"fused_forward_kernel": [1, 6, 0], "fused_backward_kernel": [6, 1, 0]}
