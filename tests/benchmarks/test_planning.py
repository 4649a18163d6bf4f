"""`benchmarks.planning`: the rivals at equal bytes, the networks, rows and their page."""

import pytest
import torch

from benchmarks.baselines import gact
from benchmarks.parsers import PLANNING_MODELS
from benchmarks.planning import __main__ as planning
from benchmarks.planning import errors, page, steps
from benchmarks.planning.nets import SMALL, TIMED, TINY, build
from benchmarks.rows import read_lines
from coefficients import command
from kernels import KernelError
from kernels.memory.measure import trial
from kernels.planning.observe import observe

MIXTRAL = SMALL["BERT"]._replace(layers=2, batch=2, length=64, width=64)


def run(*arguments):
    return command.run(planning.PROG, lambda: planning.main(arguments), (KernelError,))


def test_narrowing_starts_where_a_byte_costs_least():
    """Both start with 8 bits, of 100 and 1000 bytes each: narrowing the first by k bits frees 100 k bytes."""
    sizes = {"small": 100, "large": 1000}
    sensitivities = {"small": 1.0, "large": 1.0}

    def total(bits):
        return sum(sizes[site] * width for site, width in bits.items())

    def bits(most):
        return gact.allocate(
            sensitivities, (2, 4, 8), lambda site, width: sizes[site] * width, lambda b: total(b) <= most
        )

    assert bits(8800) == {"small": 8, "large": 8}
    assert bits(8799) == {"small": 8, "large": 4}  # as much harm as to the other, for ten times the bytes
    # To 2 bits, the large one loses 4^-2 - 4^-4 for 2000 bytes; the small one, to 4 bits, 4^-4 - 4^-8 for 400.
    assert bits(4799) == {"small": 4, "large": 4}
    sensitivities["large"] = 1e-6
    assert bits(4799) == {"small": 8, "large": 2}
    assert bits(2200) == {"small": 2, "large": 2}
    with pytest.raises(ValueError, match="bytes must be enough for 2 bits everywhere, got fewer"):
        bits(2199)


def test_sensitivity_is_the_variance_times_the_steps():
    assert gact.sensitivities(lambda bits: {"a": 3.0, "b": 5.0}[next(iter(bits))], ["a", "b"], 2) == {"a": 48, "b": 80}


def test_interpolated_errors():
    points = [(100, 1e-1), (200, 1e-3), (400, 0.0)]
    assert errors.interpolated(points, 100) == pytest.approx(1e-1)
    assert errors.interpolated(points, 150) == pytest.approx(1e-2)  # its logarithm is linear
    assert errors.interpolated(points, 350) == pytest.approx(0.5e-3)  # a fourth of the square
    assert errors.interpolated(points, 400) == errors.interpolated(points, 500) == 0


def test_draws_vary_as_codes_err():
    """Half the squared distance of two draws estimates the variance, the only error of unbiased codes.

    Both are sums over some 10^4 independent errors, so they agree far better than a factor of two if the network is
    nearly linear in the errors, as it is for codes of 8 bits.
    """
    case = build("BERT", TINY["BERT"], 0)
    names = [site.name for site in observe(case.module, *case.batches[0]).sites]
    bits = dict.fromkeys(names, 8)
    with errors.gradients(case, case.batches[0], errors.Draws, "stochastic") as drawn:
        assert drawn.variance({}) == 0
        assert 0.5 < drawn.variance(bits) / drawn.error(bits) < 2


def test_every_network_has_its_sizes():
    assert tuple(SMALL) == PLANNING_MODELS
    assert set(TIMED) == set(TINY) < set(SMALL)


def test_experts_are_those_of_transformers():
    case = build("Mixtral", MIXTRAL, 0)
    own = case.module(**case.batches[0].kwargs)[0]
    case.module.config._experts_implementation = "eager"
    stock = case.module(**case.batches[0].kwargs)[0]
    # Sums of as many products as the network is wide, of numbers around 1 behind its last norm.
    torch.testing.assert_close(own, stock, rtol=0, atol=64 * torch.finfo(torch.float32).eps * 16)
    assert observe(
        build("Mixtral", MIXTRAL, 0).module, *case.batches[0]
    ).sites  # on fakes, where transformers' does not run


def test_an_image_reaches_the_end_of_efficientnet():
    case = build("EfficientNet", SMALL["EfficientNet"]._replace(batch=2, length=32), 0)
    logits = case.module(**case.batches[0].kwargs).logits
    assert logits.std(0).min() > 1e-3  # with transformers' own weights 10^-31


def test_seeds_draw_other_weights_and_batches_other_samples():
    first, second = build("BERT", TINY["BERT"], 0), build("BERT", TINY["BERT"], 1)
    assert not torch.equal(next(first.module.parameters()), next(second.module.parameters()))
    plan, check, held_out = (batch.kwargs["input_ids"] for batch in first.batches)
    assert plan.shape == (TINY["BERT"].batch, TINY["BERT"].length)
    assert not torch.equal(plan, check)
    assert not torch.equal(check, held_out)


def test_checkpoints_keep_less_for_longer():
    case = build("BERT", TINY["BERT"], 0)
    call = case.batches[0]
    kept, peak = steps.checkpointed(case.module, call)
    stock = trial(case.module, *call).total
    assert 0 < kept < stock
    assert kept < peak
    assert not any("forward" in vars(block) for block in case.net().blocks)  # it was a copy


@pytest.mark.slow
def test_quick_rows_and_their_page(tmp_path, capsys, monkeypatch):
    out = tmp_path / "rows.jsonl"
    assert run("--quick", "--models", "BERT", "--out", str(out)) == command.GOOD  # convolutions take a minute more
    rows = read_lines(out)
    compiled = [mode + errors.COMPILED for mode in page.MODES]
    others = (planning.ACCOUNTING, planning.ALLOCATOR, planning.TIME)
    assert {row["mode"] for row in rows} == {*page.MODES, *compiled, *others}
    kept = {(row["mode"], row["implementation"]): row["median"] for row in rows if row["unit"] == errors.KEPT}
    stock = kept[planning.ACCOUNTING, "stock"]
    for modes in (page.MODES, compiled):
        assert all(kept[mode, "plan"] <= stock / times for mode, times in zip(modes, errors.LESS, strict=True))
    said = capsys.readouterr().out
    assert "BERT: MiB at the peak by accounting: budget" in said
    assert "BERT: error by uniform, interpolated / plan: 12 × less" in said
    monkeypatch.setattr(page, "read", lambda name: {"a-cpu": rows})
    text = page.section()
    assert "| 8 × less | BERT |" in text
    assert "| 8 × less, compiled | BERT |" in text
    assert "the error by GACT is" in text
    assert "BERT, inputs 2 × 64, with a budget of" in text


def test_no_rows_no_tables(monkeypatch):
    monkeypatch.setattr(page, "read", lambda name: {})
    assert page.section() == "No rows yet.\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--models", "LSTM"), "models must be of BERT, GPT-2,"),
        (("--what", "speed"), "what must be of errors, compiled, bytes, times, got 'speed'"),
        (("--seeds", "0"), "seeds must be a whole number from 1 to 100, got '0'"),
        (("--runs", "none"), "runs must be a whole number from 1 to 10000, got 'none'"),
    ],
)
def test_wrong_words(words, message, capsys):
    assert run(*words) == command.MISUSED
    assert message in capsys.readouterr().err
