"""Numbers and tables as text."""

from collections.abc import Iterator, Sequence


def percent(share: float) -> str:
    """As text: 9.1 %."""
    return f"{100 * share:.2g} %"


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table whose first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
