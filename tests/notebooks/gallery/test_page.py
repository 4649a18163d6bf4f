"""The page without a browser: well formed, complete, loads nothing, and shows the numbers of the files."""

import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from coefficients.store import Entry, available, load
from fitting.activations import get
from notebooks.gallery.cards import TARGETS
from notebooks.gallery.curves import window
from notebooks.gallery.page import page
from notebooks.gallery.proofs import proof_pictures
from notebooks.gallery.shelves import shelves
from notebooks.gallery.svg import LEFT, RIGHT

pytestmark = pytest.mark.slow

VOID = {"meta", "link", "input", "path", "line"}
REFERENCES = {"for", "aria-labelledby", "data-copy"}
LOADING = {"src", "srcset", "data", "poster", "action", "background", "xlink:href", "ping", "srcdoc"}
ROOT = Path(__file__).parents[3]
STYLE = ROOT / "notebooks" / "gallery" / "style.css"


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


def test_nothing_is_loaded(read, html):
    for tag, attributes in read.elements:
        assert not LOADING & attributes.keys(), (tag, attributes)
        assert tag not in {"img", "iframe", "object", "embed", "image", "use", "base", "audio", "video"}
        assert "style" not in attributes
        assert not [key for key in attributes if key.startswith("on")]
    assert all(link["rel"] == "icon" for link in read.all("link"))
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    script = html[html.rindex("<script>") : html.rindex("</script>")]
    assert not re.search(r"fetch|XMLHttpRequest|import\b|https?:", script)
    policy = next(meta["content"] for meta in read.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_one_style_and_one_script_that_end_where_they_should(html):
    assert html.count("<style>") == html.count("</style>") == 1
    assert html.count("<script>") == html.count("</script>") == 1


def test_small_enough_for_a_phone(gallery):
    assert gallery.stat().st_size < 3_000_000


def test_only_tables_of_many_bits_have_no_place_on_cards(html):
    left_out = [load(entry.path) for entry in available() if entry not in shown_entries()]
    assert {(fit["method"], fit["options"]["bits"]) for fit in left_out} == {("fewbit", bits) for bits in range(5, 9)}
    assert "Tables of more than 4 bits are in files only." in html


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


def test_a_card_for_each_function_and_a_line_for_each_file(read):
    entries = shown_entries()
    cards = [element["id"] for element in read.all("article")]
    assert sorted(cards) == sorted({entry.function for entry in entries})
    links = [element["href"] for element in read.all("a") if re.search(r"\.v\d+$", element["href"])]
    assert sorted(links) == sorted(f"#{entry.function}-{entry.path.stem}" for entry in entries)
    assert len(read.all("svg")) == 2 * len(cards) + len(entries) + len(proof_pictures(shelves()))


def test_one_fit_is_chosen_on_each_card(read):
    buttons = [button for button in read.all("input") if button.get("type") == "radio"]
    checked = [button["name"] for button in buttons if "checked" in button]
    assert sorted(checked) == sorted({button["name"] for button in buttons})
    assert all(button["aria-label"] for button in buttons)


def test_pictures_and_scrolling_boxes_have_names(read):
    ids = {attributes["id"] for attributes in read.all("title") if "id" in attributes}
    assert all(
        svg.get("aria-hidden") == "true" or (svg["role"] == "img" and svg["aria-labelledby"] in ids)
        for svg in read.all("svg")
    )
    assert all(attributes.get("aria-label") for _, attributes in read.elements if attributes.get("tabindex") == "0")


@pytest.mark.parametrize("bits", [1, 3, 4])
def test_the_drawn_steps_are_those_of_the_file(html, bits):
    solution = load("gelu", f"fewbit-{bits}bit")["solution"]
    section = re.search(rf'<section id="gelu-fewbit-{bits}bit\.v1".*?</section>', html, re.DOTALL)[0]
    points = drawn(section, "curve fit")
    assert_steps(points, solution["borders"], np.array(solution["levels"])[solution["codes"]])


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize(("nth", "key"), [(0, "derivatives"), (1, "outputs")])
def test_the_drawn_steps_of_a_joint_code_are_those_of_the_file(html, bits, nth, key):
    solution = load("gelu", f"joint-{bits}bit")["solution"]
    section = re.search(rf'<section id="gelu-joint-{bits}bit\.v1".*?</section>', html, re.DOTALL)[0]
    assert_steps(drawn(section, "curve fit", nth), solution["borders"], np.array(solution[key]))


def test_the_drawn_errors_of_a_joint_code_are_those_of_both_steps(html):
    """Checked between the outermost borders; beyond, errors may leave the panel."""
    solution = load("gelu", "joint-3bit")["solution"]
    section = re.search(r'<section id="gelu-joint-3bit\.v1".*?</section>', html, re.DOTALL)[0]
    left, right = window_of_gelu()
    x = np.linspace(solution["borders"][0], solution["borders"][-1], 500)
    x = x[np.abs(x[:, None] - np.array(solution["borders"])).min(axis=1) > 0.02]  # where errors jump, lines are upright
    codes = np.searchsorted(solution["borders"], x)
    values, places = [], []
    for kind, exact, key in (
        ("curve error", get("gelu").df(x), "derivatives"),
        ("curve error f", get("gelu").f(x), "outputs"),
    ):
        points = drawn(section, kind)
        values.append(exact - np.array(solution[key])[codes])
        places.append(np.interp(LEFT + (x - left) / (right - left) * (RIGHT - LEFT), points[:, 0], points[:, 1]))
    assert_one_scale(np.concatenate(values), np.concatenate(places))


def assert_steps(points: np.ndarray, all_borders: list[float], values: np.ndarray) -> None:
    """Assert that a drawn line has a step at each border, and the values between borders."""
    assert (points[:, 0].min(), points[:, 0].max()) == (LEFT, RIGHT)
    left, right = window_of_gelu()
    borders = [x for x in all_borders if left < x < right]
    upright = sorted({x for (x, _), (z, _) in pairwise(points) if x == z})
    expected = [LEFT + (x - left) / (right - left) * (RIGHT - LEFT) for x in borders]
    for place in expected:
        assert min(abs(place - x) for x in upright) < 0.3
    edges = [left, *borders, right]
    middles = LEFT + ((np.array(edges[1:]) + np.array(edges[:-1])) / 2 - left) / (right - left) * (RIGHT - LEFT)
    assert len(borders) == len(all_borders)  # so that the values are those of all intervals
    places = np.interp(middles, points[:, 0], points[:, 1])
    assert_one_scale(values, places)


def assert_one_scale(values: np.ndarray, places: np.ndarray) -> None:
    """Assert that places in a picture are the values on one linear scale, larger values further up."""
    scale, offset = np.polyfit(values, places, 1)
    assert scale < 0
    assert np.abs(scale * values + offset - places).max() < 0.3


def test_the_drawn_function_and_its_derivative_are_gelu(html):
    section = re.search(r'<article class="card" id="gelu".*?</svg>', html, re.DOTALL)[0]
    left, right = window_of_gelu()
    values, places = [], []
    for kind in ("f", "slope"):
        points = drawn(section, f"curve {kind}")
        for place, down in points:
            x = left + (place - LEFT) / (RIGHT - LEFT) * (right - left)
            normal = (1 + math.erf(x / math.sqrt(2))) / 2
            density = math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
            values.append(x * normal if kind == "f" else normal + x * density)
            places.append(down)
    assert_one_scale(np.array(values), np.array(places))


def window_of_gelu() -> tuple[float, float]:
    return window(next(shelf for shelf in shelves() if shelf.name == "gelu").fits)


def drawn(section: str, kind: str, nth: int = 0) -> np.ndarray:
    """The points of the nth curve of a kind."""
    data = re.findall(rf'<path class="{kind}" d="M([^"l]*)l([^"]*)"', section)[nth]
    start, moves = ([float(number) for number in re.findall(r"-?[0-9]*\.?[0-9]+", part)] for part in data)
    steps = np.array([start, *np.array(moves).reshape(-1, 2)])
    return np.round(np.cumsum(steps, axis=0), 1)


def test_the_drawn_error_stays_below_the_proven_bound(html):
    """|q - g| and its bound share a logarithmic axis: larger values have a smaller y."""
    section = re.search(r'<section id="gelu-invact-bfloat16\.v1".*?</section>', html, re.DOTALL)[0]
    for side in ("left", "right"):
        error, bound = drawn(section, f"curve error {side}"), drawn(section, f"curve bound {side}")
        assert 0 <= error[:, 1].min() - bound[0, 1] < 1.0  # bounds are tight here: within 0.3 % of the error found


def test_notebooks_are_linked_only_where_they_are(tmp_path, html):
    root = tmp_path / "data"
    (root / "relu").mkdir(parents=True)
    entry = next(candidate for candidate in available() if candidate.function == "relu")
    (root / "relu" / entry.path.name).write_bytes(entry.path.read_bytes())
    assert 'href="notebooks/' not in html
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "memory.html").write_text("")
    links = re.findall(r'href="(notebooks/[^"]*)"', page(root, tmp_path))
    assert links == ["notebooks/memory.html"]


def colours(block: str) -> dict[str, tuple[float, ...]]:
    named = re.findall(r"--([a-z]+): #([0-9a-f]{6});", block)
    return {name: tuple(int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)) for name, code in named}


def contrast(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """The contrast by WCAG 2."""

    def luminance(colour):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1, 2], ids=["light", "dark", "print"])
def test_contrast(scheme):
    blocks = re.findall(r":root \{(.*?)\}", STYLE.read_text(encoding="utf-8"), re.DOTALL)
    colour = colours(blocks[scheme])
    for text in ("ink", "soft", "link"):
        for ground in ("paper", "card", "wash"):
            assert contrast(colour[text], colour[ground]) >= 4.5, (text, ground)
    assert contrast(colour["card"], colour["link"]) >= 4.5  # the chosen fit
    for line in ("f", "fit", "other", "error", "slope", "focus" if scheme < 2 else "link"):
        assert contrast(colour[line], colour["card"]) >= 3, line
