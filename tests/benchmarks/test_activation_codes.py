"""Codes of an activation and the layer after it: the gradients that are compared, the codes, and the page."""

import pytest
import torch

from benchmarks.activation_codes import __main__ as bench
from benchmarks.activation_codes import page
from benchmarks.activation_codes.codes import WAYS, exact, normal_levels
from benchmarks.activation_codes.sites import RANDOM, TRAINED, Site, network
from benchmarks.pages import read
from benchmarks.rows import read_lines
from coefficients import command


def test_levels_of_normal_numbers() -> None:
    """Those of Max (1960), table I, which has four digits."""
    assert normal_levels(1) == pytest.approx([-0.7980, 0.7980], abs=2e-4)
    assert normal_levels(2) == pytest.approx([-1.510, -0.4528, 0.4528, 1.510], abs=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM)
def test_exact_numbers_give_the_gradients_of_autograd(name: str) -> None:
    net = network(name, 0, quick=True)
    judged = [site for _, site in net.sites()]
    net.module.zero_grad()
    net.runs[1]()
    grads = [weight.grad for weight in net.module.parameters() if weight.grad is not None]
    for site in judged:
        pair = exact(net.function, site.x)
        for gradient in site.gradients(pair):
            nearest = min(
                float((gradient - grad).norm() / grad.norm()) for grad in grads if grad.shape == gradient.shape
            )
            assert nearest < 1e-4  # float32, sums of 256 products
        assert max(site.errors(net.function, pair)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_more_bits_have_less_error(way: str) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, x, gradient, weight = (
        torch.randn(shape, generator=generator) for shape in ((64, 32), (64, 128), (64, 16), (16, 128))
    )
    site = Site(hidden, x, None, gradient, weight, 128)
    samples = bench.quantiles(site)
    errors = [
        min(max(site.errors("gelu", pair)) for pair in WAYS[way]("gelu", x, bits, 128, samples)) for bits in (2, 4, 6)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.2


@pytest.mark.slow
def test_the_command(tmp_path, capsys, monkeypatch) -> None:
    out = tmp_path / "rows.jsonl"
    monkeypatch.setattr(bench, "BITS", (2,))
    monkeypatch.setattr(bench, "RANDOM", {"BERT": "gelu"})
    monkeypatch.setattr(bench, "TRAINED", {})
    assert bench.main(["--quick", "--out", str(out)]) == command.GOOD
    assert {row["implementation"] for row in read_lines(out)} == {page.INPUT, *WAYS}
    assert f"wrote {out}" in capsys.readouterr().out


def test_the_page_has_every_network_and_code() -> None:
    for rows in read(page.NAME).values():
        assert {row["what"] for row in rows} == {*RANDOM, *TRAINED}
        assert {row["implementation"] for row in rows} == {page.INPUT, *WAYS}
    assert page.section().count(f"| {page.TWO_TABLES} |") == 1 + len(RANDOM) + len(TRAINED)
