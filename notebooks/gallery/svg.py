"""Small SVG pictures: panels with axes, and curves thinned to what can be seen."""

import math
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup

from actfit.fitting.activations.tape import Array
from notebooks.gallery.markup import tag
from notebooks.gallery.numbers import short

WIDTH = 360  # of a picture, in its own units; CSS makes it as wide as the card
LEFT, RIGHT = 46, WIDTH - 10  # where a panel begins and ends in it
SEEN = 0.15  # units: smaller deviations of a curve are invisible


@dataclass
class Panel:
    """A frame with axes from x[0] to x[1] and y[0] to y[1]; its corner in the picture is at `left` and `top`."""

    x: tuple[float, float]
    y: tuple[float, float]
    top: float
    height: float
    logarithmic: bool = False
    left: float = LEFT
    right: float = RIGHT
    inside: list[Markup] = field(default_factory=list)

    def at(self, x: Array, y: Array) -> Array:
        """Points of the picture, one a row; values outside the panel are moved to its edge."""
        lo, hi = self.y
        if self.logarithmic:
            lo, hi, y = math.log10(lo), math.log10(hi), np.log10(np.maximum(y, lo))
        across = self.left + (x - self.x[0]) / (self.x[1] - self.x[0]) * (self.right - self.left)
        down = self.top + (hi - np.clip(y, lo, hi)) / (hi - lo) * self.height
        return np.column_stack([across, down])

    def curve(self, x: Array, y: Array, kind: str) -> None:
        """A line through the points; `kind` is its class in the style sheet. Where y is NaN there is a gap."""
        finite = np.isfinite(x) & np.isfinite(y)
        cuts = np.flatnonzero(np.diff(finite.astype(int))) + 1
        runs = [run for run in np.split(np.arange(len(x)), cuts) if len(run) > 1 and finite[run[0]]]
        d = "".join(path(thinned(self.at(x[run], y[run]))) for run in runs)
        self.inside.append(tag("path", class_=kind, d=d))

    def bars(self, x: Array, y: Array, width: float, kind: str) -> None:
        """A bar from the bottom of the panel to each y, `width` wide, all in one path."""
        ends = zip(self.at(x - width / 2, y), self.at(x + width / 2, y), strict=True)
        bottom = _tenth(self.top + self.height)
        bars = (f"M{_tenth(left)} {bottom}V{_tenth(top)}H{_tenth(right)}V{bottom}z" for (left, top), (right, _) in ends)
        self.inside.append(tag("path", class_=kind, d="".join(bars)))

    def drawn(self, across: str, up: str, labelled: bool = True, upright: bool = True) -> Markup:
        """The panel with its curves.

        across, up: titles of the axes; labelled: whether the x axis has numbers; upright: whether it has grid lines.
        """
        bottom = self.top + self.height
        parts = []
        for value in ticks(*self.x, least=4):
            place = self.at(np.array([value]), np.array(self.y[:1]))[0, 0]
            if upright:
                parts.append(_line(place, self.top, place, bottom, "axis" if value == 0 else "grid"))
            if labelled:
                parts.append(_word(place, bottom + 13, short(value), "middle"))
        for value in decades(*self.y) if self.logarithmic else ticks(*self.y):
            place = self.at(np.array(self.x[:1]), np.array([value]))[0, 1]
            parts.append(_line(self.left, place, self.right, place, "axis" if value == 0 else "grid"))
            parts.append(_word(self.left - 5, place + 3.5, short(value), "end"))
        if labelled:
            parts.append(_word(self.right, bottom + 25, across, "end", "what"))
        parts.append(_word(self.left, self.top - 6, up, "start", "what"))
        return tag("g", *parts, *self.inside)


def picture(title: str, id_: str, height: float, *panels: Markup) -> Markup:
    """A whole picture. title: a description for screen readers."""
    name = tag("title", title, id=id_)
    return tag("svg", name, *panels, viewBox=f"0 0 {WIDTH} {height:g}", role="img", aria_labelledby=id_)


def path(points: Array) -> str:
    """Points as the data of a path, in tenths of a unit, relative to the previous point and without what can be left
    out: zeros before a point, spaces before a sign."""
    tenths = np.rint(points * 10).astype(int)
    moves = np.diff(tenths, axis=0)
    moves = moves[np.any(moves != 0, axis=1)]
    start = f"M{tenths[0, 0] / 10:g} {tenths[0, 1] / 10:g}"
    if not len(moves):
        return start + "h.1"
    words = " ".join(f"{a / 10:g} {b / 10:g}" for a, b in moves)
    return f"{start}l{words}".replace(" -", "-").replace("l0.", "l.").replace(" 0.", " .").replace("-0.", "-.")


def thinned(points: Array) -> Array:
    """The points that a line needs to stay within SEEN of all points (Ramer, Douglas and Peucker)."""
    keep = np.zeros(len(points), dtype=bool)
    keep[[0, -1]] = True
    stretches = [(0, len(points) - 1)]
    while stretches:
        first, last = stretches.pop()
        if last - first < 2:
            continue
        away = _distance(points[first + 1 : last], points[first], points[last])
        worst = int(np.argmax(away))
        if away[worst] > SEEN:
            middle = first + 1 + worst
            keep[middle] = True
            stretches += [(first, middle), (middle, last)]
    return points[keep]


def _distance(points: Array, a: Array, b: Array) -> Array:
    """The distances of points from the line between a and b."""
    along = b - a
    length = float(along @ along)
    share = np.clip((points - a) @ along / length, 0.0, 1.0) if length else np.zeros(len(points))
    rest = points - a - share[:, None] * along
    return np.hypot(rest[:, 0], rest[:, 1])


def ticks(lo: float, hi: float, least: int = 3) -> list[float]:
    """Evenly spaced round numbers from lo to hi: as few as possible, but at least `least`."""
    power = 10.0 ** math.floor(math.log10(hi - lo))
    for step in (power * share for share in (1, 0.5, 0.2, 0.1)):
        first, last = math.ceil(lo / step - 1e-9), math.floor(hi / step + 1e-9)
        if last - first + 1 >= least:
            break
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(k * step, digits) + 0.0 for k in range(first, last + 1)]


def decades(lo: float, hi: float) -> list[float]:
    """Powers of ten from lo to hi, four at most."""
    first, last = math.ceil(math.log10(lo) - 1e-9), math.floor(math.log10(hi) + 1e-9)
    step = max(1, math.ceil((last - first) / 3))
    return [10.0**k for k in range(last, first - 1, -step)]


def widened(lo: float, hi: float, share: float = 0.06) -> tuple[float, float]:
    """The range with a margin; an empty range gets length 1."""
    air = share * (hi - lo) or 0.5
    return lo - air, hi + air


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return tag("line", class_=kind, x1=_tenth(x1), y1=_tenth(y1), x2=_tenth(x2), y2=_tenth(y2))


def _word(x: float, y: float, words: str, anchor: str, kind: str | None = None) -> Markup:
    return tag("text", words, class_=kind, x=_tenth(x), y=_tenth(y), text_anchor=anchor)


def _tenth(value: float) -> str:
    return f"{round(float(value), 1):g}"
