"""The kernels of `actfit.kernels.engine.templates.elementwise` as text, cut down to one kind of storage."""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Template:
    """The source of the template, and its functions by name."""

    source: str

    @cached_property
    def _functions(self) -> dict[str, ast.FunctionDef]:
        return {node.name: node for node in ast.parse(self.source).body if isinstance(node, ast.FunctionDef)}

    @cached_property
    def _lines(self) -> list[str]:
        return self.source.split("\n")

    def helpers(self, text: str) -> list[str]:
        """The template's other functions that `text` calls, and those that they call, in the template's order."""
        called: set[str] = set()
        texts = [text]
        others = {name for name in self._functions if not name.endswith("_kernel")}
        while texts:
            words = set(re.findall(r"\w+", texts.pop()))
            for name in words & others - called:
                called.add(name)
                texts.append(self._text(self._functions[name]))
        return [self._text(node) for name, node in self._functions.items() if name in called]

    def _text(self, node: ast.FunctionDef) -> str:
        return "\n".join(self._lines[node.decorator_list[0].lineno - 1 : node.end_lineno])

    def kernel(self, name: str, constants: Mapping[str, object], names: Mapping[str, str], parameters: bool) -> str:
        """One kernel for these constants, without the cases that do not hold and without unused arguments.

        `names` are the element-wise functions behind FORWARD, ENCODE and DECODE; without `parameters` they take none.
        """
        node = self._functions[name]
        body: list[str] = []
        for statement in node.body:
            body += self._lines_of(statement, constants)
        text = "\n".join(body)
        for constant, value in constants.items():
            text = re.sub(rf"\b{constant}\b", str(value), text)
        for placeholder, function in names.items():
            text = re.sub(rf"\b{placeholder}\b", function, text)
        text = text if parameters else text.replace(", parameters", "")
        used = set(re.findall(r"\w+", text))
        arguments = [argument.arg for argument in node.args.args if argument.arg in used and argument.arg != "ROWS"]
        head = f"@triton.jit\ndef {name}({', '.join(arguments)}, ROWS: tl.constexpr):"
        return f"{head}\n{text}"

    def _lines_of(self, statement: ast.stmt, constants: Mapping[str, object]) -> list[str]:
        """The lines of a statement; of an `if` on constants, those of the case that holds."""
        if isinstance(statement, ast.If) and _is_static(statement.test):
            holds = _holds(statement.test, constants)
            lines = []
            for inner in statement.body if holds else statement.orelse:
                lines += [line.removeprefix("    ") for line in self._lines_of(inner, constants)]
            return lines
        return self._lines[statement.lineno - 1 : statement.end_lineno]


def _is_static(test: ast.expr) -> bool:
    """Whether a condition compares STORAGE with a text, or joins such comparisons."""
    if isinstance(test, ast.BoolOp):
        return all(map(_is_static, test.values))
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "STORAGE"


def _holds(test: ast.expr, constants: Mapping[str, object]) -> bool:
    if isinstance(test, ast.BoolOp):
        return any(_holds(value, constants) for value in test.values)  # the template has no other than `or`
    if isinstance(test, ast.Compare) and isinstance(test.comparators[0], ast.Constant):
        return test.comparators[0].value == constants["STORAGE"]
    raise ValueError(f"the template's conditions must compare STORAGE with a text, got {ast.unparse(test)}")
