"""The documentation's site builds without a warning, is complete, and needs no network."""

import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; that it builds without a warning is tested here."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": ""}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what mkdocs compiles beside its hooks is no part of the site
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


def test_what_is_public_is_in_the_reference(site):
    import actfit
    import actfit.fitting.activations

    text = "".join(path.read_text("utf-8") for path in (site / "reference" / "api").glob("*.html"))
    packages = (actfit, actfit.nn, actfit.coefficients, actfit.fitting.activations)
    public = {
        f"{package.__name__}.{name}"
        for package in packages
        for name in package.__all__
        if not inspect.ismodule(getattr(package, name))
    }
    twice = {name: f"{name}.{name.rpartition('.')[2]}" for name in public}  # a function in a module of its own name
    assert [name for name in public if not any(f'id="{place}"' in text for place in (name, twice[name]))] == []


def test_the_code_that_makes_pages_is_none(site):
    assert [path for path in site.rglob("*") if path.suffix in (".py", ".pyc") or path.name == "__pycache__"] == []


def test_a_browser_asks_nobody_and_searches_in_files(site):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("Chromium is not installed")
    sync_playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").sync_playwright

    asked: list[str] = []
    wide: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 800})
        page.set_default_timeout(180_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: asked.append(f"error: {error}"))
        for name in ("results/slack.html", "reference/api/kernels.html", "index.html"):
            page.goto(f"file://{site}/{name}")
        page.click(".md-search__input")
        page.keyboard.type("certificate")
        page.wait_for_selector(".md-search-result__item")
        search_results = page.inner_text(".md-search-result")
        page.set_viewport_size({"width": 390, "height": 800})
        for path in sorted(site.rglob("*.html")):
            page.goto(f"file://{path}")
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wide.append(path.relative_to(site).as_posix())
        browser.close()
    assert "The certificate" in search_results
    assert wide == [], "these pages are wider than a phone"
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:"))] == []
