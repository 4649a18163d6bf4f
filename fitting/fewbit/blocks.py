"""The compiled search behind `dp.partition`: layers of row minima, and backtracking to the cuts.

Row i of layer k asks for D_k(i) = min over columns j < i of D_{k-1}(j) + T(j, i), where T(j, i) is the cost
of the atoms j .. i-1 as one segment. Three exact facts stand in for the dense search:

1. D grows with its index, and T(j, i) falls as j grows (an atom more never costs less), whatever the values.
   So once column y is evaluated, every column j < y with D(j) >= best - T(y, i) is out: `_scan` goes from
   right to left and skips those. On a smooth curve it stops O(sqrt(segment length)) times.
2. Where the atoms a .. b-1 are monotone, the triangle a <= j < i <= b of T is Monge. Let the atoms j and i
   have masses u and v, those between them mass W, and let P and Q be the two values less the mean between:
     T(j,i+1) + T(j+1,i) - T(j,i) - T(j+1,i+1) = uv / (u+v+W) * [uP^2 / (u+W) + vQ^2 / (v+W) - 2PQ],
   which is >= 0 as PQ <= 0. (Values with two components: P^2, Q^2 and PQ are inner products, and PQ <= 0 where
   each component is monotone.) So the best column never moves left from row to row, whatever D is, and
   `_triangle` divides and conquers: its scans see ever narrower intervals, O(n log n) looks a layer.
3. For columns before a row's own monotone piece nothing is assumed. The scan there starts from the best so
   far, and from the best column of the row above; it is short unless the values are noise, and then n at worst.

Rounding. Let every computed T be within tau of the truth, and `margin` >= tau. By its jumps a scan loses at
most margin + 2 tau. Its column, as a bound for the scans of other rows, costs them at most
lambda = margin + 4 tau + 4 nu, by fact 2, if T is within nu of a Monge matrix. The losses of the levels of
`_triangle`, log2(n) + 1 at most, add up. So do those of the layers. They do not multiply, because fact 2
holds for any D, the computed one too, and fact 1 by the running maximum in `_layer`, which takes no D further
from the truth. So a layer loses at most (levels + 1) lambda + tau.
"""

import numpy as np
from numpy.typing import NDArray

from actfit.coefficients.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Columns = NDArray[np.int32]

# Up to this many cells (16 MB) the best columns of all layers are kept.
TABLE_CELLS = 1 << 22


@compiled
def _cost(sums: Floats, j: int, i: int) -> float:
    """T(j, i). High parts are subtracted first: that is exact where cancellation is worst."""
    mass = (sums[i, 0] - sums[j, 0]) + (sums[i, 1] - sums[j, 1])
    if mass <= 0.0:  # too small to show in the sums, and so is any cost
        return 0.0
    first = (sums[i, 3] - sums[j, 3]) + (sums[i, 4] - sums[j, 4])
    square = first * first
    if sums.shape[1] > 5:  # a branch, not a loop over components, which costs single values half as much again
        first = (sums[i, 5] - sums[j, 5]) + (sums[i, 6] - sums[j, 6])
        square += first * first
    return float(max((sums[i, 2] - sums[j, 2]) - square / mass, 0.0))


@compiled
def _scan(
    sums: Floats, prev: Floats, i: int, low: int, high: int, best: float, arg: int, margin: float
) -> tuple[float, int]:
    """The better of (best, arg) and row i's minimum over columns low .. high, to the noise; ties go left."""
    need = best - margin
    y = high
    while y >= low:
        if prev[y] >= need:
            if prev[low] >= need:
                break
            step = 1
            while y - step > low and prev[y - step] >= need:
                y -= step
                step *= 2
            below = max(low, y - step)
            while y - below > 1:  # prev[below] < need <= prev[y]
                middle = (below + y) // 2
                if prev[middle] >= need:
                    y = middle
                else:
                    below = middle
            y = below
        cost = _cost(sums, y, i)
        if prev[y] + cost <= best:
            best = prev[y] + cost
            arg = y
        need = best - margin - cost
        y -= 1
    return best, arg


@compiled
def _triangle(
    sums: Floats,
    prev: Floats,
    cur: Floats,
    arg: Columns,
    first: int,
    last: int,
    low: int,
    margin: float,
    stack: Ints,
) -> None:
    """Minima of rows first .. last over columns from low, a Monge triangle: middle row, then both halves."""
    stack[0] = first, last, low, last - 1
    top = 1
    while top > 0:
        top -= 1
        first, last, low, high = stack[top]
        row = (first + last) // 2
        cur[row], column = _scan(sums, prev, row, low, min(high, row - 1), np.inf, low, margin)
        arg[row] = column
        if row < last:
            stack[top] = row + 1, last, column, high
            top += 1
        if first < row:
            stack[top] = first, row - 1, low, column
            top += 1


