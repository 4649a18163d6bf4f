"""Files that `elementwise` emits run on their own; the emitter is imported late."""

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
