"""The sections of `docs/forward_ad.md`, from the rows of `benchmarks.forward_ad`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.forward_ad.cases import METHODS
from benchmarks.forward_ad.times import OURS
from benchmarks.pages import Rows, by, of_any, read, spread, table
from kernels.memory.saved import size

AT_MOST = {"plain": 1.15, "checkpoint": 0.75}  # the goals: our time over theirs


def chains_section() -> str:
    """What chains save, a table for each block, and where the compiler saves less."""
    lines: list[str] = []
    for (what,), rows in by(of_any("forward-ad-chains"), "what").items():
        by_name = by(rows, "implementation")
        kept = {name: {row["mode"]: row["median"] for row in of_chain} for (name,), of_chain in by_name.items()}
        cells = ([name, *(f"{units[method]:.2f}" for method in METHODS)] for name, units in kept.items())
        block = what.removeprefix("kept by ")
        lines += ["", f"In {block}:", "", *table(["", *METHODS], cells), "", _beside_compiled(kept)]
    return "\n".join(lines[1:]) + "\n"


def _beside_compiled(of_chains: Mapping[str, Mapping[str, float]]) -> str:
    """A sentence: for which chains compiled saves less than ours, as much, and more."""
    groups: dict[str, list[str]] = {"less than": [], "as much as": [], "more than": []}
    for name, kept in of_chains.items():
        less, equal = kept["compiled"] < kept[OURS], kept["compiled"] == kept[OURS]
        groups["less than" if less else "as much as" if equal else "more than"].append(name)
    parts = (
        f"{relation} {OURS} for {_listed(chains, len(of_chains))}" for relation, chains in groups.items() if chains
    )
    return f"Compiled keeps {'; '.join(parts)}."


def _listed(some: list[str], count: int) -> str:
    return "all" if len(some) == count else ", ".join(some) if len(some) <= count / 2 else f"{len(some)} of {count}"


def models_section() -> str:
    """Bytes that models save; ours compared with plain, and the compiler's with ours."""
    lines = []
    for (name,), rows in by(of_any("forward-ad-models"), "implementation").items():
        kept = {row["mode"]: row["median"] for row in rows}
        cells = [size(kept[method]) for method in METHODS]
        cells[METHODS.index(OURS)] += f", {_change(kept[OURS], kept['plain'])}"
        lines.append([name, *cells, _change(kept["compiled"], kept[OURS])])
    head = ["", *METHODS, f"compiled against {OURS}"]
    return "\n".join(table(head, lines)) + "\n"


def _change(value: float, other: float) -> str:
    share = 100 * (value / other - 1)
    return f"{abs(share):.1f} % {'more' if share > 0 else 'less'}"


def times_section() -> str:
    """Our times and the others', a table for each device, and how often ours meets AT_MOST."""
    lines: list[str] = []
    for device, rows in read("forward-ad-times").items():
        torch, count = rows[0]["versions"]["torch"], rows[0]["runs"]
        lines += [
            "",
            f"On {device} with torch {torch}, medians of {count} rounds; in brackets the 20 % and 80 % quantiles:",
            "",
        ]
        runs = [_Timed(key, {row["implementation"]: row for row in of_run}) for key, of_run in _timed(rows).items()]
        head = ["", "elements", "dtype", "on", OURS, *(f"× {name}" for name in METHODS if name != OURS)]
        lines += table(head, (run.cells() for run in runs))
        for block in dict.fromkeys(run.block for run in runs):
            lines += ["", _within(f"{block[0].upper()}{block[1:]}", [run for run in runs if run.block == block])]
    return "\n".join(lines[1:]) + "\n"


def _timed(rows: Rows) -> dict[Any, Rows]:
    """The rows of times by run, without those of bytes."""
    return by(({**row, "n": row["size"]["n"]} for row in rows if row["unit"] != "B"), "what", "n", "dtype", "mode")


@dataclass(frozen=True)
class _Timed:
    """The rows of times of one run."""

    key: tuple[str, int, str, str]  # chain and block, elements, dtype, mode
    rows: Mapping[str, dict[str, Any]]  # by implementation

    @property
    def block(self) -> str:
        return self.key[0].partition(": ")[2]

    def ratio(self, rival: str) -> dict[str, Any] | None:
        """The row of the ratio of ours to the rival; None if the rival was not timed."""
        return self.rows.get(f"{OURS} / {rival}")

    def cells(self) -> list[str]:
        what, elements, dtype, mode = self.key
        ours = self.rows[OURS]
        low, high = (f"{1000 * quantile:.3g}" for quantile in ours["quantiles"])
        time = f"{1000 * ours['median']:.3g} ms ({low}–{high})"
        ratios = (self.ratio(name) for name in METHODS if name != OURS)
        return [what, f"2^{elements.bit_length() - 1}", dtype, mode, time, *map(spread, ratios)]


def _within(block: str, runs: list[_Timed]) -> str:
    """A sentence: how often ours meets AT_MOST, and how often the compiler is clearly faster."""
    parts = []
    for rival, most in AT_MOST.items():
        within = [row["median"] <= most for run in runs if (row := run.ratio(rival))]
        parts.append(f"at most {most} × {rival} in {sum(within)} of {len(within)}")
    spreads = [row["quantiles"] for run in runs if (row := run.ratio("compiled"))]
    if spreads:
        faster, slower = sum(low > 1 for low, _ in spreads), sum(high < 1 for _, high in spreads)
        same = len(spreads) - faster - slower
        parts.append(
            f"compiled is faster in {faster} of {len(spreads)}, slower in {slower}, the brackets hold 1 in {same}"
        )
    return f"{block}: {OURS} takes {'; '.join(parts)}."
