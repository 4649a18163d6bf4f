"""The texts to copy: C reads back as the same numbers; LaTeX is well formed and has the same numbers."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from notebooks.gallery.c_array import as_c, rounded_down
from notebooks.gallery.fits import Coded, InvAct
from notebooks.gallery.latex import as_latex
from notebooks.gallery.shelves import shelves

ARRAY = re.compile(r"static const (double|float|unsigned char) (\w+)\[(\d+)\] = \{\n(.*?)\n\};", re.DOTALL)
# The commands that these texts may use; an article with amsmath knows them.
KNOWN = {
    *("begin", "end", "hline", "text", "operatorname", "mathrm", "for", "otherwise", "cases"),
    *("infty", "times", "sqrt", "frac", "max", "min", "left", "right", "geq", "leq", "wedge"),
}


@pytest.fixture(scope="module")
def fits():
    return [fit for shelf in shelves() for fit in shelf.fits]


def arrays(text: str) -> dict[str, tuple[str, list[str]]]:
    by_name = {}
    for kind, name, count, body in ARRAY.findall(text):
        numbers = [number.strip() for number in body.split(",")]
        assert len(numbers) == int(count)
        assert name not in by_name
        by_name[name] = kind, numbers
    return by_name


def expected(fit) -> dict[str, list[float]]:
    """The numbers of a fit by the end of their arrays' names."""
    solution = fit.document["solution"]
    if isinstance(fit, Coded):
        return {f"_{key}": values for key, values in solution.items() if values}
    sides = ("_left", "_right") if len(solution["branches"]) == 2 else ("",)
    constants = [list(branch["constants"].values()) for branch in solution["branches"]]
    return {side: values for side, values in zip(sides, constants, strict=True) if values}


def test_c_holds_the_numbers_of_the_file(fits):
    checked = 0
    for fit in fits:
        by_name = arrays(as_c(fit))
        version = f"_v{fit.entry.version}" * (fit.entry.version > 1)
        prefix = re.sub(r"\W", "_", f"{fit.entry.function}_{fit.entry.name}{version}")
        values_of = expected(fit)
        singles = {f"{key}_f" for key in values_of if key != "_codes"}
        assert {name.removeprefix(prefix) for name in by_name} == values_of.keys() | singles
        for end, numbers in values_of.items():
            kind, texts = by_name[prefix + end]
            assert kind == ("unsigned char" if end == "_codes" else "double")
            assert [float(text) for text in texts] == numbers
            checked += len(numbers)
            if end != "_codes":
                kind, texts = by_name[f"{prefix}{end}_f"]
                assert kind == "float"
                assert all(text.endswith("f") for text in texts)
                nearest = [rounded_down(value) if end == "_borders" else np.float32(value) for value in numbers]
                assert [np.float32(text[:-1]) for text in texts] == nearest
    assert checked > 2500


def test_a_compiler_reads_the_same_numbers(fits, tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    compiled = [fit for fit in fits if fit.entry.function in ("gelu", "tanhshrink", "threshold", "hardswish")]
    texts = [as_c(fit) for fit in compiled]
    by_name = {name: value for text in texts for name, value in arrays(text).items()}
    loops = [
        f"    for (unsigned i = 0; i < sizeof {name} / sizeof *{name}; i++)\n"
        f'        printf("%a\\n", (double){name}[i]);'
        for name in by_name
    ]
    source = tmp_path / "all.c"
    body = "\n".join(loops)
    source.write_text("#include <stdio.h>\n" + "\n".join(texts) + f"int main(void) {{\n{body}\n    return 0;\n}}\n")
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run([compiler, *strict, str(source), "-o", str(tmp_path / "all")], check=True)
    run = subprocess.run([str(tmp_path / "all")], capture_output=True, text=True, check=True)
    printed = [float.fromhex(line) for line in run.stdout.split()]
    values = [
        float(np.float32(text[:-1])) if kind == "float" else float(text)
        for kind, texts in by_name.values()
        for text in texts
    ]
    assert printed == values
    assert len(printed) > 1000


def test_latex_constants_are_exact(fits):
    for fit in fits:
        if isinstance(fit, InvAct):
            printed = re.findall(r"^  \$[^$]+\$ & \$([^$]+)\$ \\\\$", as_latex(fit), re.MULTILINE)
            stored = [v for branch in fit.document["solution"]["branches"] for v in branch["constants"].values()]
            assert [value(constant) for constant in printed] == stored


def value(maths: str) -> float:
    return float(re.sub(r" \\times 10\^\{(-?\d+)\}", r"e\1", maths))
