"""The rule of names: what a thing is called says what it is."""

import ast

import pytest

from tests.modules import OURS, ROOT, Module, module_of, read_modules

# Names that say nothing of what they stand for, alone.
VAGUE = {
    *("arms", "choice", "choices", "choose", "chosen", "complements", "facts", "found", "how", "keeps", "one"),
    *("remembering", "remembers", "them", "there", "told", "trusting", "wanted"),
}


def vague_names(modules: list[Module]) -> list[str]:
    """Modules, functions, arguments and variables that are named by a word that fits anything."""
    broken = []
    for module in modules:
        names = [(1, module.name.rpartition(".")[2])]
        for node in ast.walk(module.tree):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.alias(asname=str(name)):
                    names.append((node.lineno, name))
                case ast.Attribute(attr=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)):
                    names.append((node.lineno, name))
                case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                    names.append((node.lineno, name))
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    names.append((node.lineno, name))
        vague = ((line, name) for line, name in names if name.strip("_").lower() in VAGUE)
        broken += [f"{module.name}:{line} names something {name}" for line, name in vague]
    return broken


def test_names_say_what_they_stand_for():
    assert vague_names(read_modules(ROOT, OURS)) == []


@pytest.mark.parametrize(
    "source",
    [
        "one = 1",
        "for _one in xs: pass",
        "def f(how): pass",
        "def found(): pass",
        "import a as them",
        "(there := 1)",
        "self.found = 1",
        "match x:\n    case one: pass",
    ],
)
def test_a_vague_name_is_seen(source):
    assert len(vague_names([module_of("kernels.a", source)])) == 1
    assert len(vague_names([module_of("kernels.facts", source)])) == 2