@compiled
def _layer(
    sums: Floats,
    turns: Ints,
    origin: int,
    first: int,
    last: int,
    prev: Floats,
    cur: Floats,
    arg: Columns,
    margin: float,
) -> None:
    """Fill cur (D_k) and arg (its columns) for rows first .. last from prev, which holds from row first - 1.

    Atoms turns[p] .. turns[p + 1] are monotone; row and column 0 are atom `origin`.
    """
    stack = np.empty((64, 4), np.int64)  # two entries a level at most
    low = first - 1
    for p in range(turns.size - 1):
        start = max(turns[p] - origin, 0)
        # A turning atom belongs to the pieces on both sides; its row to the left one.
        top = max(first, start + 2 if start else 1)
        bottom = min(last, turns[p + 1] - origin + 1)
        if top > bottom:
            continue
        start = max(start, low)
        _triangle(sums, prev, cur, arg, top, bottom, start, margin, stack)
        if start == low:
            continue
        for i in range(top, bottom + 1):
            seed = arg[i - 1] if i > first else start
            if seed < start:
                cost = prev[seed] + _cost(sums, seed, i)
                if cost <= cur[i]:
                    cur[i], arg[i] = cost, seed
            cur[i], arg[i] = _scan(sums, prev, i, low, start - 1, cur[i], arg[i], margin)
    for i in range(first + 1, last + 1):
        cur[i] = max(cur[i], cur[i - 1])


@compiled
def _first_layer(sums: Floats) -> Floats:
    cur = np.zeros(len(sums))
    for i in range(1, len(sums)):
        cur[i] = max(cur[i - 1], _cost(sums, 0, i))
    return cur


@compiled
def _by_table(sums: Floats, turns: Ints, origin: int, k: int, margin: float, cuts: Ints) -> None:
    """Write the k - 1 cuts, keeping every layer's columns: one pass, k n cells."""
    n = len(sums) - 1
    prev = _first_layer(sums)
    cur = np.empty(n + 1)
    arg = np.empty((k, n + 1), np.int32)
    for layer in range(2, k):
        _layer(sums, turns, origin, layer, n - k + layer, prev, cur, arg[layer], margin)
        prev, cur = cur, prev
    cut = _scan(sums, prev, n, k - 1, n - 1, np.inf, n - 1, margin)[1]
    for layer in range(k - 1, 0, -1):
        cuts[layer - 1] = origin + cut
        cut = arg[layer, cut]


@compiled
def _cut_after(sums: Floats, turns: Ints, origin: int, k: int, half: int, margin: float) -> int:
    """The cut after the first `half` of the k best segments; each row carries its own cut along, so O(n) cells."""
    n = len(sums) - 1
    prev = _first_layer(sums)
    cur = np.empty(n + 1)
    arg = np.empty(n + 1, np.int32)
    carried = np.arange(n + 1).astype(np.int32)
    carry = carried.copy()
    for layer in range(2, k):
        _layer(sums, turns, origin, layer, n - k + layer, prev, cur, arg, margin)
        prev, cur = cur, prev
        if layer > half:
            for i in range(layer, n - k + layer + 1):
                carry[i] = carried[arg[i]]
            carried, carry = carry, carried
    return int(carried[_scan(sums, prev, n, k - 1, n - 1, np.inf, n - 1, margin)[1]])


@compiled
def best_cuts(sums: Floats, turns: Ints, k: int, margin: float) -> Ints:
    """The cuts of the best k segments of n > k atoms.

    Time: O(k n log n) for monotone values, see `dp.partition` for others. Memory: O(n), as a search too big for a table
    finds its middle cut only and leaves two searches of half the layers (Hirschberg), for about twice the time.

    sums, float64 (n + 1, 3 + 2 d): sums over the atoms before each one of mass (high and low part), of mass *
        |value|^2, and of mass * value (high and low part) for each of the value's d components; d is 1 or 2.
    turns: as from `dp.turning_points`.
    margin: see the top.
    Returns int64 array (k - 1,): increasing positions.
    """
    cuts = np.empty(k - 1, np.int64)
    todo = [(0, len(sums) - 1, 0, k)]  # atoms a .. b-1 are to be segments done .. done + k - 1
    while len(todo) > 0:
        a, b, done, k = todo.pop()
        part = sums[a : b + 1]
        if k == 1:
            continue
        if k * (b - a + 1) <= TABLE_CELLS:
            _by_table(part, turns, a, k, margin, cuts[done : done + k - 1])
            continue
        half = k // 2
        middle = a + _cut_after(part, turns, a, k, half, margin)
        cuts[done + half - 1] = middle
        todo.append((a, middle, done, half))
        todo.append((middle, b, done + half, k - half))
    return cuts
