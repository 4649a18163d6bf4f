"""The tables in docs/compression.md that are made of the rows of `benchmarks.factors`."""

from collections.abc import Iterator

from benchmarks.pages import Rows, of_any, table

NAME = "factors"  # of the file
FUNCTIONS = ("gelu", "silu")
SPREADS = (0.1, 0.3, 0.55, 1.0, 2.0)  # standard deviations of x: 0.55 in a new BERT-base
BITS = (2, 3, 4)
INPUTS, FACTORS, NORMAL, PACKAGED = "codes of x", "codes of f'(x)", "table for N(0, 1)", "packaged table"
WAYS = (INPUTS, FACTORS, NORMAL, PACKAGED)
ADAPTED = ("BERT", "GPT-2", "ViT")
LARGER = (1, 3)  # times: weights around activations, whose inputs then have a standard deviation of 0.3, or near 1


def factors_section() -> str:
    """Errors of f', and of whole gradients."""
    rows = of_any(NAME)
    of_functions = [row for row in rows if row["what"] in FUNCTIONS]
    head = ["f, bits, standard deviation of x", *WAYS]
    nets = ["frozen but for adapters in attention", "kept", "of it f'(x)", f"error with {INPUTS}", f"with {FACTORS}"]
    of_nets = [row for row in rows if row["what"] in ADAPTED]
    return "\n".join([*table(head, _functions(of_functions)), "", *table(nets, _nets(of_nets))]) + "\n"


def _functions(rows: Rows) -> Iterator[list[str]]:
    errors = {(row["what"], row["size"]["bits"], row["mode"], row["implementation"]): row["median"] for row in rows}
    for key in dict.fromkeys(key[:3] for key in errors):
        yield [", ".join(map(str, key)), *(_percent(errors[(*key, way)]) for way in WAYS)]


def _nets(rows: Rows) -> Iterator[list[str]]:
    of = {(row["what"], row["size"]["larger"], row["implementation"], row["mode"]): row["median"] for row in rows}
    for name, larger in dict.fromkeys(key[:2] for key in of):
        kept = of[name, larger, FACTORS, "kept"]
        yield [
            f"{name}, weights of its MLPs × {larger}",
            f"{kept / 2**10:.0f} KiB",
            f"{100 * of[name, larger, FACTORS, 'factors'] / kept:.0f} %",
            *(_percent(of[name, larger, way, "error"]) for way in (INPUTS, FACTORS)),
        ]


def _percent(error: float) -> str:
    return f"{100 * error:.2g} %"
