"""What the engines of symbolic regression share: the front of forms, and the child process."""

import subprocess
from itertools import pairwise

import numpy as np
import pytest

from actfit.fitting.errors import InputError
from actfit.fitting.invact.formula import Form
from actfit.fitting.invact.symbolic import Data, child, error, front, operon, pruned, size, sound_at
from actfit.fitting.invact.variable import S
from tests.fitting.invact.symbolic.forms import C, data, form

NEAR = np.geomspace(1e-12, 1, 300)
# y and s on branches where y = s² - 0.17: from the turning point to infinity, of which float32's ends at 3.4e38, and to
# y = 0. And y from one infinity to the other, where s is y itself.
FAR_S = np.concatenate([[0], NEAR, np.linspace(0, 16, 1600), np.geomspace(16, 5e18, 400)])
LEFT_S = 0.17**0.5 * np.concatenate([np.linspace(0, 1, 1000), NEAR, 1 - NEAR])
FAR, LEFT = ((s**2 - 0.17, s) for s in (FAR_S, LEFT_S))
LINE = (np.concatenate([-(FAR_S**2), FAR_S**2]),) * 2


@pytest.mark.parametrize(
    ("text", "sound"),
    [
        ("1 - exp(-y)", True),
        ("1/(1 - 0.4*s)", False),  # a pole at s = 2.5
        ("1/abs(s - 2.5)", False),
        ("1/(abs(s - 2.5) + 1)", True),
        ("log(s)", False),
        ("1/log(s + 0.5)", False),  # log is 0 at s = 0.5
        ("sqrt(1 - s)", False),
        ("sqrt(abs(1 - s))", True),
        ("(s - 0.5)**1.3", False),
        ("exp(y)", False),  # infinite in the end
        ("y**2*exp(-y)", False),  # infinite times 0 in float32
        ("exp(-y**2)", True),
        ("0.5 + 0*s", False),  # constant
    ],
)
def test_sound_to_infinity(text, sound):
    assert sound_at(form(text), *FAR) == sound


def test_sound_on_a_bounded_branch():
    assert sound_at(form("1/(1 - 0.4*s)"), *LEFT)
    assert not sound_at(form("1/(s - 0.3)"), *LEFT)
    above = np.maximum(-LEFT[0], 0)  # its mirror image, where y falls from 0.17 to 0
    assert sound_at(form("sqrt(0 - y)"), -above, LEFT[1])
    assert not sound_at(form("sqrt(y)"), *LEFT)
    assert sound_at(form("sqrt(y)"), above, LEFT[1])
    assert sound_at(form("exp(-y*y)"), *LINE)
    assert not sound_at(form("1/(y + 4)"), *LINE)


def test_the_front_is_ordered_and_each_is_better():
    forms = [form(text) for text in ("1.4*s*exp(-2*s) + 0", "1.1*s", "1.2*s", "0.3*s + 0.1", "1/(s - s**2)", "2*s + y")]
    kept = front(forms, data())
    assert front(reversed(forms), data()) == kept
    assert [size(formula) for formula in kept] == sorted({size(formula) for formula in kept})
    errors = [error(formula, data()) for formula in kept]
    assert all(b < a for a, b in pairwise(errors))
    assert all(np.isfinite(errors))
    assert min(error(formula, data()) for formula in forms[:-2]) == errors[-1]


def test_the_error_is_weighted():
    at = Data(np.zeros(2), np.array([1.0, 2.0]), np.array([2.0, 5.0]), np.array([3.0, 1.0]))
    assert error(Form(S, (), "test"), at) == (3 * 1 + 1 * 9) / 4
    assert np.isnan(error(form("sqrt(0 - s)"), at))


def test_pruning_leaves_out_one_number():
    expressions = {rest.expression for rest in pruned(form("0.5*s + 0.25"))}
    assert expressions == {C[0] * S}  # not the number alone
    assert list(pruned(Form(1 / (C[0] * S), (2.0,), "test"))) == []


@pytest.mark.slow
def test_a_child_that_fails_is_one_line(tmp_path):
    with (
        pytest.raises(InputError, match=r"engine operon: .*data\.npz") as caught,
        child("actfit.fitting.invact.symbolic.operon", tmp_path, subprocess.PIPE),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_a_child_is_gone_after_an_interrupt(tmp_path, module):
    sleeper = module("sleeper", "import time\nwhile True: time.sleep(1)")
    with pytest.raises(KeyboardInterrupt), child(sleeper, tmp_path, subprocess.PIPE) as process:
        raise KeyboardInterrupt
    assert process.poll() is not None


@pytest.mark.parametrize(
    ("source", "limit", "message"),
    [
        ("import time\nwhile True: time.sleep(1)", 0.2, r"its process was stopped after 0\.2 seconds"),
        ("import os\nos.abort()", None, ".*-6"),
    ],
)
def test_a_child_that_is_killed_is_one_line(source, limit, message, tmp_path, module):
    killed = pytest.raises(InputError, match=rf"engine dying: {message}")
    with killed, child(module("dying", source), tmp_path, subprocess.PIPE, limit):
        pass


def test_a_search_that_dies_between_two_runs_is_one_line(module, monkeypatch):
    dying = module("dying", "import os, sys\nsys.stdout.write('[]\\n[[[\"Var')\nsys.stdout.flush()\nos.abort()")
    monkeypatch.setattr(operon, "find_spec", lambda name: True)
    monkeypatch.setattr(operon, "child", lambda name, *rest: child(dying, *rest))
    with pytest.raises(InputError, match=r"engine dying: .*-6"):
        operon.search(data(), 1, 2)
