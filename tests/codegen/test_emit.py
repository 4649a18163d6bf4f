"""What is emitted: modules that stand alone do what the runtime does, and nothing from outside gets into them."""

import ast
import inspect
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from actfit.codegen import generated
from actfit.codegen.closed import CLOSED
from actfit.codegen.elements import derivative_from_output
from actfit.codegen.module import texts_of
from actfit.codegen.options import METHODS
from actfit.codegen.options import method as method_of
from actfit.codegen.standalone import Request, emit
from actfit.codegen.subject import Subject, of_catalogue, of_one
from actfit.coefficients import load
from actfit.coefficients.store import DATA
from actfit.fitting.activations import from_expression, get, names
from actfit.fitting.errors import InputError
from actfit.kernels.engine import launch, reference
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.methods.table import largest_float32
from benchmarks.baselines.oracle import all_inputs
from tests.codegen.run import module
from tests.kernels.specs import spec

TORCH_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def request(name, method="invact", dtype="bfloat16", bits=None):
    return Request(of_catalogue(name), method_of(method, bits), dtype, ("python", "-m", "codegen", "emit"))


def sample(dtype, count=2048):
    """Numbers of all sizes, infinities among them, of a count that 8 does not divide."""
    torch.manual_seed(3)
    numbers = torch.randn(count - 3) * torch.exp(torch.randn(count - 3) * 2)
    numbers[::100], numbers[1::100] = torch.inf, -torch.inf
    return numbers.to(TORCH_DTYPES[dtype])


def run_triton(emitted, x, params=()):
    """y, what is saved, and the gradient of y.sum(), by a module that stands alone."""
    given = [params] if params else []
    y, saved = emitted.forward_pass(x, *given)
    takes_output = "y" in inspect.signature(emitted.backward_pass).parameters
    return y, saved, emitted.backward_pass(torch.ones_like(x), *([y] if takes_output else []), saved, *given)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", names())
def test_a_module_that_stands_alone_does_what_the_runtime_does(name, method, tmp_path):
    # Each function and each method has both; bfloat16 differs in numbers only, and the interpreter rounds it wrongly.
    dtype = ("float16", "float32")[(names().index(name) + METHODS.index(method)) % 2]
    if method == "invact-precision-bit" and FUNCTIONS[name].branches == 1:
        with pytest.raises(InputError, match="must have two branches to tell apart"):
            emit(request(name, method, dtype), "triton")
        return
    emitted = module(emit(request(name, method, dtype), "triton"), tmp_path)
    kernel = spec(name, method, 3 if method == "fewbit" else 0)
    params = tuple(FUNCTIONS[name].parameters.values())
    x = sample(dtype)
    with np.errstate(all="ignore"):
        y, saved, dx = run_triton(emitted, x, params)
        expected, kept = launch.forward(kernel, x, params)
        gradient = launch.backward(
            kernel, torch.ones_like(x), expected if kernel.storage.keeps_output else None, kept, params
        )
    assert torch.equal(y, expected)
    if kernel.storage.name not in ("output", "marked_output"):
        assert torch.equal(saved, kept)
    assert torch.equal(dx, gradient)


@pytest.mark.usefixtures("interpreter")
def test_launchers_take_any_strides_no_elements_and_one_dtype(tmp_path):
    emitted = module(emit(request("silu", dtype="float32"), "triton"), tmp_path)
    x, grad = torch.randn(7, 5).t(), torch.randn(5, 7)
    y, saved = emitted.forward_pass(x)
    dx = emitted.backward_pass(grad, y, saved)
    exact = x.double().requires_grad_()
    expected = torch.nn.functional.silu(exact)
    expected.backward(grad.double())
    torch.testing.assert_close(y.double(), expected.detach(), rtol=4 * 2.0**-24, atol=2.0**-24)  # four roundings
    largest = load("silu", "invact-float32")["error"]["linf"] * float(grad.abs().max())  # next to the minimum of f
    torch.testing.assert_close(dx.double(), exact.grad, rtol=4 * 2.0**-24, atol=largest)
    empty, nothing = emitted.forward_pass(torch.empty(0))
    assert emitted.backward_pass(torch.empty(0), empty, nothing).shape == (0,)
    with pytest.raises(TypeError, match=r"x must be a tensor of torch\.float32, got torch\.bfloat16"):
        emitted.forward_pass(x.bfloat16())


