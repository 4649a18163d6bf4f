"""Links to functions and fits, in Chromium: their targets are shown below the bar."""

import pytest

pytestmark = pytest.mark.slow


def test_a_line_of_the_table_leads_to_its_fit(visit):
    tab = visit()
    line = tab.locator('#page-table [href="#mish-invact-float16.v1"]')
    for _ in range(2):  # the second time the address stays as it is
        line.click()
        assert_seen(tab, "mish", "InvAct, float16")
        assert tab.url.endswith("#mish-invact-float16.v1")
        tab.locator('[id="mish-fewbit-1bit.v1-choice"]').check(force=True)


def assert_seen(tab, function: str, label: str) -> None:
    """Assert that the card is below the bar and shows this fit only."""
    tab.locator(f"#{function} .panel:visible h4", has_text=label).wait_for()
    assert tab.locator(f"#{function} .panel:visible h4").all_inner_texts() == [label]
    box, bar = tab.locator(f"#{function}").bounding_box(), tab.locator("header.bar").bounding_box()
    assert bar["y"] + bar["height"] <= box["y"] < 400


@pytest.mark.parametrize("width", [360, 1280])
def test_an_address_leads_to_its_fit(visit, gallery, width):
    tab = visit(viewport={"width": width, "height": 800})
    tab.goto("about:blank")
    tab.goto(f"{gallery.as_uri()}#gelu-fewbit-4bit.v1")
    assert_seen(tab, "gelu", "few-bit, 4 bits")
    tab.evaluate("location.hash = 'silu-invact-float32.v1'")
    assert_seen(tab, "silu", "InvAct, float32")
    tab.go_back()
    assert_seen(tab, "gelu", "few-bit, 4 bits")
    assert tab.url.endswith("#gelu-fewbit-4bit.v1")


def test_an_address_that_the_filter_hides_ends_it(visit):
    tab = visit()
    for address, label in (("gelu", "few-bit, 3 bits"), ("gelu-fewbit-4bit.v1", "few-bit, 4 bits")):
        tab.fill("#page-filter", "tanhshrink")
        assert not tab.locator("#gelu").is_visible()
        tab.evaluate("(hash) => { location.hash = hash }", address)
        assert_seen(tab, "gelu", label)
        assert tab.input_value("#page-filter") == ""
        assert tab.locator("#page-found").inner_text() == ""
