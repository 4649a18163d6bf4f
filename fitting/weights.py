"""The weight w(x): how often x occurs. A density, a named distribution, or recorded samples."""

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from actfit.coefficients import naming
from actfit.fitting.activations.tape import Array
from actfit.fitting.errors import InputError, nearest
from actfit.fitting.options import number
from actfit.fitting.samples import read_samples, real_numbers

Density = Callable[[Array], Array]
DEFAULT_DOMAIN = naming.DOMAIN
TAIL = 1e-12  # mass left outside a distribution's default domain, on each side
UNNAMED = ("samples:", "callable:")  # prefixes of labels from which the weight cannot be made again
TOO_SLOW = ("kstwo", "levy_stable", "studentized_range")  # a millisecond and more for each point
LONGEST_NAME = 100  # characters: of a name, and of what an error quotes
_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\((.*)\))?\s*", re.ASCII)
_PATH = re.compile(r".*[/\\].*|.*\.[A-Za-z]\w*", re.DOTALL)  # with a separator or a suffix, which no name has


@dataclass(frozen=True)
class Weight:
    """The weight of the squared error: how often x occurs.

    Attributes
    ----------
    label : str
        The label in coefficient files.
    domain : (float, float)
        The default domain of a fit.
    density, samples : callable or float64 array (n,)
        Exactly one is given: a density, vectorised over float64, or samples with equal weights that sum to 1.
    height : float or None
        The density's value if it is constant, which makes exact integrals possible.
    normal : (float, float) or None
        Mean and standard deviation of a normal distribution, which has balls, too.
    landmarks : tuple of float
        Points that the integration grid must not step over, such as quantiles of a narrow distribution.
    spelling : str or None
        Its text on a command line; None if it has none.
    """

    label: str
    domain: tuple[float, float]
    density: Density | None = None
    samples: Array | None = None
    height: float | None = None
    normal: tuple[float, float] | None = None
    landmarks: tuple[float, ...] = ()
    spelling: str | None = None

    def folded(self) -> "Weight":
        """The weight of |x|: w(x) + w(-x) on x >= 0."""
        top = max(map(abs, self.domain))
        landmarks = tuple(sorted({abs(point) for point in self.landmarks}))
        if self.samples is not None:
            return replace(self, domain=(0.0, top), samples=np.abs(self.samples), landmarks=landmarks)
        density, height = self.density, None if self.height is None else 2 * self.height
        return replace(
            self,
            domain=(0.0, top),
            density=lambda points: density(points) + density(-points),  # type: ignore[misc]
            height=height,
            normal=None,
            landmarks=landmarks,
        )


def uniform() -> Weight:
    """w = 1 on the domain, as in the paper's Table 1."""
    return Weight("uniform", DEFAULT_DOMAIN, density=np.ones_like, height=1.0, spelling="uniform")


def from_callable(density: Density, label: str | None = None, landmarks: tuple[float, ...] = ()) -> Weight:
    """Any vectorised density; it need not integrate to 1.

    Parameters
    ----------
    density : callable
        From a float64 array to one of the same shape.
    label : str, optional
        Its name in coefficient files; by default the function's own.
    landmarks : tuple of float
        Points at its kinks, jumps and narrow peaks, which a rule of 12 points may miss otherwise.
    """
    name = label or str(getattr(density, "__name__", "density"))
    return Weight(f"{UNNAMED[1]}{name}", DEFAULT_DOMAIN, density=density, landmarks=tuple(map(float, landmarks)))


def from_samples(samples: ArrayLike) -> Weight:
    """The empirical distribution of recorded values.

    Parameters
    ----------
    samples : array_like
        The values, of any shape.

    Raises
    ------
    InputError
        If there are none, or some are not finite real numbers.
    """
    values = np.sort(real_numbers(samples))
    digest = hashlib.sha256(values.tobytes()).hexdigest()[:16]
    lo, hi = float(values[0]), float(values[-1])
    if lo == hi:
        reach = max(1.0, abs(lo) / 2**20)  # enough to be told apart from it
        lo, hi = lo - reach, hi + reach
    return Weight(f"samples:{digest}", (lo, hi), samples=values)


