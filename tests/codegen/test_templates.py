"""The kernels' text that codegen cuts down is the text that runs."""

import ast
import inspect
from importlib.util import find_spec
from pathlib import Path

import pytest

from actfit.codegen.template import Template
from actfit.kernels.engine import planes, templates


def test_the_text_is_that_of_the_modules() -> None:
    # Found, not imported: Triton decides at the import whether kernels run in its interpreter.
    elementwise = find_spec("actfit.kernels.engine.templates.elementwise")
    assert elementwise is not None
    assert templates.elementwise_source() == Path(str(elementwise.origin)).read_text(encoding="utf-8")
    assert templates.planes_source() == inspect.getsource(planes)


@pytest.mark.parametrize("storage", ["derivative", "output", "branch_bit", "codes", "marked_output", "signed_output"])
def test_a_kernel_of_one_storage_has_no_trace_of_the_others(storage: str) -> None:
    source = Template(templates.elementwise_source())
    names = {"FORWARD": "forward", "ENCODE": "encode", "DECODE": "decode"}
    for name in ("forward_kernel", "backward_kernel"):
        text = source.kernel(name, {"STORAGE": storage, "BITS": 1}, names, parameters=False)
        assert "STORAGE" not in text
        (function,) = ast.parse(text).body
        assert isinstance(function, ast.FunctionDef)
        assert function.args.args[-1].arg == "ROWS"
