"""HTML by the Jinja templates beside this file, and elements of SVG as text."""

import html
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

HERE = Path(__file__).parent


def render(template: str, **values: Any) -> Markup:
    """A rendered template; values that are not Markup are escaped."""
    return Markup(_TEMPLATES.get_template(template).render(values))


def _source(name: str) -> str:
    """The text of a template, joined to one line except for the page: a browser shows line breaks as spaces."""
    text = (HERE / name).read_text(encoding="utf-8")
    return text if name == "page.html" else "".join(map(str.strip, text.splitlines()))


def between_tags(text: str) -> Markup:
    """A text that stands between tags, where quotes may stay: JSON has many."""
    return Markup(html.escape(text, quote=False))


_TEMPLATES = Environment(
    loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
)
_TEMPLATES.filters["between_tags"] = between_tags


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element of SVG. `class_` is the attribute class, `text_anchor` text-anchor; None leaves one out."""
    words = [name]
    words += [
        f'{key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    inside = "".join(map(escape, children))
    return Markup(f"<{' '.join(words)}>{inside}</{name}>" if children else f"<{' '.join(words)}/>")
