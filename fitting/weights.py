"""The weight w(x): how often x occurs. A density, a named distribution, or recorded samples."""

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coefficients import naming
from fitting.activations.tape import Array
from fitting.errors import InputError, nearest

Density = Callable[[Array], Array]
DEFAULT_DOMAIN = naming.DOMAIN
TAIL = 1e-12  # mass left outside a distribution's default domain, on each side
UNNAMED = ("samples:", "callable:")  # how the labels of weights begin that a label cannot bring back
TOO_SLOW = ("kstwo", "levy_stable", "studentized_range")  # a millisecond and more for each point
_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\((.*)\))?\s*")


@dataclass(frozen=True)
class Weight:
    """What the squared error is weighed with.

    label: as stored in coefficient files. spelling: how a command line asks for it (None: it cannot).
    domain: where it applies unless told otherwise. One of `density`
    (vectorised, float64) and `samples` (each of equal weight, summing to 1). height: the density's value
    where it is constant, which makes exact integrals possible. landmarks: points that the integration
    grid must not step over, such as quantiles of a narrow distribution.
    """

    label: str
    domain: tuple[float, float]
    density: Density | None = None
    samples: Array | None = None
    height: float | None = None
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
            landmarks=landmarks,
        )


def uniform() -> Weight:
    """w = 1 on the domain, as in the paper's Table 1."""
    return Weight("uniform", DEFAULT_DOMAIN, density=np.ones_like, height=1.0, spelling="uniform")


def from_callable(density: Density, label: str | None = None, landmarks: tuple[float, ...] = ()) -> Weight:
    """Any vectorised density; it need not integrate to 1.

    landmarks: points at its kinks, jumps and narrow peaks, which a rule of 12 points may not see otherwise.
    """
    name = label or str(getattr(density, "__name__", "density"))
    return Weight(f"{UNNAMED[1]}{name}", DEFAULT_DOMAIN, density=density, landmarks=tuple(map(float, landmarks)))


def from_samples(samples: Array) -> Weight:
    """The empirical distribution of recorded values (any shape, flattened).

    Raises `InputError` where there is none or one is not finite.
    """
    try:
        if np.iscomplexobj(samples):
            raise TypeError
        values = np.sort(np.asarray(samples, dtype=np.float64).ravel())
    except (TypeError, ValueError):
        raise InputError("samples must be real numbers; got an array that does not convert to float64") from None
    if not values.size:
        raise InputError("samples must hold at least one number, got none")
    if not np.isfinite(values).all():
        raise InputError(f"samples must be finite, got {np.count_nonzero(~np.isfinite(values))} NaN or infinite")
    digest = hashlib.sha256(values.tobytes()).hexdigest()[:16]
    lo, hi = float(values[0]), float(values[-1])
    if lo == hi:
        lo, hi = lo - 1.0, hi + 1.0
    return Weight(f"samples:{digest}", (lo, hi), samples=values)


def from_distribution(name: str, arguments: tuple[float, ...] = (), options: dict[str, float] | None = None) -> Weight:
    """A continuous distribution of `scipy.stats` by name and parameters, as `norm`, `norm(0, 2)`.

    Raises `InputError` for unknown names, wrong parameters and distributions without a density.
    """
    # Here and not at the top: scipy.stats takes longer to import than a uniform fit takes to run.
    from scipy import stats

    known = [key for key in dir(stats) if isinstance(getattr(stats, key), stats.rv_continuous)]
    if name not in known:
        raise InputError(f"unknown weight {name!r}: uniform, a distribution or a file; {nearest(name, known)}")
    if name in TOO_SLOW:
        raise InputError(f"weight {name} has a density too slow to integrate; draw samples from it into a file")
    options = options or {}
    parts = [_shortest(value) for value in arguments] + [f"{key}={_shortest(value)}" for key, value in options.items()]
    label = f"{name}({','.join(parts)})" if parts else name
    try:
        frozen = getattr(stats, name)(*arguments, **options)
        with np.errstate(all="ignore"):
            lower = frozen.ppf([TAIL, 1e-9, 1e-6, 0.001, 0.01, 0.05, 0.25, 0.5])
            upper = frozen.isf([TAIL, 1e-9, 1e-6, 0.001, 0.01, 0.05, 0.25])
        lo, hi = float(lower[0]), float(upper[0])
    except TypeError as error:
        raise InputError(f"weight {label}: {error}") from None
    if not (math.isfinite(lo) and math.isfinite(hi) and lo < hi):
        raise InputError(f"weight {label} is no distribution; check its parameters")
    landmarks = tuple(map(float, [*lower, *upper[::-1]]))
    return Weight(label, (lo, hi), density=frozen.pdf, landmarks=landmarks, spelling=label)


def _shortest(value: float) -> str:
    """`value` so that it reads back the same, 2.0 as 2."""
    return repr(float(value)).removesuffix(".0")


def read_samples(path: Path) -> Array:
    """Samples from a `.npy`, `.npz` (one array) or text file. Nothing is unpickled."""
    if not path.is_file():
        raise InputError(f"sample file must exist, got {str(path)!r}")
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                if len(archive.files) != 1:
                    raise InputError(f"sample file {path} must hold one array, got {len(archive.files)}")
                return np.asarray(archive[archive.files[0]])
        if path.suffix == ".npy":
            return np.asarray(np.load(path, allow_pickle=False))
        words = path.read_text(encoding="utf-8").replace(",", " ").split()
        return np.array([float(word) for word in words])
    except InputError:
        raise
    except (OSError, ValueError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        if "pickle" in reason:  # numpy's advice would be to trust the file
            reason = "it is no array of numbers in NumPy's format"
        raise InputError(f"sample file {path} cannot be read: {reason}") from None


def parse_weight(text: str) -> Weight:
    """`uniform`, a distribution such as `norm(0,2)`, or the path of a sample file.

    Raises `InputError` for anything else.
    """
    if re.search(r"[/\\]|\.(npy|npz|txt|csv|dat)$", text) or Path(text).is_file():
        return replace(from_samples(read_samples(Path(text))), spelling=Path(text).name)
    return named(text)


def named(text: str) -> Weight:
    """`uniform` or a distribution, never a file. Raises `InputError` for anything else."""
    if text == "uniform":
        return uniform()
    match = _CALL.fullmatch(text)
    if not match:
        raise InputError(f"weight must be uniform, a distribution like norm(0,2) or a file, got {text!r}")
    name, inside = match.groups()
    arguments, options = [], {}
    for part in filter(None, (part.strip() for part in (inside or "").split(","))):
        key, equals, value = part.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            raise InputError(f"weight {name}: parameters must be numbers, got {part!r}") from None
        if equals and key.strip() in options:
            raise InputError(f"weight {name}: each parameter once, got {part!r} again")
        if equals:
            options[key.strip()] = number
        else:
            arguments.append(number)
    return from_distribution(name, tuple(arguments), options)
