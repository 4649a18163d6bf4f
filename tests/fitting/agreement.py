"""Compare arrays point by point, and say where they differ: worst point, count missed, ulps."""

import numpy as np

EPS = 2.0**-52
TINY = 5e-324


def ulps(got, want):
    """|got - want| in units of the last place of `want` (0 where both are the same, infinities and NaN included)."""
    got, want = np.asarray(got, dtype=np.float64), np.asarray(want, dtype=np.float64)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        distance = np.abs(got - want) / np.spacing(np.abs(want))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def misses(at, got, want, rtol=0.0, atol=0.0):
    """What to print where |got - want| > atol + rtol·|want| (atol may be an array); empty where it holds everywhere."""
    at, got, want = (np.asarray(values, dtype=np.float64) for values in (at, got, want))
    assert at.shape == got.shape == want.shape
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        excess = np.abs(got - want) / (atol + rtol * np.abs(want))
    excess = np.where(same, 0.0, np.where(np.isnan(excess), np.inf, excess))
    missed = np.flatnonzero(~(excess <= 1))
    if not missed.size:
        return ""
    worst = int(np.argmax(excess))
    return (
        f"{missed.size} of {at.size} points missed; worst at x = {at.flat[worst]!r}: got {got.flat[worst]!r}, "
        f"want {want.flat[worst]!r}, {excess.flat[worst]:.3g} × tolerance, {ulps(got, want).flat[worst]:.3g} ulps"
    )


def assert_agree(at, got, want, rtol=0.0, atol=0.0):
    message = misses(at, got, want, rtol, atol)
    assert not message, message


def around(points):
    """Each point and its two neighbours in float64."""
    points = np.asarray(points, dtype=np.float64)
    return np.unique([np.nextafter(points, -np.inf), points, np.nextafter(points, np.inf)])


def line(breakpoints=(), dense=401):
    """Points of every kind: dense near 0, growing to ±1e4, ±0, subnormal, huge, at and beside each breakpoint."""
    far = np.geomspace(1e-3, 1e4, dense // 4)
    extreme = np.array([0.0, TINY, 3e-310, 2.3e-308, 1e-160, 1e-17, 36.7, 708.5, 745.2, 1e4, 1e8, 1e160, 1.7e308])
    near = [np.linspace(-12, 12, dense), far, -far, extreme, -extreme]
    return np.concatenate([*near, around(breakpoints)] if len(breakpoints) else near)
