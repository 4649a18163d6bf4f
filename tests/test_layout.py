"""Rules of the source, checked by parsing every module: allowed imports, and what no module may do."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name

import pytest

from tests.modules import ALLOWED, OURS, ROOT, Module, module_of, read_modules, top

# package -> libraries it must do without
BANNED_LIBRARIES = {"fitting": {"torch", "triton"}, "kernels": {"scipy", "sympy"}, "codegen": {"torch"}}
# What a user's own function needs is emitted when it is called, by a module that runs it too.
RUNTIME = "actfit.codegen.runtime"
# Plans are solved as integer programmes, by SciPy's.
SOLVER = "actfit.kernels.planning.solve"
COMPILER = "actfit.coefficients.compiled"  # compiles loops for fitting, and for kernels on a CPU

EVALUATING_BUILTINS = {"compile", "eval", "exec"}
EVALUATING_FUNCTIONS = {"lambdify", "parse_expr", "sympify"}
EVALUATING = "actfit.kernels.graph.function"  # text that it writes itself, of captured graphs, as fx does
DYNAMIC_IMPORTS = {"__import__", "import_module"}
# Where modules are imported by name: a package's own, when they are asked for; the judges above the package; generated
# modules, by names of the catalogue; templates, as Triton need not be installed; transformers and a user's model;
# what is private in torch, when it is used.
DYNAMIC = {
    "actfit.codegen.inspect",
    "actfit.coefficients.__main__",
    "actfit.coefficients.lazy",
    "actfit.kernels.engine.elements",
    "actfit.kernels.engine.launch",
    "actfit.kernels.memory.making",
    "actfit.kernels.private",
}

TOP_LEVEL = {
    *(".ci", ".github", ".gitignore"),
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md"),
    *("constraints.txt", "mkdocs.yml", "pyproject.toml"),
    *("actfit", "benchmarks", "codegen", "coefficients", "docs", "examples", "fitting", "kernels", "notebooks"),
    "tests",
}


def imports(module: Module) -> Iterator[tuple[int, str]]:
    """Line and full dotted target of every import, wherever it stands; `from a import b` counts as a.b."""
    package = module.name if module.is_package else module.name.rpartition(".")[0]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def within(target: str, prefix: str) -> bool:
    return target == prefix or target.startswith(prefix + ".")


def forbidden_imports(modules: list[Module]) -> list[str]:
    problems = []
    for module in modules:
        for line, target in imports(module):
            library = top(target)
            if library == module.top or any(within(target, prefix) for prefix in ALLOWED[module.top]):
                continue
            if module.name == RUNTIME and library in ("kernels", "torch"):
                continue
            if (module.name, library) in ((SOLVER, "scipy"), (COMPILER, "numba")):
                continue
            if (
                library in OURS
                or library in BANNED_LIBRARIES.get(module.top, ())
                or (module.top == "coefficients" and library not in sys.stdlib_module_names)
                or (module.top == "codegen" and library == "triton" and module.name != "actfit.codegen.inspect")
            ):
                problems.append(f"{module.name}:{line} imports {target}")
    return problems


def import_cycle(modules: list[Module]) -> list[str]:
    """One cycle of modules, or nothing. Imports in functions count: hiding a cycle does not undo it."""
    names = {module.name for module in modules}
    graph: dict[str, set[str]] = {}
    for module in modules:
        targets = (target if target in names else target.rpartition(".")[0] for _, target in imports(module))
        graph[module.name] = {target for target in targets if target in names}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def forbidden_names(modules: list[Module]) -> list[str]:
    """Evaluation of text, dynamic imports, prints and asserts, where they must not be."""
    problems = []
    for module in modules:
        banned = set() if module.name == EVALUATING else set(EVALUATING_BUILTINS)
        if module.name not in DYNAMIC:
            banned |= DYNAMIC_IMPORTS
        if not module.name.endswith(".__main__"):
            banned.add("print")
        for node in ast.walk(module.tree):
            match node:
                case ast.Assert():
                    problems.append(f"{module.name}:{node.lineno} assert")
                case ast.Name(id=name) if name in banned | EVALUATING_FUNCTIONS:
                    problems.append(f"{module.name}:{node.lineno} {name}")
                case ast.Attribute(value=ast.Name(id="builtins"), attr=name) if name in banned:
                    problems.append(f"{module.name}:{node.lineno} {name}")
                case ast.Attribute(attr=name) if name in EVALUATING_FUNCTIONS | (DYNAMIC_IMPORTS & banned):
                    problems.append(f"{module.name}:{node.lineno} {name}")
                case ast.Call(func=ast.Name(id="S") | ast.Attribute(attr="S")):  # sympy's short name for sympify
                    problems.append(f"{module.name}:{node.lineno} S(...)")
                case ast.ImportFrom(names=aliases):
                    for alias in aliases:
                        if alias.name in banned | EVALUATING_FUNCTIONS:
                            problems.append(f"{module.name}:{node.lineno} {alias.name}")
    return problems


METHODS = {"forward-ad", "fewbit", "invact", "invact-precision-bit", "invact-sign-bit", "stock"}
# Coefficient files are of two kinds, which have the names of two methods.
OF_FILES = {"actfit.codegen.request", "actfit.codegen.subject"}


def compared_methods(modules: list[Module]) -> list[str]:
    """Comparisons with a method's name outside of the methods, which must state themselves what depends on them."""
    problems = []
    for module in modules:
        if (
            module.top not in ("codegen", "kernels")
            or within(module.name, "actfit.kernels.methods")
            or module.name in OF_FILES
        ):
            continue
        for node in ast.walk(module.tree):
            match node:
                case ast.Compare(left=left, comparators=others):
                    words = [part for side in (left, *others) for part in ast.walk(side)]
                case ast.MatchValue(value=value):
                    words = [value]
                case ast.Call(func=ast.Attribute(attr="startswith" | "removeprefix"), args=words):
                    pass
                case _:
                    continue
            names = [word.value for word in words if isinstance(word, ast.Constant) and word.value in METHODS]
            problems += [f"{module.name} compares with {name!r}" for name in names]
    return problems


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return read_modules(ROOT)