@pytest.mark.parametrize("method", [method for method in METHODS if method != "invact-precision-bit"])
@pytest.mark.parametrize("name", names())
def test_the_twin_that_stands_alone_does_what_the_runtime_does(name, method, tmp_path):
    emitted = module(emit(request(name, method, "float32"), "torch"), tmp_path)
    kernel = spec(name, method, 3 if method == "fewbit" else 0)
    params = tuple(FUNCTIONS[name].parameters.values())
    x = sample("float32")
    y, saved = emitted.forward_pass(x, params)
    expected, kept = reference.forward(kernel, x, params)
    assert torch.equal(y, expected)
    grad = torch.ones_like(x)
    gradient = reference.backward(kernel, grad, expected if kernel.storage.keeps_output else None, kept, params)
    takes = (y, saved) if kernel.storage.keeps_output else (saved,)
    got = emitted.backward_pass(grad, *takes, params)
    # A formula in y of some twenty operations moves by 2**-19 at most in float32: each of the two, as the runtime has
    # operations of its own.
    rounding = {"rtol": 2 * 2.0**-23, "atol": 2 * 2.0**-19} if kernel.storage.keeps_output else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(got, gradient, **rounding)


@pytest.mark.usefixtures("interpreter")
def test_a_function_of_ones_own(tmp_path):
    snake = from_expression("x + sin(a*x)**2/a", "snake", {"a": 1.5})
    text = emit(Request(Subject(snake, (), {}), method_of("forward-ad", None), "float32", ("python",)), "triton")
    x = sample("float32").clamp(-30, 30)
    y, saved, dx = run_triton(module(text, tmp_path), x)
    exact, slope_ = snake.f(x.double().numpy()), snake.df(x.double().numpy())
    # sin of a*x: its argument, up to 45, is rounded to 24 bits; two multiplications follow.
    np.testing.assert_allclose(y.numpy(), exact, rtol=4 * 2.0**-24, atol=45 * 2.0**-23)
    np.testing.assert_allclose(dx.numpy(), slope_, rtol=4 * 2.0**-24, atol=1.5 * 45 * 2.0**-22)
    assert torch.equal(dx, saved)


@pytest.mark.parametrize("target", ["triton", "torch"])
@pytest.mark.usefixtures("interpreter")
def test_a_function_of_ones_own_has_its_limits_at_infinity(target, tmp_path):
    """Where they are finite, and the text as it stands gives NaN: -inf*0, inf/inf."""
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 3e38, -3e38])
    for expr, f, df in (
        ("x*sigmoid(2*x)", [torch.inf, 0.0], [1.0, 0.0]),
        ("x/(1 + abs(x))", [1.0, -1.0], [0.0, 0.0]),
        ("x*exp(-x**2)", [0.0, 0.0], [0.0, 0.0]),
    ):
        own = Request(Subject(from_expression(expr), (), {}), method_of("forward-ad", None), "float32", ("python",))
        emitted = module(emit(own, target), tmp_path)
        if target == "triton":
            with np.errstate(all="ignore"):
                y, _, dx = run_triton(emitted, x)
        else:
            y, saved = emitted.forward_pass(x)
            dx = emitted.backward_pass(torch.ones_like(x), saved)
        assert y[:2].tolist() == f
        assert dx[:2].tolist() == df
        assert torch.isnan(y[2])
        assert torch.isnan(dx[2])
        torch.testing.assert_close(dx[3:], torch.tensor(df), rtol=0, atol=2.0**-126)  # 1/|x| there
        assert torch.isfinite(y[3:]).all()


