"""The kernels' text, which codegen cuts down."""

import ast

import pytest

from actfit.codegen.template import Template
from actfit.kernels.engine.templates import elementwise_source


@pytest.mark.parametrize("storage", ["derivative", "output", "branch_bit", "codes", "marked_output", "signed_output"])
def test_a_kernel_of_one_storage_has_no_trace_of_the_others(storage: str) -> None:
    source = Template(elementwise_source())
    names = {"FORWARD": "forward", "ENCODE": "encode", "DECODE": "decode"}
    for name in ("forward_kernel", "backward_kernel"):
        text = source.kernel(name, {"STORAGE": storage, "BITS": 1}, names, parameters=False)
        assert "STORAGE" not in text
        (function,) = ast.parse(text).body
        assert isinstance(function, ast.FunctionDef)
        assert function.args.args[-1].arg == "ROWS"
