"""The documentation's site builds without a warning, is complete, and needs no network."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
NOT_LOADED = {"canonical", "next", "prev", "alternate"}  # relations of <link> that a browser does not follow by itself
ELSEWHERE = re.compile(r"^(?:https?:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"(?:url\(\s*|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)", re.IGNORECASE)


class Page(HTMLParser):
    """The resources, links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.names: set[str] = set()
        self.in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        self.in_style = tag == "style"
        if tag in LOADS and LOADS[tag] in given:
            self.loads.append(given[LOADS[tag]])
        self.loads += [part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()]
        if tag == "link" and not set(given.get("rel", "").split()) & NOT_LOADED:
            self.loads.append(given.get("href", ""))
        self.loads += IN_STYLE.findall(given.get("style", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])

    def handle_data(self, data: str) -> None:
        if self.in_style:
            self.loads += IN_STYLE.findall(data)

    def handle_endtag(self, tag: str) -> None:
        self.in_style = False


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


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}


def in_navigation(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    members = entry.values() if isinstance(entry, dict) else entry
    return [page for member in members for page in in_navigation(member)]


def lost(site: Path, pages: dict[Path, Page]) -> list[str]:
    """Broken links within the site, with their pages."""
    broken = []
    for path, page in pages.items():
        for link in {*page.links, *page.loads}:
            parts = urlsplit(link)
            if parts.scheme or ELSEWHERE.match(link):
                continue
            root = site if parts.path.startswith("/") else path.parent
            target = (root / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].names):
                broken.append(f"{path.relative_to(site)}: {link}")
    return broken


def foreign(pages: dict[Path, Page]) -> list[str]:
    """Resources that pages load from other sites."""
    return [link for page in pages.values() for link in page.loads if ELSEWHERE.match(link)]


def test_every_page_is_in_the_navigation_once(site, pages):
    nav = in_navigation(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    named = [Path(page).with_suffix(".html").as_posix() for page in nav]
    assert len(named) == len(set(named))
    built = {path.relative_to(site).as_posix() for path in pages}
    assert {page for page in built if not page.startswith("source/")} - {"404.html"} == set(named)


def test_links_lead_somewhere(site, pages):
    assert len(pages) > 20
    assert lost(site, pages) == []


def test_nothing_is_loaded_from_elsewhere(site, pages):
    assert foreign(pages) == []
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]
    assert styles
    assert [url for style in styles for url in IN_STYLE.findall(style)] == []


def test_the_code_that_makes_pages_is_none(site):
    assert [path for path in site.rglob("*") if path.suffix in (".py", ".pyc") or path.name == "__pycache__"] == []


def plain(text: str) -> str:
    """Text without tags, marks of code and line breaks."""
    return " ".join(unescape(re.sub(r"<[^>]+>", "", text)).replace("`", "").split())


def test_what_is_public_is_in_the_reference_with_its_words(pages, site):
    import actfit
    import actfit.fitting.activations
    from actfit.fitting.activations import Activation
    from actfit.fitting.fewbit import solve as fewbit
    from actfit.fitting.invact import solve as invact

    names = set().union(*(page.names for path, page in pages.items() if path.parent == site / "api"))
    packages = (actfit, actfit.nn, actfit.coefficients, actfit.fitting.activations)
    members = {f"{package.__name__}.{name}": getattr(package, name) for package in packages for name in package.__all__}
    public = {name: member for name, member in members.items() if not inspect.ismodule(member)}
    public |= {f"{module.__name__}.fit": module.fit for module in (fewbit, invact)}
    public["actfit.fitting.activations.Activation.df"] = Activation.df
    words = plain(
        " ".join((site / "api" / path.name).read_text("utf-8") for path in pages if path.parent.name == "api")
    )
    first_lines = {name: plain(inspect.getdoc(member).partition("\n")[0]) for name, member in public.items()}
    assert [name for name, line in first_lines.items() if line not in words] == []
    twice = {name: f"{name}.{name.rpartition('.')[2]}" for name in public}  # a function in a module of its own name
    assert [name for name in public if not {name, twice[name]} & names] == []


def test_a_browser_asks_nobody_and_searches_in_files(site):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("Chromium is not installed")
    sync_playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").sync_playwright

    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 800})
        page.set_default_timeout(180_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: asked.append(f"error: {error}"))
        for name in ("slack.html", "api/kernels.html", "index.html"):
            page.goto(f"file://{site}/{name}")
        page.click(".md-search__input")
        page.keyboard.type("certificate")
        page.wait_for_selector(".md-search-result__item")
        search_results = page.inner_text(".md-search-result")
        page.set_viewport_size({"width": 390, "height": 800})
        page.goto(f"file://{site}/trainers.html")
        wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        browser.close()
    assert "The certificate" in search_results
    assert not wide, "the page is wider than a phone"
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:"))] == []


# The checkers themselves: each of them can fail.