def from_distribution(name: str, arguments: tuple[float, ...] = (), options: dict[str, float] | None = None) -> Weight:
    """A continuous distribution of `scipy.stats` by name and parameters, as `norm`, `norm(0, 2)`.

    Raises
    ------
    InputError
        For unknown names, wrong parameters and distributions without a density.
    """
    # Here and not at the top: scipy.stats takes longer to import than a uniform fit takes to run.
    from scipy import stats

    family = getattr(stats, name, None)
    if isinstance(family, stats.rv_discrete):
        raise InputError(f"weight {name} is discrete: only continuous distributions, or a file of samples")
    if not isinstance(family, stats.rv_continuous):
        known = [key for key in dir(stats) if isinstance(getattr(stats, key), stats.rv_continuous)]
        raise InputError(f"unknown weight {name!r}: uniform, a distribution or a file; {nearest(name, known)}")
    if name in TOO_SLOW:
        raise InputError(f"weight {name} has a density too slow to integrate; draw samples from it into a file")
    options = options or {}
    _check_parameters(name, (*re.findall(r"\w+", family.shapes or ""), "loc", "scale"), arguments, options)
    parts = [_shortest(value) for value in arguments] + [f"{key}={_shortest(value)}" for key, value in options.items()]
    if name == "uniform" and not parts:  # the name alone stands for `uniform`, on another domain
        parts = ["0", "1"]
    label = f"{name}({','.join(parts)})" if parts else name
    with np.errstate(all="ignore"):
        frozen = family(*arguments, **options)
        lower = frozen.ppf([TAIL, 1e-9, 1e-6, 0.001, 0.01, 0.05, 0.25, 0.5])
        upper = frozen.isf([TAIL, 1e-9, 1e-6, 0.001, 0.01, 0.05, 0.25])
    lo, hi = float(lower[0]), float(upper[0])
    if not (math.isfinite(lo) and math.isfinite(hi) and lo < hi):
        raise InputError(f"weight {label} is no distribution; check its parameters")
    landmarks = tuple(map(float, [*lower, *upper[::-1]]))
    normal = (float(frozen.mean()), float(frozen.std())) if name == "norm" else None
    return Weight(label, (lo, hi), density=frozen.pdf, normal=normal, landmarks=landmarks, spelling=label)


def stored_weight(label: str, given: Sequence[Weight] = ()) -> Weight | None:
    """The weight of a coefficient file, by its label; None for one that is not in the file, and not `given`."""
    if label.startswith(UNNAMED):
        return next((weight for weight in given if weight.label == label), None)
    return named(label)


def _check_parameters(
    name: str, known: tuple[str, ...], arguments: tuple[float, ...], options: Mapping[str, float]
) -> None:
    """Raise `InputError` unless each of `known` is given once; loc and scale, the last two, have defaults."""
    takes = f"weight {name} takes {', '.join(known[:-1])} and {known[-1]} only"
    if len(arguments) > len(known):
        raise InputError(f"{takes}, got {len(arguments)} numbers")
    by_place = known[: len(arguments)]
    for key in options:
        if key not in known:
            raise InputError(f"{takes}, got {key!r}")
        if key in by_place:
            raise InputError(f"weight {name}: each parameter once, got {key} by its place and by its name")
    missing = [key for key in known[:-2] if key not in (*by_place, *options)]
    if missing:
        raise InputError(f"weight {name} needs {' and '.join(missing)}, as in {name}({', '.join(known[:-2])})")


def _shortest(value: float) -> str:
    """The shortest text that reads back as `value`: 2 for 2.0."""
    return repr(float(value)).removesuffix(".0")


def parse_weight(text: str) -> Weight:
    """The weight that a command line asks for.

    Parameters
    ----------
    text : str
        `uniform`, a distribution such as `norm(0,2)`, or the path of a sample file with a suffix or a separator, which
        no name has.

    Raises
    ------
    InputError
        For anything else.
    """
    if _PATH.fullmatch(text):
        path = Path(text)
        spelling = path.name if _PATH.fullmatch(path.name) else f"./{path.name}"
        return replace(from_samples(read_samples(path)), spelling=spelling)
    try:
        return named(text)
    except InputError as error:
        # A file of that name changes only the message, never the weight.
        if len(text) < LONGEST_NAME and "\0" not in text and Path(text).is_file():
            raise InputError(f"{error}; for the file of that name write ./{text}") from None
        raise


def named(text: str) -> Weight:
    """`uniform` or a distribution such as `norm(0,2)`, never a file.

    Raises
    ------
    InputError
        For anything else.
    """
    match = _CALL.fullmatch(text)
    if not match or len(match[1]) > LONGEST_NAME:
        shown = repr(text[:LONGEST_NAME]) + "..." * (len(text) > LONGEST_NAME)
        raise InputError(f"weight must be uniform, a distribution like norm(0,2) or a file, got {shown}")
    name, inside = match.groups()
    arguments, options = [], {}
    for part in filter(None, (part.strip() for part in (inside or "").split(","))):
        key, equals, value = (piece.strip() for piece in part.rpartition("="))
        what = f"weight {name}: {key or 'each parameter'}"
        if equals and key in options:
            raise InputError(f"weight {name}: each parameter once, got {part!r} again")
        if equals:
            options[key] = number(what, value)
        else:
            arguments.append(number(what, value))
    if name == "uniform" and not arguments and not options:
        return uniform()
    return from_distribution(name, tuple(arguments), options)
