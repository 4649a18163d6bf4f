"""python -m codegen, as a user types it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from actfit.codegen import generated
from actfit.codegen.__main__ import run
from actfit.coefficients.store import DATA
from tests.codegen.run import module

ROOT = Path(__file__).parents[2]


def ask(capsys, *words):
    """Exit status, stdout and stderr."""
    try:
        status = run([*words])
    except SystemExit as ended:
        status = ended.code
    return status, *capsys.readouterr()


def test_emit_prints_a_module(capsys):
    status, out, err = ask(capsys, "emit", "--fn", "silu")
    assert (status, err) == (0, "")
    assert out.startswith('"""silu(x) = x*sigmoid(x)\n')
    assert "Coefficients: coefficients/data/silu/invact-bfloat16.v1.json, sha256 " in out
    assert "Made by: actfit emit --fn silu\n" in out
    compile(out, "silu", "exec")


def test_hardshrink_rounds_lambd_as_pytorch_does(capsys, tmp_path):
    words = ("--fn", "hardshrink", "--method", "forward-ad", "--target", "torch")
    _, text, _ = ask(capsys, "emit", *words, "--param", "lambd=0.1")
    emitted = module(text, tmp_path)
    x = torch.tensor([0.1, 0.1006, -0.1], dtype=torch.bfloat16)  # 0.1 is rounded up
    y, saved = emitted.forward_pass(x)
    assert torch.equal(y, torch.nn.functional.hardshrink(x, 0.1))
    assert emitted.backward_pass(torch.ones_like(x), saved).tolist() == [0, 1, 0]
    note = "parameters must be numbers of bfloat16, as PyTorch's function rounds them."
    assert note in ask(capsys, "emit", *words)[1]


def test_emit_writes_a_file_and_the_same_bytes_again(capsys, tmp_path):
    path = tmp_path / "gelu.py"
    words = ("emit", "--fn", "gelu", "--method", "fewbit", "--bits", "2", "--dtype", "float16")
    assert ask(capsys, *words, "-o", str(path)) == (0, f"wrote {path}\n", "")
    first = path.read_bytes()
    for out in (["--out", str(path)], [f"--out={path}"], ["--ou", str(path)]):
        assert ask(capsys, *words, *out)[0] == 0
        assert path.read_bytes() == first
    assert first.decode() == ask(capsys, *words)[1]
    assert [path.name for path in tmp_path.iterdir()] == ["gelu.py"]


@pytest.mark.slow
def test_a_fit_of_ones_own(capsys, tmp_path):
    fit = tmp_path / "steep.json"
    words = ["--expr", "x*sigmoid(2*x)", "--name", "steep"]
    command = [sys.executable, "-m", "actfit.fitting.fewbit", *words, "--bits", "2", "--out", str(fit), "--quiet"]
    subprocess.run(command, cwd=ROOT, check=True)
    status, out, err = ask(capsys, "emit", *words, "--method", "fewbit", "--coefficients", str(fit))
    assert (status, err) == (0, "")
    assert f"Coefficients: {fit}, sha256 " in out
    assert "c = tl.where(" in out


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """kernels/generated of a checkout that is there for the test, empty."""
    folder = tmp_path / "kernels" / "generated"
    folder.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setattr(generated, "FOLDER", folder)
    return folder


@pytest.fixture(scope="module")
def emitted():
    """All that is emitted, made once: some seconds."""
    return {path.name: text for path, text in generated.texts()}


@pytest.fixture
def remembered(emitted, folder, monkeypatch):
    """`generated.texts` as it was called before."""
    monkeypatch.setattr(generated, "texts", lambda: ((folder / name, text) for name, text in emitted.items()))
    return emitted


@pytest.mark.slow
def test_check_sees_what_was_changed(capsys, folder, remembered):
    texts = remembered
    for name, text in texts.items():
        (folder / name).write_text(text)
    assert ask(capsys, "check") == (0, f"{len(texts)} files, 0 bad\n", "")
    (folder / "relu_triton.py").write_text(texts["relu_triton.py"].replace("0.0", "0.5"))
    (folder / "gelu_torch.py").unlink()
    (folder / "mine.py").write_text("")
    status, out, _ = ask(capsys, "check")
    assert status == 1
    assert f"{folder / 'relu_triton.py'}: differs from what is emitted, first in line" in out
    assert f"{folder / 'gelu_torch.py'}: is missing" in out
    assert f"{folder / 'mine.py'}: no function of the catalogue emits this file" in out
    assert out.endswith(f"{len(texts)} files, 3 bad; to write them anew: actfit emit --all\n")
    status, out, _ = ask(capsys, "emit", "--all")
    assert status == 0
    assert "mine.py is not an emitted file" in out
    assert "2 files written" in out
    assert (folder / "relu_triton.py").read_text() == texts["relu_triton.py"]


