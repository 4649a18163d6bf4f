"""Every shipped invact file against the 50-digit oracle, at its bound and its ends; and the checker of such files."""

import copy
import json
import math

import mpmath
import numpy as np
import pytest

from actfit.coefficients import load
from actfit.coefficients.document import seal
from actfit.coefficients.store import DATA, available
from actfit.fitting.activations import get, names, oracle
from actfit.fitting.invact.branches import split
from actfit.fitting.invact.document import candidate_of, file_name, to_document
from actfit.fitting.invact.exact import derivative_from_output
from actfit.fitting.invact.formats import FORMATS
from actfit.fitting.invact.solve import fit
from actfit.fitting.invact.verify import verify
from actfit.fitting.provenance import stored_function
from actfit.fitting.stored import read

FILES = sorted(DATA.glob("*/invact-*.json"))
SHORT = [f"{path.parent.name}-{path.stem}" for path in FILES]
# Beyond |x| = 40 every g of the catalogue has reached its limit to 1e-15; next to T, and at extremes, s is least tame.
FAR = (40.0, 1e3, 1e8, 1e30)


def places(lo, hi, border):
    """Points of (lo, hi): random ones, many next to the border, far ones."""
    rng = np.random.default_rng(7)
    points = [rng.uniform(max(lo, -12.0), min(hi, 12.0), 25), border + np.geomspace(1e-9, 1.0, 12)]
    points += [border - np.geomspace(1e-9, 1.0, 12), np.array(FAR), -np.array(FAR)]
    x = np.concatenate(points)
    return x[(lo < x) & (x < hi)]


def exactly(tapes, y):
    """q(y) at 50 digits."""
    with mpmath.workdps(50):
        s, q = tapes
        return q.mp(y, s.mp(y))


def test_every_function_ships_in_every_dtype():
    shipped = {(path.parent.name, path.name.split(".")[0]) for path in FILES}
    assert shipped >= {(name, f"invact-{dtype}") for name in names() for dtype in FORMATS}
    assert {("gelu", "invact-float32-published"), ("silu", "invact-float32-published")} <= shipped


@pytest.mark.parametrize("path", FILES, ids=SHORT)
def test_a_shipped_file_stays_under_its_bound(path):
    document = load(path)
    activation, branches = stored_function(document["function"]), document["solution"]["branches"]
    border = document["solution"]["border"] or 0.0
    for branch, bound in zip(branches, document["error"]["bound"], strict=True):
        lo, hi = (sign * math.inf if end is None else end for sign, end in zip((-1, 1), branch["x"], strict=True))
        tapes = candidate_of(branch).tapes
        for x in places(lo, hi, border):
            with mpmath.workdps(50):
                y, derivative = oracle.f(activation, x), oracle.df(activation, x)
                error = abs(exactly(tapes, y) - derivative)
                # Where g has no limit the bound is in parts of it. 1e-15: the prover tells no smaller errors apart.
                assert error <= (bound + 1e-15) * max(1, abs(derivative)), (x, y, error)


@pytest.mark.parametrize("path", FILES, ids=SHORT)
def test_a_shipped_formula_is_a_number_wherever_y_may_be(path):
    document = load(path)
    activation, branches = stored_function(document["function"]), document["solution"]["branches"]
    form = FORMATS[document["options"]["dtype"]]
    x = np.concatenate([np.linspace(-60, 60, 5001), [-1e30, -1e4, 1e4, 1e30, 0.0, -0.0]])
    x = x[np.abs(x) <= form.largest]
    border = document["solution"]["border"]
    for i, branch in enumerate(branches):
        on_branch = x if border is None else x[(x >= border) == bool(i)]
        y = form.round(activation.f(on_branch))
        y = y[np.isfinite(y)]
        low, high = branch["y"]
        # Also what a kernel may make of f next to its ends: a step of the format beyond them.
        y = np.concatenate(
            [y, [end + k * form.spacing(np.array(end)) for end in (low, high) if end is not None for k in (-1, 1)]]
        )
        s, q = candidate_of(branch).tapes
        values = q.numpy32(y, s.numpy32(y))
        if branch["engine"] != "published":
            assert np.isfinite(values).all(), y[~np.isfinite(values)][:5]


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "quick_gelu", "silu", "mish"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_y_rounded_below_its_least_gives_the_value_there(name, dtype):
    for branch in load(name, f"invact-{dtype}")["solution"]["branches"]:
        least = np.float32(branch["y"][0])
        below = np.array([least * np.float32(1 + 1e-6), least * np.float32(1.01)], dtype=np.float32)
        s, q = candidate_of(branch).tapes
        at_least = q.numpy32(least, s.numpy32(np.float32(least * np.float32(1 + 1e-5))))
        assert (q.numpy32(below, s.numpy32(below)) == at_least).all()


