"""Links to functions and to fits, in Chromium: what they name is shown, below the bar."""

import pytest


def test_a_line_of_the_table_leads_to_its_fit(visit):
    tab = visit()
    line = tab.locator('#page-table [href="#mish-invact-float16.v1"]')
    for _ in range(2):  # the second time the address stays as it is
        line.click()
        tab.wait_for_function("location.hash === '#mish-invact-float16.v1'")
        assert_seen(tab, "mish", "InvAct, float16")
        tab.locator('[id="mish-fewbit-1bit.v1-choice"]').check(force=True)


def assert_seen(tab, function: str, label: str) -> None:
    """That the card, with this fit, stands below the bar."""
    assert tab.locator(f"#{function} .panel:visible h4").all_inner_texts() == [label]
    box, bar = tab.locator(f"#{function}").bounding_box(), tab.locator(".bar").bounding_box()
    assert bar["y"] + bar["height"] <= box["y"] < 400


@pytest.mark.parametrize("width", [360, 1280])
def test_an_address_leads_to_its_fit(visit, gallery, width):
    tab = visit(viewport={"width": width, "height": 800})
    tab.goto("about:blank")
    tab.goto(f"{gallery.as_uri()}#gelu-fewbit-5bit.v1")
    assert_seen(tab, "gelu", "few-bit, 5 bits")
    tab.evaluate("location.hash = 'silu-invact-float32.v1'")
    tab.wait_for_function("document.querySelector('[id=\"silu-invact-float32.v1-choice\"]').checked")
    assert_seen(tab, "silu", "InvAct, float32")
    tab.go_back()
    tab.wait_for_function("location.hash === '#gelu-fewbit-5bit.v1'")
    assert_seen(tab, "gelu", "few-bit, 5 bits")


def test_an_address_that_the_filter_hides_ends_it(visit):
    tab = visit()
    for address, label in (("gelu", "few-bit, 3 bits"), ("gelu-fewbit-5bit.v1", "few-bit, 5 bits")):
        tab.fill("#page-filter", "tanhshrink")
        assert not tab.locator("#gelu").is_visible()
        tab.evaluate("(hash) => { location.hash = hash }", address)
        tab.wait_for_function("document.getElementById('page-filter').value === ''")
        assert_seen(tab, "gelu", label)
        assert tab.locator("#page-found").inner_text() == ""


def test_an_address_of_nothing_changes_nothing(visit, gallery):
    tab = visit()
    for address in ("nothing", "%", "page-all", ""):
        tab.evaluate("(hash) => { location.hash = hash }", address)
    tab.fill("#page-filter", "mish")
    tab.evaluate("location.hash = 'page-functions'")
    tab.wait_for_function("location.hash === '#page-functions'")
    assert tab.input_value("#page-filter") == "mish"
