"""For docstrings that are not in NumPy style yet: they name arguments in prose, as in "bits: of fewbit.".

Here each such argument gets a line of a list. mkdocstrings itself reads docstrings in NumPy style.
"""

import re
from textwrap import dedent
from typing import Any

import griffe


class Prose(griffe.Extension):
    """Make lists of arguments, and leave out of signatures what is private."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Once all is read, dataclasses with their fields too."""
        self._visit(pkg)

    def _visit(self, part: griffe.Module | griffe.Class) -> None:
        for member in part.members.values():
            if isinstance(member, griffe.Function):
                _list(member.docstring, member.parameters)
            made = member.members.get("__init__") if isinstance(member, griffe.Class) else None
            if isinstance(made, griffe.Function):
                made.parameters = griffe.Parameters(*(part for part in made.parameters if part.name[0] != "_"))
                _list(member.docstring, made.parameters)
            if isinstance(member, griffe.Module | griffe.Class):
                self._visit(member)


def _list(docstring: griffe.Docstring | None, parameters: griffe.Parameters) -> None:
    """Begin a line of a list where a sentence begins with arguments and a colon; what follows it stands apart."""
    names = "|".join(re.escape(part.name.lstrip("*")) for part in parameters if part.name != "self")
    if docstring is None or not names or "\n----" in docstring.value:  # a section in NumPy style
        return
    argument = re.compile(rf"(?:^|(?<=[.;)]) |(?<=[.;)])\n)((?:{names})(?:, (?:{names}))*): ", re.MULTILINE)
    paragraphs = []
    for paragraph in docstring.value.split("\n\n"):
        if all(line.startswith("    ") for line in paragraph.splitlines()):  # a table: kept as it is written
            paragraphs.append(f"```text\n{dedent(paragraph)}\n```")
            continue
        before, *arguments = argument.split(paragraph)
        if arguments:
            lines = [
                f"- `{name.replace(', ', '`, `')}`: {' '.join(text.split())}"
                for name, text in zip(arguments[::2], arguments[1::2], strict=True)
            ]
            last, end, after = lines[-1].partition(". Raises ")
            lines[-1] = last + end[:1]
            paragraph = "\n".join([*([before.rstrip(), ""] if before.strip() else []), *lines])
            paragraph += f"\n\nRaises {after}" if after else ""
        paragraphs.append(paragraph)
    docstring.value = "\n\n".join(paragraphs)