@pytest.mark.parametrize(("name", "published"), [("gelu", 1.87e-2), ("silu", 2.9e-3)])
def test_float32_is_a_thousand_times_nearer_than_the_paper(name, published):
    ours, theirs = load(name, "invact-float32"), load(name, "invact-float32-published")
    assert max(theirs["error"]["sampled"]) == pytest.approx(published, rel=0.005)  # FACTS: to its printed digits
    assert max(ours["error"]["bound"]) * 1000 <= published
    assert ours["error"]["pointwise"] <= 2.0**-20


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_bfloat16_is_on_the_floor_at_no_more_than_the_papers_price(name):
    ours, theirs = load(name, "invact-bfloat16"), load(name, "invact-float32-published")
    error, price = ours["error"], ours["solution"]["price"]["instructions"]
    assert error["rms"] <= 1.02 * error["floor_rms"]
    assert error["linf"] <= 1.10 * error["floor_linf"]
    assert price <= theirs["solution"]["price"]["instructions"]


def wrong_in(document):
    return verify(document)[0]


def forged(document, path, change):
    """A copy with the member at `path` changed."""
    wrong = copy.deepcopy(document)
    *folders, last = path
    at = wrong
    for key in folders:
        at = at[key]
    at[last] = change(at[last])
    return wrong


# A file of each kind: exact with a kink, and without a branch bit; found by a search, by 1 and 2 bits.
CHECKED = (
    *("hardshrink/invact-float32.v1", "relu/invact-bfloat16.v1", "mish/invact-float16.v1"),
    *("tanhshrink/invact-bfloat16.v1", "gelu_tanh/invact-bfloat16-2bit.v1"),
)


@pytest.mark.slow
@pytest.mark.parametrize("path", [DATA / f"{name}.json" for name in CHECKED], ids=CHECKED)
def test_the_checker_finds_nothing_in_a_shipped_file_and_something_in_a_changed_one(path):
    document = load(path)
    problems, unverified = verify(document)
    assert problems == []
    others = len(document["solution"]["front"]) - 1
    assert [line for line in unverified if "solution.front" in line] == (
        [f"{others} other rows of solution.front, as their formulas are not stored"] if others else []
    )
    exact = not any(word in str(document["solution"]["branches"]) for word in ("exp", "2**", "1/3"))
    for key in ("floor_rms", "floor_linf", *(("rms", "linf") if exact else ())):
        # By more than processors differ.
        other = forged(document, ("error", key), lambda v: v * (1 + 1e-8) if v > 2.0**-20 else v + 2.0**-40)
        assert any(f"error.{key}" in problem for problem in wrong_in(other)), key


@pytest.mark.parametrize(
    ("key", "factor"), [("border", 0.9997), ("inner", 0.9999), ("outer", 1.0001), ("output", 1.03)]
)
def test_the_checker_sees_another_cut_output(key, factor):
    """For hardswish, whose formulas are exact: each of the four numbers changes the errors."""
    document = load("hardswish", "invact-bfloat16-2bit")
    wrong = forged(document, ("solution", "cut", key), lambda number: number * factor)
    assert any("error." in problem for problem in wrong_in(wrong))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "change", "said"),
    [
        (("solution", "price", "fma"), lambda n: n + 1, "solution.price must be {'instructions': "),
        (("solution", "rule"), lambda text: text + " or so", "solution.rule must be 'RMS within 2%, largest error"),
        (("options", "max_error"), lambda _: 1e-4, "solution.rule must be kept by the formulas, and they miss: max |q"),
        (("error", "bound", 0), lambda bound: bound * 0.9, "error.bound[0] must be 0.0"),
        (("error", "bound", 1), lambda bound: bound * 1.01, "error.bound[1] must be 0.0"),
        (("error", "bound", 1), lambda _: None, "error.bound[1] must be 0.0"),
        (("error", "sampled", 1), lambda error: error / 2, "error.sampled[1] must be 0.0"),
        (("error", "linf_at"), lambda y: y + 1, "error.linf_at must be "),
        (("solution", "branches", 1, "constants", "c1"), lambda c: c * 1.01, "error.sampled[1] must be "),
        (("solution", "border_side"), lambda _: "left", "border_side"),
        (("solution", "branches", 0, "direction"), lambda _: 1, "direction"),
        (("solution", "border"), lambda _: -1.0, "solution.border must be "),
        (("function", "expr"), lambda _: "x*sigmoid(2*x)", "function.expr"),
        (("error", "pointwise"), lambda error: error / 2, "error.pointwise must be "),
        (("solution", "front"), lambda rows: rows[:1], "solution.front must have the row that was chosen"),
        (("solution", "front", -1, "rms"), lambda _: 9.0, None),
        (("solution", "front"), lambda rows: [*rows, {**rows[-1]}], "solution.front must have one other row a price"),
    ],
)
def test_forged_fields_are_refused(path, change, said):
    document = load("silu", "invact-bfloat16")
    problems = wrong_in(forged(document, path, change))
    if said is None:  # of other rows only their order can be seen
        problems = wrong_in(
            forged(
                forged(forged(document, path, change), (*path[:-1], "linf"), change), (*path[:-1], "pointwise"), change
            )
        )
        said = "solution.front must have rows that err less as they cost more"
    assert any(said in problem for problem in problems), problems


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_the_rule_of_forms_that_were_not_fitted(name):
    document = load(name, "invact-bfloat16" if name == "relu" else "invact-bfloat16-published")
    assert document["solution"]["rule"].startswith("closed" if name == "relu" else "published")
    assert wrong_in(document) == []
    for text in ("closed; misses: RMS within 1%", "minimax", "RMS within 2%"):
        assert any(
            "solution.rule" in problem
            for problem in wrong_in(forged(document, ("solution", "rule"), lambda _, text=text: text))
        )


