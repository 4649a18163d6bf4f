"""python -m benchmarks.activation_codes: codes of an activation and of the layer after it, side by side.

Backward reads f'(x) for the gradients below an activation f, and f(x) for that of the weight above. Small networks run
with exact gradients; then both weights' gradients are computed again at each activation with what a code makes of
f'(x) and f(x). Nothing is timed. Rows, as JSON lines, in benchmarks/results/<device>/activation-codes.jsonl:

    what               the network: random weights, or those after a training of `benchmarks.training`
    implementation     the code; tables are of another batch's numbers; of two tables, the better split of the bits
    size               bits: of all codes of an element together
    unit               relative error: |g' - g| / |g|, the root mean square over both weights of all activations;
                       median over seeds, with the least and largest as quantiles
                       root mean square: of x; without bits

Some two minutes. --quick writes to --out only.
"""

from benchmarks import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("activation_codes", lambda: parsers.activation_codes(__doc__).parse_args())

import sys
from collections.abc import Sequence
from statistics import median

import numpy as np
import torch

from benchmarks.activation_codes.codes import WAYS
from benchmarks.activation_codes.page import BITS, ERROR, INPUT, NAME, SPREAD
from benchmarks.activation_codes.sites import RANDOM, TRAINED, Network, Site, network
from benchmarks.clock import origin
from benchmarks.options import output, torch_threads
from benchmarks.rows import Row, described_rows, record

PROG = "activation_codes"
SEEDS = 2
SAMPLES = 1 << 12  # quantiles of x in a batch, to which tables are fitted


def measure(name: str, seeds: int, quick: bool) -> list[Row]:
    """The rows of a network."""
    values: dict[tuple[str, str, int], list[float]] = {}
    for seed in range(seeds):
        for key, value in of_seed(network(name, seed, quick)).items():
            values.setdefault(key, []).append(value)
    base = {"what": name, "mode": "weights around activations", "dtype": "float32", **origin(torch.device("cpu"))}
    return [
        Row(
            implementation=way,
            size={"bits": bits} if bits else {},
            unit=unit,
            median=median(numbers),
            quantiles=(min(numbers), max(numbers)),
            runs=len(numbers),
            **base,
        )
        for (way, unit, bits), numbers in values.items()
    ]


def of_seed(net: Network) -> dict[tuple[str, str, int], float]:
    """By implementation, unit and bits."""
    sites = list(net.sites())
    inputs = torch.cat([judged.x.flatten() for _, judged in sites])
    values = {(INPUT, SPREAD, 0): _rms(inputs.numpy())}
    samples = [quantiles(recorded) for recorded, _ in sites]
    for bits in BITS:
        for way, coded in WAYS.items():
            options: dict[int, list[float]] = {}  # by how the bits are split
            for of_site, (_, judged) in zip(samples, sites, strict=True):
                pairs = coded(net.function, judged.x, bits, judged.group, of_site)
                for place, pair in enumerate(pairs):
                    options.setdefault(place, []).extend(judged.errors(net.function, pair))
            values[way, ERROR, bits] = min(map(_rms, options.values()))
    return values


def quantiles(site: Site) -> tuple[float, ...]:
    """SAMPLES numbers that are distributed as x."""
    x = np.sort(site.x.double().numpy(), axis=None)
    return tuple(x[((np.arange(SAMPLES) + 0.5) / SAMPLES * x.size).astype(np.int64)])


def _rms(numbers: Sequence[float] | np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(numbers, dtype=np.float64))))


def described(rows: Sequence[Row]) -> str:
    """The errors of 4 bits in a line, shown while the rest runs."""
    parts = [f"{row.implementation} {row.median:.3f}" for row in rows if row.size.get("bits") == 4]
    return f"{rows[0].what}, 4 bits: {'; '.join(parts)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.activation_codes(__doc__).parse_args(arguments)
    out, seeds = output(options.out), 1 if options.quick else SEEDS
    with torch_threads(1):
        rows = described_rows((measure(name, seeds, options.quick) for name in (*RANDOM, *TRAINED)), described)
    record([(NAME, rows)], out, options.quick)
    return command.GOOD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main))