@pytest.mark.parametrize("name", CLOSED)
def test_formulas_for_any_parameters_agree_with_the_files(name):
    for dtype in ("bfloat16", "float16"):
        x = all_inputs(TORCH_DTYPES[dtype])
        y = torch.from_numpy(get(name).f(x[torch.isfinite(x)].double().numpy())).to(x.dtype).float()
        free = of_catalogue(name)
        values, outcomes = tuple(FUNCTIONS[name].parameters.values()), []
        for subject, params in ((free, values), (Subject(free.activation, (), free.files), ())):
            space = {"torch": torch}
            function = derivative_from_output(subject, dtype, "torch")
            exec(compile("\n\n".join(texts_of([function], dtype, "torch")), name, "exec"), space)  # our own text
            on_right = [torch.ones_like(y, dtype=torch.bool)] if "on_right" in function.arguments else []
            derivative = torch.as_tensor(space[function.name](y, *on_right, params))
            outcomes.append(torch.broadcast_to(derivative, y.shape).float())
        torch.testing.assert_close(*outcomes, rtol=2.0**-22, atol=0)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("leaky_relu", {"negative_slope": 0.3}),
        ("threshold", {"threshold": -0.4, "value": 2.0}),
        ("hardtanh", {"min_val": -0.1, "max_val": 0.7}),
        ("softplus", {"beta": 2.5}),
        ("elu", {"alpha": 0.4}),
    ],
)
@pytest.mark.parametrize("target", ["triton", "torch"])
@pytest.mark.usefixtures("interpreter")
def test_parameters_may_be_numbers_in_the_text(name, params, target, tmp_path):
    activation = get(name, **params)
    x = sample("float32").clamp(-20, 20)
    text = emit(Request(of_one(activation), method_of("invact", None), "float32", ("python",)), target)
    emitted = module(text, tmp_path)
    if target == "triton":
        y, _, dx = run_triton(emitted, x)
    else:
        y, saved = emitted.forward_pass(x)
        dx = emitted.backward_pass(torch.ones_like(x), y, saved)
    border = torch.tensor(activation.breakpoints or [99.0])
    away = (x[:, None] - border).abs().min(1).values > 1e-3  # where y is flat or bent, rounding decides
    torch.testing.assert_close(y.double(), torch.from_numpy(activation.f(x.double().numpy())), rtol=1e-6, atol=1e-6)
    exact = torch.from_numpy(activation.df(x.double().numpy()))
    torch.testing.assert_close(dx.double()[away], exact[away], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", names())
def test_generated_files_are_what_is_emitted(name):
    texts = dict(generated.texts_of(name))
    assert {f"{name}_{target}.py" for target in ("triton", "torch")} <= {path.name for path in texts}
    for path, text in texts.items():
        assert generated.problem(path, text) is None


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_borders_in_float32_decide_as_those_of_the_file(name, bits):
    solution = load(name, f"fewbit-{bits}bit")["solution"]
    for border in solution["borders"]:
        below = np.float32(largest_float32(border))
        assert float(below) <= border < float(np.nextafter(below, np.float32(np.inf)))


def changed(change, monkeypatch):
    """GELU with a coefficient file as somebody might hand it to us, had it passed the checks of its reader."""
    document = json.loads(json.dumps(load("gelu", "invact-bfloat16")))
    change(document["solution"]["branches"][0])
    monkeypatch.setattr("actfit.codegen.subject.load", lambda path: document)
    return of_one(get("gelu"), Path("hostile.json"))


@pytest.mark.parametrize("bad", ["tl", "lambda", "exec", "s", "maximum", "c0\n"])
def test_a_constant_cannot_hide_anything(bad, monkeypatch):
    def rename(branch):
        branch["constants"][bad] = branch["constants"].pop("c0")
        branch["expression"] = branch["expression"].replace("c0", bad.strip())

    with pytest.raises(InputError, match="and not taken, got"):
        changed(rename, monkeypatch)


@pytest.mark.parametrize("key", ["expression", "variable"])
@pytest.mark.parametrize("bad", ["__import__('os').system('id')", "s.__class__", "(lambda: 0)()", '"""'])
def test_a_formula_is_read_by_the_grammar_alone(bad, key, monkeypatch):
    subject = changed(lambda branch: branch.update({key: bad}), monkeypatch)
    with pytest.raises(InputError, match="expression"):
        emit(Request(subject, method_of("invact", None), "bfloat16", ("python",)), "triton")


def test_texts_in_the_header_stay_in_the_header(tmp_path):
    folder = tmp_path / 'a""" + __import__("os") #\n'
    folder.mkdir()
    path = folder / "f.json"
    path.write_bytes((DATA / "gelu" / "invact-bfloat16.v1.json").read_bytes())
    command = ("python", '"""; import os; """', "\\", "\n", "é")
    for target in ("triton", "torch"):
        text = emit(Request(of_one(get("gelu"), path), method_of("invact", None), "bfloat16", command), target)
        tree = ast.parse(text)
        assert isinstance(tree.body[0], ast.Expr)
        assert all(
            isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.FunctionDef) for node in tree.body[1:]
        )
        imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
        assert imported <= {"torch", "triton", "triton.language"}


@pytest.mark.slow
def test_everything_emitted_is_imports_constants_and_functions():
    texts = dict(generated.texts())
    assert generated.strangers(texts) == []
    for path, text in texts.items():
        tree = ast.parse(text)
        assert isinstance(tree.body[0], ast.Expr), path
        imports = ast.ImportFrom if path.stem == "functions" or path.stem.endswith("_loops") else ast.Import
        kinds = imports | ast.Assign if path.stem == "functions" else imports | ast.FunctionDef | ast.Assign
        assert all(isinstance(node, kinds) for node in tree.body[1:]), path
        # Nothing of libdevice, which the interpreter lacks.
        assert "libdevice" not in text
