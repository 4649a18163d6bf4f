"""HTML and SVG as text, with everything escaped that is not markup already."""

from html import escape

VOID = {"input", "path", "line", "rect"}  # of those used here; SVG's own close themselves


class Html(str):
    """Markup, which is put in as it is. Any other text is escaped."""


def text(value: object) -> Html:
    """The value as markup."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def join(parts: "list[Html]", between: str = "") -> Html:
    """Pieces of markup in one."""
    return Html(escape(between).join(map(text, parts)))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. `class_` is the attribute class, `data_copy` data-copy; True is given bare, None and False not."""
    words = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(key)
        elif value is not None and value is not False:
            words.append(f'{key}="{escape(str(value))}"')
    if name in VOID:
        return Html(f"<{' '.join(words)}/>" if name != "input" else f"<{' '.join(words)}>")
    return Html(f"<{' '.join(words)}>{''.join(map(text, children))}</{name}>")