@pytest.mark.slow
def test_what_pip_installed_is_not_written_to(capsys, folder, remembered):
    (folder.parents[1] / "pyproject.toml").unlink()
    status, out, err = ask(capsys, "emit", "--all")
    assert (status, out) == (2, "")
    assert err.startswith("codegen: --all writes the kernels of a checkout of actfit, and must be run in one, got ")
    assert list(folder.iterdir()) == []
    status, out, _ = ask(capsys, "check")
    assert status == 1
    assert out.endswith(
        f"{len(remembered)} files, {len(remembered)} bad; to write them anew: install the package again\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required"),
        (["inspect"], "say what to inspect by --fn, as in: inspect --fn gelu --method fewbit --bits 3; got none"),
        (["emit", "--fn", "gelu", "--expr", "x"], "got both"),
        (["emit", "--fn", "x*tanh(x)"], "unknown function 'x*tanh(x)'; an expression goes to --expr"),
        (["emit", "--fn", "gleu"], "unknown function 'gleu'; did you mean"),
        (["emit", "--fn", "gelu", "--method", "inwact"], "method must be one of forward-ad, fewbit, invact"),
        (["emit", "--fn", "gelu", "--dtype", "float64"], "dtype must be one of bfloat16, float16, float32, got"),
        (
            ["emit", "--fn", "gelu", "--bits", "2", "--dtype", "float32"],
            "method invact, 2 bits must have a formula for",
        ),
        (["emit", "--fn", "elu", "--param", "alpha"], "param must be NAME=VALUE, each name once, got 'alpha'"),
        (["emit", "--expr", "x**2", "--name", "gelu"], "name must not be one of the catalogue's, got 'gelu'"),
        (["emit", "--expr", "x**2", "--name", "_square"], "name must begin with a letter, got '_square'"),
        (["emit", "--fn", "relu2", "--method", "fewbit"], "must have a function whose f' has a bound, got relu2"),
        (["emit", "--expr", "x*sigmoid(2*x)"], "method invact must have a formula for custom in bfloat16"),
        (
            ["emit", "--fn", "tanh", "--method", "invact-precision-bit"],
            "must have two branches to tell apart, got tanh",
        ),
        (["emit", "--fn", "gelu", "--coefficients", "nowhere.json"], "coefficients must be a file, got 'nowhere.json'"),
        (
            ["emit", "--fn", "gelu", "--coefficients", str(DATA / "gelu" / "joint-2bit.v1.json")],
            "coefficients must be of fewbit or invact, got joint in",
        ),
        (["emit", "--fn", "gelu", "-o", "/nowhere/gelu.py"], "out must be in a folder that exists"),
        (["emit", "--all", "--fn", "gelu"], "--all writes what the project ships, and must stand alone, got --fn too"),
        (["inspect", "--fn", "gelu", "--arch", "sm_10"], "arch must be one of"),
    ],
)
def test_bad_input_gets_one_line_and_code_2(words, message, capsys):
    status, out, err = ask(capsys, *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
    assert err.startswith("codegen: ")


HOSTILE = ["exp(50*x)", "1e200*tanh(1e200*x)", "where(0 <= x, phi(1e308), min(x, 709))", "4.9e-324*x"]


@pytest.mark.slow
@pytest.mark.parametrize("expression", HOSTILE)
def test_hostile_numbers_are_one_line_in_every_command(expression, capsys, tmp_path, monkeypatch):
    from actfit.fitting.fewbit.__main__ import run as fewbit
    from actfit.fitting.invact.__main__ import run as invact

    monkeypatch.chdir(tmp_path)
    for command, words in (
        (fewbit, ["--bits", "1", "--out", "-"]),
        (invact, ["--dtype", "bfloat16", "--out", "-"]),
        (run, ["emit", "--method", "forward-ad"]),
    ):
        status = command([*words, "--expr", expression])
        _, err = capsys.readouterr()
        assert (status, err.count("\n")) in ((0, 0), (2, 1)), err
        assert len(err) < 700


def test_hostile_parameters_are_one_line(capsys):
    for value in ("1e308", "5e-324", "0", "nan", "1_000", "x"):
        status, _, err = ask(capsys, "emit", "--expr", "a*x", "--param", f"a={value}", "--method", "forward-ad")
        assert status == 2
        assert err.count("\n") == 1