def test_a_relaxed_rule_is_said_to_be_unverified():
    document = load("tanhshrink", "invact-bfloat16")
    assert verify(document)[1][0] == "solution.rule, as the least error that was found for it is not stored"
    # Where the dtype's own rule is kept, it must not be relaxed.
    relaxed = document["solution"]["rule"]
    other = forged(load("silu", "invact-bfloat16"), ("solution", "rule"), lambda _: relaxed)
    assert any("solution.rule must be 'RMS within 2%" in problem for problem in wrong_in(other))


def test_a_weight_that_is_not_stored_leaves_errors_unverified():
    document = forged(load("gelu", "invact-bfloat16"), ("options", "weight"), lambda _: "samples:0123456789abcdef")
    problems, unverified = verify(document)
    assert problems == []
    assert unverified[:2] == [
        "solution.rule, as the weight is not in the file (samples: --weight FILE)",
        "error.rms and error.floor_rms, as the weight is not in the file (samples: --weight FILE)",
    ]


def test_expressions_are_read_by_the_grammar():
    assert read(load("gelu", "invact-bfloat16")) == []
    for path, text, said in (
        (("solution", "branches", 0, "expression"), "open('x')", "solution.branches[0].expression: "),
        (("solution", "branches", 1, "variable"), "y.real", "solution.branches[1].variable: "),
        (("function", "expr"), "x*Phi(x", "expression"),
        (("function", "expr"), "x*sigmoid(x)", "function.expr must be 'x*Phi(x)' for gelu"),
    ):
        [problem] = read(forged(load("gelu", "invact-bfloat16"), path, lambda _, text=text: text))
        assert problem.startswith(said), problem


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "quick_gelu", "silu", "mish", "tanhshrink"])
def test_float32_holds_at_stored_outputs_that_no_fit_has_seen(name):
    document = load(name, "invact-float32")
    activation = get(name)
    rng = np.random.default_rng(11)
    for i, (stored_branch, branch) in enumerate(
        zip(document["solution"]["branches"], split(activation).branches, strict=True)
    ):
        low, high = branch.range
        spans = [rng.uniform(max(low, -reach), min(high, reach), 200_000) for reach in (40.0, 3.0)]
        next_to_end = low + 10.0 ** rng.uniform(-12, 0, 50_000) if math.isfinite(low) else np.zeros(1)
        y = np.concatenate([*spans, next_to_end]).astype(np.float32)
        y = y[(low <= y) & (y <= high)]
        s, q = candidate_of(stored_branch).tapes
        error = np.abs(q.numpy32(y, s.numpy32(y)) - derivative_from_output(branch, y.astype(np.float64)))
        assert error.max() <= 2.0**-20, (i, y[int(np.argmax(error))])
        # What the file says was looked for at two million others: these half a million may exceed it by little.
        assert error.max() <= 1.1 * document["error"]["pointwise"]


@pytest.mark.parametrize("name", ["mish", "hardswish"])
def test_the_same_command_makes_the_same_bytes(name):
    version = max(entry.version for entry in available() if (entry.function, entry.name) == (name, "invact-bfloat16"))
    path = DATA / name / f"invact-bfloat16.v{version}.json"
    fitted = fit(get(name), "bfloat16")
    assert file_name(fitted) == "invact-bfloat16"
    made = seal(to_document(fitted), 1)
    shipped = json.loads(path.read_text(encoding="ascii"))
    assert made == seal(to_document(fit(get(name), "bfloat16")), 1)
    # Another processor's float64 functions may differ by some ulp, and with them the last digits of coefficients.
    for key in ("linf", "rms", "floor_linf", "floor_rms"):
        assert made["error"][key] == pytest.approx(shipped["error"][key], rel=1e-3)
    assert {**made["solution"], "branches": []}.keys() == {**shipped["solution"], "branches": []}.keys()
    assert (made["function"], made["options"]) == (shipped["function"], shipped["options"])
