"""Fixtures: the gallery's page, made once a process, and a browser."""

import shutil
from pathlib import Path

import pytest

from notebooks.gallery.__main__ import main

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def gallery(tmp_path_factory) -> Path:
    """The page of all packaged files."""
    folder = tmp_path_factory.mktemp("gallery")
    assert main(["--out", str(folder)]) == 0
    return folder / "index.html"


@pytest.fixture(scope="session")
def html(gallery) -> str:
    return gallery.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser():
    """Chromium; skips the test if it is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, gallery):
    """A function that opens the page; at the end asserts that it loaded nothing and logged nothing."""
    contexts, requests, complaints = [], [], []

    def opened(**options):
        context = browser.new_context(reduced_motion="reduce", **options)
        contexts.append(context)
        tab = context.new_page()
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto(gallery.as_uri())
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert set(requests) == {gallery.as_uri()} | {url for url in requests if url == "data:,"}
    assert complaints == []
