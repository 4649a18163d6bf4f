"""The packages' public names are imported when they are first used, and no earlier."""

import subprocess
import sys
from pathlib import Path

import pytest

import actfit
import actfit.kernels.memory
from actfit import coefficients

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", [actfit, coefficients, actfit.kernels.memory], ids=lambda package: package.__name__)
def test_every_public_name_is_there(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert set(names) <= set(dir(package))
    assert all(getattr(package, name).__name__.rpartition(".")[2] == name for name in names)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'"):
        _ = package.nothing  # type: ignore[attr-defined]


def ran(code: str, *arguments: str) -> tuple[int, str, str]:
    """The status and output of a separate Python process."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_names_are_imported_when_they_are_used_and_touch_nothing_private() -> None:
    """What was put in place of one stays."""
    code = (
        "import sys, actfit.coefficients, actfit.kernels.memory\nfrom actfit import coefficients\n"
        "print(*{'torch', 'numpy', 'json', 'argparse'} & set(sys.modules))\n"
        "actfit.compress = coefficients.load = None\n"
        "from actfit import *\n"
        "print(nn.GELU(method='fewbit').method, 'torch' in sys.modules, compress, coefficients.load)\n"
        "print({'compress', 'functional', 'nn', '__name__'} <= {*dir(actfit)}, hasattr(actfit, 'kernels.errors'))\n"
        "from actfit.kernels import memory, private, record\n"
        "made = [getattr(package, name) for package in (actfit, nn, functional, memory, record)"
        " for name in package.__all__]\n"
        "print([name for name in private.NAMES if name in vars(private)])"
    )
    assert ran(code) == (0, "\nfewbit True None None\nTrue False\n[]\n", "")


HOMES = {
    "broken.py": "import nothing_like_it\nname = 1",
    "odd.py": "lost = object().attribute",
    "good.py": "fine = 'fine'",
    "__init__.py": """from actfit.coefficients.lazy import lazily
__getattr__, __dir__ = lazily(__name__, {"broken": ("name",), "odd": ("lost",), "good": ("fine", "gone")})
""",
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fine", "fine"),
        ("name", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("lost", "ImportError: shop.lost cannot be imported: 'object' object has no attribute 'attribute'"),
        ("gone", "ImportError: shop.gone cannot be imported: module 'shop.good' has no attribute 'gone'"),
        ("never", "ImportError: cannot import name 'never' from 'shop'"),
    ],
)
def test_a_name_imports_its_own_home_and_shows_the_real_error(name: str, expected: str, tmp_path: Path) -> None:
    """Whatever is wrong with the homes of other names."""
    (tmp_path / "shop").mkdir()
    for file, text in HOMES.items():
        (tmp_path / "shop" / file).write_text(text)
    code = f"""import sys
sys.path.insert(0, sys.argv[1])
try:
    from shop import {name}
    print({name})
except ImportError as error:
    print(f"{{type(error).__name__}}: {{error}}".partition(" (")[0])
"""
    _, out, err = ran(code, str(tmp_path))
    assert out.strip() == expected, err
