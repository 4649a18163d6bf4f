"""HTML by Jinja's templates, which lie beside this file, and elements of SVG as text."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

HERE = Path(__file__).parent


def render(template: str, **values: Any) -> Markup:
    """A template with these values in it, escaped where they are not Markup."""
    return Markup(_TEMPLATES.get_template(template).render(values))


def _source(name: str) -> str:
    """The text of a template; but for the page in one line, as a line break between elements shows as a space."""
    text = (HERE / name).read_text(encoding="utf-8")
    return text if name == "page.html" else "".join(map(str.strip, text.splitlines()))


_TEMPLATES = Environment(
    loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
)


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
