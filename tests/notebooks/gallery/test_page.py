"""The page without a browser: well formed, complete, loads nothing, and shows the numbers of the files."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from actfit.coefficients.store import Entry, available
from notebooks.gallery.cards import TARGETS

pytestmark = pytest.mark.slow

VOID = {"meta", "link", "input", "path", "line"}
REFERENCES = {"for", "aria-labelledby", "data-copy"}
ROOT = Path(__file__).parents[3]


class Reader(HTMLParser):
    """Collects the elements and texts of an HTML page, and asserts that tags match."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}  # of <pre>, by id
        self.inside: str | None = None

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute given twice: {attrs}"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "pre":
            self.inside = dict(attrs)["id"]
            self.texts[self.inside] = ""

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "pre":
            self.inside = None

    def handle_data(self, data):
        if self.inside is not None:
            self.texts[self.inside] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def read(html) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


def test_tags_match_and_ids_are_unique(read):
    assert read.open == []
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids)) > 1000


def test_what_is_referred_to_is_there(read):
    ids = {attributes.get("id") for _, attributes in read.elements}
    for _, attributes in read.elements:
        for key in REFERENCES & attributes.keys():
            assert attributes[key] in ids
        href = attributes.get("href")
        assert href is None or href == "data:," or (href[0] == "#" and href[1:] in ids), href


def shown_entries() -> list[Entry]:
    """The files that the cards must show."""
    return [entry for entry in available() if not re.fullmatch("fewbit-[5-8]bit", entry.name)]


def test_every_file_of_few_bits_is_there_to_the_letter(read):
    entries = [entry for entry in shown_entries() if not re.fullmatch("joint-[5-8]bit", entry.name)]
    assert len(entries) > 100
    for entry in entries:
        # The parser of a browser drops the line break after <pre>; this one does not.
        shown = read.texts[f"{entry.function}-{entry.path.stem}-json"].removeprefix("\n")
        assert shown == entry.path.read_text(encoding="utf-8")
    assert {id_.removesuffix("-json") for id_ in read.texts if id_.endswith("-json")} == {
        f"{entry.function}-{entry.path.stem}" for entry in entries
    }


def test_every_kernel_is_there_to_the_letter(read):
    paths = [path for target in TARGETS for path in (ROOT / "kernels" / "generated").glob(f"*_{target}.py")]
    assert len(paths) == 2 * len({entry.function for entry in available()})
    for path in paths:
        name, _, target = path.stem.rpartition("_")
        assert read.texts[f"{name}-{target}"].removeprefix("\n") == path.read_text(encoding="utf-8")
