"""The table in docs/invact.md that is made of the rows of `benchmarks.error_floors`."""

from benchmarks.pages import by, of_any, table

NAME = "error-floors"  # of the file, and the rows' mode
DTYPES = ("bfloat16", "float16")
DEGREE = 8  # of the polynomial that is added: more constants than any closed form has
SHIPPED, CORRECTED = "closed form", "with a polynomial"
LEAST = 0.01  # above the floor


def floors_section() -> str:
    """RMS errors above the floor of closed forms that miss it by more than 1 %, as shipped and with a polynomial."""
    lines = []
    for (name,), rows in by(of_any(NAME), "what").items():
        share = {(row["dtype"], row["implementation"]): row["median"] for row in rows}
        if any(share.get((dtype, SHIPPED), 0.0) > LEAST for dtype in DTYPES):
            cells = (share.get((dtype, way)) for dtype in DTYPES for way in (SHIPPED, CORRECTED))
            lines.append([name, *("–" if cell is None else f"{100 * cell:.1f} %" for cell in cells)])
    head = ["", *(text for dtype in DTYPES for text in (dtype, f"with a polynomial of degree {DEGREE}"))]
    return "\n".join(table(head, lines)) + "\n"
