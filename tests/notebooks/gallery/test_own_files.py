"""Users' own files: other weights, domains and parameters, and functions of their own."""

import warnings

import pytest

from actfit.coefficients import publish
from actfit.fitting.activations import from_expression, get
from actfit.fitting.fewbit import document
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.joint import document as joint
from actfit.fitting.joint.solve import fit_joint
from actfit.fitting.weights import named
from notebooks.gallery.c_array import as_c
from notebooks.gallery.shelves import shelves
from tests.notebooks.gallery.test_texts import arrays


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    gelu = get("gelu")
    for made in (
        fit(gelu, 1),
        fit(gelu, 1, weight=named("norm")),
        fit(gelu, 1, domain=(-4.0, 4.0)),
        fit(gelu, 1, levels="contiguous"),
        fit(get("softplus", beta=2.0), 1),
        fit(get("softplus"), 2),
        fit(from_expression("x**2/2", "half_square"), 1, domain=(-1e50, 1e50)),
    ):
        document.store(made, folder)
    code = fit_joint(get("tanh"), 1, output_weight=2.0)
    publish(joint.to_document(code), joint.file_name(code), folder)
    return folder


def test_fits_of_a_shelf_go_by_different_names(root):
    labels_of = {shelf.id: [fit.label for fit in shelf.fits] for shelf in shelves(root)}
    assert labels_of["gelu"] == [
        "few-bit, 1 bit",
        "few-bit, 1 bit, contiguous",
        "few-bit, 1 bit, domain=-4.0_4.0",
        "few-bit, 1 bit, norm",
    ]
    for shelf in shelves():
        labels = [fit.label for fit in shelf.fits]
        assert len(labels) == len(set(labels))
        assert all(fit.manner == "" for fit in shelf.fits)  # what is shipped is as by default


def test_each_set_of_parameters_has_a_card(root):
    by_id = {shelf.id: shelf for shelf in shelves(root)}
    assert list(by_id) == ["gelu", "half_square", "softplus", "softplus-2", "tanh"]
    usual, other = by_id["softplus"], by_id["softplus-2"]
    assert [shelf.title for shelf in (usual, other)] == ["softplus", "softplus, beta = 2"]
    assert [len(shelf.fits) for shelf in (usual, other)] == [1, 1]
    assert [shelf.torch for shelf in (usual, other)] == ["torch.nn.functional.softplus(x)", None]


def test_numbers_that_are_no_float_have_no_float_array(root):
    (half_square,) = (fit_ for shelf in shelves(root) for fit_ in shelf.fits if fit_.entry.function == "half_square")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = as_c(half_square)
    assert {kind for kind, _ in arrays(text).values()} == {"double", "unsigned char"}
    assert "There are no float arrays" in text
    assert "inf" not in text
