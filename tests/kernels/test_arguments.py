"""Arguments that are accepted and refused, the messages, and users' own tables."""

import inspect
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import actfit
from actfit import KernelError, functional
from actfit.coefficients import load
from actfit.coefficients.document import digest
from actfit.fitting.fewbit.__main__ import run
from actfit.kernels.activation import activation
from actfit.kernels.generated.functions import FUNCTIONS

ROOT = Path(__file__).parents[2]


def fit(path: Path, *words: str) -> Path:
    """A few-bit table, made by the command."""
    assert run([*words, "--out", str(path), "--quiet"]) == 0
    return path


def slopes(x: torch.Tensor, name: str, **options) -> torch.Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(activation(name, x, **options).sum(), x)[0]


class OwnLinear(torch.nn.Linear):
    """A linear layer that does more than nn.Linear."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + 1


X = torch.linspace(-4, 4, 999)


def test_parameters_go_by_name_with_and_without_gradient():
    for x in (X, X.clone().requires_grad_()):
        for method in ("invact", "stock"):
            y = activation("hardtanh", x, max_val=0.5, method=method)
            assert torch.equal(y, torch.nn.functional.hardtanh(x, max_val=0.5))
            assert torch.equal(activation("threshold", x, method=method), torch.nn.functional.threshold(x, 0.1, 20.0))


MODULES = {name.lower(): getattr(torch.nn, name) for name in dir(torch.nn)}  # their functions may have no signature
NAMES = [name for name in FUNCTIONS if name.replace("_", "") in MODULES]


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_torchs(name):
    """Their names, order and defaults; ours come after them, by keyword alone."""
    theirs = inspect.signature(MODULES[name.replace("_", "")]).parameters.values()
    named = [each for each in theirs if each.kind is each.POSITIONAL_OR_KEYWORD]  # not *args of what takes none
    theirs = [(each.name, each.default) for each in named if each.name not in ("inplace", "min_value", "max_value")]
    first, *ours = inspect.signature(getattr(functional, name)).parameters.values()
    assert first.name == "input"
    assert [(each.name, each.default) for each in ours[: len(theirs)]] == theirs
    assert {each.kind for each in ours[len(theirs) :]} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.slow
def test_a_table_of_ones_own(tmp_path):
    path = fit(tmp_path / "mine.json", "--fn", "elu", "--param", "alpha=0.5", "--bits", "3")
    layer = actfit.nn.ELU(alpha=0.5, method="fewbit", coefficients=path)
    assert repr(layer) == f"ELU(alpha=0.5, method='fewbit', coefficients={str(path)!r})"
    derivatives = slopes(X, "elu", alpha=0.5, method="fewbit", coefficients=path)
    exact = torch.where(X > 0, 1.0, 0.5 * X.exp())
    assert len(derivatives.unique()) == 8
    assert (derivatives - exact).abs().max() < 0.1  # the table's own error: 3 bits on a range of 1
    # A changed file under the same name is read again.
    fit(path, "--fn", "elu", "--param", "alpha=0.5", "--bits", "2")
    assert len(slopes(X, "elu", alpha=0.5, method="fewbit", coefficients=path).unique()) == 4


@pytest.mark.slow
def test_a_relative_path_is_of_the_folder_one_is_in(tmp_path, monkeypatch):
    for bits in ("1", "2"):
        (tmp_path / bits).mkdir()
        fit(tmp_path / bits / "t.json", "--fn", "gelu", "--bits", bits)
        monkeypatch.chdir(tmp_path / bits)
        assert len(slopes(X, "gelu", method="fewbit", coefficients="t.json").unique()) == 2 ** int(bits)


@pytest.mark.slow
def test_a_layer_keeps_its_table(tmp_path, monkeypatch):
    """Made from a relative path, a module runs in another folder, and after the file is deleted."""
    path = fit(tmp_path / "t.json", "--fn", "silu", "--bits", "1")
    monkeypatch.chdir(tmp_path)
    layer = actfit.nn.SiLU(method="fewbit", coefficients="t.json")
    monkeypatch.chdir(ROOT)
    path.unlink()
    x = X.clone().requires_grad_()
    assert len(torch.autograd.grad(layer(x).sum(), x)[0].unique()) == 2
    with pytest.raises(KernelError, match=r"must be a file that can be read, got .*: No such file"):
        actfit.nn.SiLU(method="fewbit", coefficients="t.json")


def forged(path, name, bits, change):
    """A packaged table after `change`, with the matching hash."""
    document = load(name, f"fewbit-{bits}bit")
    change(document)
    path.write_text(json.dumps({**document, "sha256": digest(document)}), "utf-8")
    return path


def test_a_table_of_another_function_is_refused(tmp_path):
    def renamed(document):
        document["function"] |= {"name": "gelu", "expr": "x*Phi(x)"}

    cases = [
        (
            lambda document: document["function"].update(expr="tanh(x)"),
            "gelu",
            "function.expr must be .* where the name is 'gelu'",
        ),
        (
            lambda document: document["solution"]["levels"].__setitem__(7, 1e6),
            "gelu",
            "must be a value that the derivative of gelu",
        ),
        (renamed, "tanh", "solution must be within error.linf of the derivative of gelu"),
    ]
    for i, (change, name, message) in enumerate(cases):
        path = forged(tmp_path / f"{i}.json", name, 3, change)
        with pytest.raises(KernelError, match=f"coefficients must be of gelu: .*{message}"):
            actfit.nn.GELU(method="fewbit", coefficients=path)


@pytest.mark.slow
def test_tables_that_do_not_fit_are_refused(tmp_path):
    path = fit(tmp_path / "silu.json", "--fn", "silu", "--bits", "2")
    cases = [
        ({"coefficients": path}, "must be a fewbit file of gelu, got fewbit of silu"),
        ({"coefficients": tmp_path / "none.json"}, "must be a file that can be read, got .*: No such file"),
        ({"coefficients": tmp_path}, "must be a file that can be read, got .*: Is a directory"),
        ({"coefficients": ""}, "must be the path of a file, got ''"),
        ({"coefficients": 3}, "must be the path of a file, got 3"),
        ({"coefficients": ROOT / "README.md"}, "must be a file that"),
    ]
    for options, message in cases:
        with pytest.raises(KernelError, match=message):
            actfit.nn.GELU(method="fewbit", **options)
    with pytest.raises(KernelError, match="bits must be those of the file, 2, got 3"):
        actfit.nn.SiLU(method="fewbit", bits=3, coefficients=path)
    other = fit(tmp_path / "elu.json", "--fn", "elu", "--bits", "1")
    with pytest.raises(KernelError, match="coefficients must be for"):
        actfit.nn.ELU(alpha=0.5, method="fewbit", coefficients=other)
    path = fit(tmp_path / "one.json", "--fn", "leaky_relu", "--param", "negative_slope=1", "--bits", "1")
    with pytest.raises(KernelError, match="two levels or more"):
        actfit.nn.LeakyReLU(1.0, method="fewbit", coefficients=path)


@pytest.mark.parametrize("bits", [0, 9, -1, 2.0, "3", True, [3]])
def test_bits_are_whole_numbers_from_1_to_8(bits):
    actfit.nn.GELU(method="fewbit", bits=3)  # cached, but 3.0 and True must not hit the cache
    actfit.nn.GELU(method="fewbit", bits=1)
    with pytest.raises(KernelError, match="bits must be a whole number from 1 to 8"):
        actfit.nn.GELU(method="fewbit", bits=bits)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: actfit.nn.GELU(method="inwact"), "method must be one of stock, forward-ad, .* did you mean invact"),
        (lambda: actfit.nn.GELU(bits=3), "bits must be 1 or 2 for method='invact', got 3"),
        (lambda: actfit.nn.GELU(method="stock", bits=3), "bits must go with method='fewbit' or 'invact'"),
        (lambda: actfit.nn.ReLU(inplace=True), "inplace must be False, got True"),
        (lambda: actfit.nn.LeakyReLU(-0.5), "negative_slope must be at least 0 for method='invact', got -0.5"),
        (lambda: actfit.nn.ELU(alpha=2, method="fewbit"), "for the default parameters of elu, got alpha=2; make one"),
        (lambda: actfit.nn.Tanh(method="invact-precision-bit"), "must have two branches to tell apart, got tanh"),
        (lambda: actfit.nn.Softplus(threshold=5), "threshold must be at least 20"),
        (lambda: actfit.nn.GELU("fewbit"), "approximate must be 'none' or 'tanh', got 'fewbit'"),
        (lambda: actfit.nn.Softplus(beta=0), "beta must not be 0"),
        (lambda: actfit.nn.ELU(alpha="a"), "alpha must be a number, got 'a'"),
        (lambda: functional.leaky_relu(X, None), "negative_slope must be a number, got None"),
        (lambda: functional.elu(X, torch.nn.Parameter(torch.ones(()))), "alpha must be a number, got a tensor"),
        (lambda: actfit.functional.geglu(X, X, approximate="tanh"), "bits or coefficients, got approximate"),
        (lambda: actfit.functional.swiglu(X, X, method="nope"), "method must be one of exact, stock, forward-ad"),
        (lambda: activation("GELO", X), "did you mean"),
        (lambda: actfit.nn.Threshold(0, float("inf")), "value must be finite, got inf"),
        (lambda: functional.gelu(X, "tan"), "approximate must be 'none' or 'tanh', got 'tan'"),
        (lambda: activation("gleu", X), "function must be one of .* did you mean gelu"),
        (lambda: activation("gleu", X, method="stock"), "function must be one of"),
        (lambda: activation("gelu", X, alpha=1), r"parameter must be one that gelu has \(none\), got 'alpha'"),
        (lambda: actfit.nn.ActLinear("tanh", torch.nn.Linear(2, 2)), "must fall to a minimum and rise again"),
        (lambda: actfit.nn.ActLinear("gelu", torch.nn.ReLU()), "linear must be an nn.Linear, got ReLU"),
        (lambda: actfit.nn.ActLinear(torch.nn.GELU(), torch.nn.Linear(2, 2)), "act must be a module of actfit.nn"),
        (lambda: actfit.nn.ActLinear("gelu", OwnLinear(2, 2)), "its own forward"),
        (lambda: actfit.functional.swiglu(X, X, method="exact", bits=2), "bits must go with method='fewbit'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(ask, message):
    with pytest.raises(KernelError, match=message) as refused:
        ask()
    assert "\n" not in str(refused.value)


HUGE = 10**5000
PARAMETERS = [(name, parameter) for name in FUNCTIONS for parameter in FUNCTIONS[name].parameters]


@pytest.mark.parametrize("method", ["invact", "stock"])
@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_what_is_no_number_is_refused_as_a_parameter(name, parameter, method):
    """Messages are one short line, with a gradient and without, also for what cannot be printed or converted."""
    values = [HUGE, -(10**400), Fraction(10**400), float("nan"), float("inf"), 1e300, 1j, np.complex64(1)]
    values += ["1", b"1", None, [1.0], object(), np.ones(2), np.ones(1)]
    values += [torch.ones(2), torch.ones((), device="meta"), torch.tensor(1j)]
    for value in values:
        for dtype in (torch.float16, torch.float32):
            for x in (X.to(dtype), X.to(dtype).requires_grad_()):
                with pytest.raises(KernelError, match=rf"{parameter} must be [^\n]*, got [^\n]*$") as refused:
                    activation(name, x, method=method, **{**FUNCTIONS[name].parameters, parameter: value})
                assert len(str(refused.value)) < 200


@pytest.mark.parametrize("value", [True, np.float32(1), np.int64(1), torch.tensor(1.0), Fraction(1), 1])
def test_numbers_of_any_kind_are_parameters(value):
    assert torch.equal(functional.celu(X.clone().requires_grad_(), value), torch.nn.functional.celu(X, 1.0))


def test_parameters_must_be_numbers_of_the_dtype():
    for x in (X.half(), X.half().requires_grad_()):
        for method in ("invact", "stock"):
            with pytest.raises(KernelError, match=r"value must be at most 65504 .* largest number of float16, got"):
                functional.threshold(x, 0.1, 1e5, method=method)
    with pytest.raises(KernelError, match=r"beta must be at least 1.18e-38 in size, got 1e-310: softplus divides by"):
        functional.softplus(X, beta=1e-310)
    with pytest.raises(KernelError, match="max_val must be at least min_val, got min_val=1 and max_val=-1"):
        functional.hardtanh(X, 1, -1)
    with pytest.raises(KernelError, match="lambd must be at least 0, got -1"):
        functional.softshrink(X, -1)


@pytest.mark.parametrize(
    "value",
    [HUGE, float("nan"), "x" * 10**6, "a\nb", b"1", 1j, [1], {}, object(), np.ones(2), torch.ones(2)],
    ids=["huge", "nan", "long", "lines", "bytes", "complex", "list", "dict", "object", "array", "tensor"],
)
def test_what_is_no_word_or_whole_number_is_refused_in_one_short_line(value):
    asks = [
        lambda: actfit.nn.GELU(method="fewbit", bits=value),
        lambda: actfit.nn.GELU(method=value),
        lambda: actfit.nn.GELU(approximate=value),
        lambda: functional.softplus(X, threshold=value if value is not HUGE else None),
        lambda: actfit.nn.Hardtanh(value, 1.0),
        lambda: actfit.nn.Hardtanh(-1.0, value if value is not HUGE else -2.0),
        lambda: actfit.nn.ReLU(inplace=value),
        lambda: activation(value, X),
        lambda: actfit.functional.swiglu(X, X, method=value),
        lambda: actfit.nn.ActLinear(value, torch.nn.Linear(2, 2)),
        lambda: actfit.backend(value),
    ]
    for ask in asks:
        with pytest.raises(KernelError) as refused:
            ask()
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 400


def test_whole_numbers_of_any_kind_and_aliases():
    assert actfit.nn.GELU(method="fewbit", bits=np.int64(2)).bits == 2
    assert torch.equal(activation("swish", X), torch.nn.functional.silu(X))


@pytest.mark.parametrize("method", ["invact", "fewbit", "forward-ad"])
def test_float64_gradients_keep_their_digits(method):
    x = X.double()
    bits = {"bits": 1} if method == "fewbit" else {}
    slope = slopes(x, "leaky_relu", method=method, **bits)
    assert torch.equal(slope, torch.where(x > 0, 1.0, torch.full_like(x, 0.01)))


def test_a_default_device_changes_nothing(tmp_path):
    torch.set_default_device("meta")
    try:
        y = functional.relu6(X.clone().requires_grad_())
        z = slopes(X, "gelu", method="fewbit", bits=6)
    finally:
        torch.set_default_device(None)
    assert (y.device.type, z.device.type) == ("cpu", "cpu")