@pytest.fixture(scope="module")
def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_modules_are_found(modules):
    assert {module.top for module in modules} == set(ALLOWED)


def test_imports_between_packages(modules):
    assert forbidden_imports(modules) == []


def test_no_import_cycles(modules):
    assert import_cycle(modules) == []


def test_nothing_evaluates_text_prints_or_asserts(modules):
    assert forbidden_names(modules) == []


def test_no_name_of_a_method_is_compared(modules):
    assert compared_methods(modules) == []


def test_files_of_tests_are_short():
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py")}
    assert {path.relative_to(ROOT).as_posix(): length for path, length in lengths.items() if length > 300} == {}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_top_level_is_the_fixed_set():
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {file.partition("/")[0] for file in files.split("\0") if file} - TOP_LEVEL == set()


def test_all_packages_are_shipped(pyproject):
    wheel = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel["only-include"]) == set(ALLOWED)
    assert wheel["sources"] == {name: f"actfit/{name}" for name in ALLOWED if name != "actfit"}


def test_the_citation_has_the_version(pyproject):
    assert f"\nversion: {pyproject['project']['version']}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_each_rule_can_be_broken():
    """The checkers see what is forbidden, on small sources."""
    for name, source in (
        ("coefficients.store", "import numpy"),
        ("fitting.fewbit.cost", "def f():\n    from triton import jit"),
        ("codegen.emit", "from actfit.fitting.activations_old import catalogue"),
        ("kernels.modules", "import sympy"),
    ):
        assert len(forbidden_imports([module_of(f"actfit.{name}", source)])) == 1
    for source in ("f = exec", "import sympy\nsympy.S('x')", "from builtins import eval as safe", "__import__('json')"):
        assert len(forbidden_names([module_of("actfit.fitting.a", source)])) == 1
    there, back = module_of("actfit.fitting.a", "from . import b"), "def f():\n    from actfit.fitting import a"
    assert import_cycle([there, module_of("actfit.fitting.b", "import numpy")]) == []
    assert import_cycle([there, module_of("actfit.fitting.b", back)])
    for source in ("method == 'fewbit'", "match m:\n    case 'invact': pass", "m.startswith('invact')"):
        assert compared_methods([module_of("actfit.kernels.a", source)])
        assert not compared_methods([module_of("actfit.kernels.methods.a", source)])
