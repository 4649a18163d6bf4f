"""The page in Chromium: sorting, filtering, copying, selecting fits, narrow screens, dark mode, no JavaScript."""

from pathlib import Path

import pytest

from actfit.coefficients.store import DATA
from tests.notebooks.gallery.test_page import shown_entries

pytestmark = pytest.mark.slow

COPIES = {
    "gelu-fewbit-3bit.v1-json": DATA / "gelu" / "fewbit-3bit.v1.json",
    "gelu-joint-3bit.v1-json": DATA / "gelu" / "joint-3bit.v1.json",
    "silu-invact-float32.v1-json": DATA / "silu" / "invact-float32.v1.json",
    "relu-triton": Path(__file__).parents[3] / "kernels" / "generated" / "relu_triton.py",
}


def values(tab, column: int) -> list[str]:
    script = "(n) => [...document.querySelectorAll('#page-table tbody tr')].map((r) => r.cells[n].dataset.value)"
    return tab.evaluate(script, column)


def column_of(tab, name: str) -> int:
    return [heading.strip() for heading in tab.locator("#page-table thead th").all_inner_texts()].index(name)


def test_numbers_sort(visit):
    tab = visit()
    for name in ("Error", "Instr.", "Paper’s"):
        column = column_of(tab, name)
        heading = tab.locator("#page-table thead th").nth(column)
        before = values(tab, column)
        for direction in ("ascending", "descending"):
            heading.get_by_role("button").click()
            assert heading.get_attribute("aria-sort") == direction
            cells = values(tab, column)
            numbers = [float(cell) for cell in cells if cell]
            assert numbers == sorted(numbers, reverse=direction == "descending")
            assert cells[len(numbers) :] == [""] * (len(cells) - len(numbers))  # those without a value are last
            assert sorted(cells) == sorted(before)
        assert tab.locator("[aria-sort]").count() == 1


def test_filter(visit):
    tab = visit()
    entries = shown_entries()
    tab.keyboard.press("/")
    tab.keyboard.type("GELU  3 bits")
    shown = tab.locator("#page-table tbody tr:visible th").all_inner_texts()
    assert sorted(shown) == ["gelu"] * 2 + ["gelu_tanh"] * 2 + ["quick_gelu"] * 2  # a few-bit table and a joint code
    assert tab.locator(".card:visible h3").all_inner_texts() == ["gelu", "gelu_tanh", "quick_gelu"]
    assert tab.locator("#page-found").inner_text() == f"3 of {len({entry.function for entry in entries})}, 6 fits"
    tab.fill("#page-filter", "nonsense")
    assert tab.locator(".card:visible").count() == tab.locator("#page-table tbody tr:visible").count() == 0
    assert tab.locator(".nothing").is_visible()
    tab.fill("#page-filter", "phi")  # of an expression
    assert tab.locator(".card:visible h3").all_inner_texts() == ["gelu"]
    tab.fill("#page-filter", "")
    assert tab.locator("#page-table tbody tr:visible").count() == len(entries)
    assert tab.locator(".card:visible").count() == len({entry.function for entry in entries})


@pytest.mark.parametrize("by_clipboard", [True, False])
def test_copies_are_exact(visit, by_clipboard):
    tab = visit(permissions=["clipboard-read", "clipboard-write"])
    if not by_clipboard:
        tab.evaluate("void (navigator.clipboard.writeText = () => Promise.reject(new Error('refused')))")
    for id_, path in COPIES.items():
        button = tab.locator(f'[data-copy="{id_}"]')
        panel = id_.removesuffix("-json")
        if panel != id_:
            tab.evaluate("(id) => document.getElementById(id).click()", f"{panel}-choice")
        button.click()
        tab.wait_for_function("(b) => b.textContent === 'Copied'", arg=button.element_handle())
        assert tab.evaluate("navigator.clipboard.readText()") == path.read_text(encoding="utf-8")
        assert tab.locator("#page-said").inner_text().startswith("Copied the ")


def test_a_chosen_fit_is_shown_alone(visit):
    tab = visit()
    card = tab.locator("#silu")
    assert card.locator(".panel:visible h4").all_inner_texts() == ["few-bit, 3 bits"]
    tab.locator('[id="silu-fewbit-3bit.v1-choice"]').focus()
    tab.keyboard.press("ArrowRight")
    assert card.locator(".panel:visible h4").all_inner_texts() == ["few-bit, 4 bits"]
    buttons = card.locator(".chooser input")
    for i in range(buttons.count()):
        buttons.nth(i).check(force=True)
        assert card.locator(".panel:visible h4").all_inner_texts() == [buttons.nth(i).get_attribute("aria-label")]
    assert tab.locator("#gelu .panel:visible").count() == 1


def test_without_a_script(visit):
    tab = visit(java_script_enabled=False)
    assert tab.locator("button:visible").count() == 0
    assert tab.locator("#page-filter:visible").count() == 0
    tab.locator('[id="gelu-invact-bfloat16.v1-choice"]').check(force=True)
    assert tab.locator("#gelu .panel:visible h4").all_inner_texts() == ["InvAct, bfloat16"]
    tab.locator("#gelu .panel:visible summary").first.click()
    assert '"method": "invact"' in tab.locator("#gelu .panel:visible pre:visible").inner_text()
    tab.locator('#page-table [href="#mish-invact-float16.v1"]').click()
    assert "InvAct, float16" in tab.locator("#mish .panel:visible h4").all_inner_texts()
