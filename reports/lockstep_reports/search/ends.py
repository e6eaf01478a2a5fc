"""The steps in which a lateness began and ended, by the likeliest change of its rate."""

import math

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix

# Heights that are tried besides the threshold: parts of these quantiles of the late steps. Noise
# passes the low ones, and a height among those of a fault would have a part of it only.
_USUAL_AND_HIGH = 0.5, 0.9
_PARTS = np.array([0.0, 0.5, 0.8])
# Nats by which an end must be likelier than none: of so many places one gains less by chance.
_MIN_GAIN = 4.0
_MIN_SAME_RATIO = 0.5
# Steps beside an episode that are late so often, by so many more than that share, are of it.
_LATE_SHARE, _MIN_GROWTH = 0.75, 2.0


def find_ends(
    lateness: Matrix, threshold: float, ends: tuple[int, int], bounds: tuple[int, int]
) -> tuple[int, int]:
    """First and last column of an episode.

    Args:
        lateness: of the unit: seconds, [series, steps], several ways to see it; NaN where unknown.
        threshold: over which a step is late, in seconds.
        ends: first and last column where it was found.
        bounds: first and last column that it may reach.
    """
    low, high = bounds
    # The best of so many places gains as much by chance.
    found = [(math.log(high - low + 1), *ends)]
    for values in lateness:
        inside = values[ends[0] : ends[1] + 1]
        inside = inside[inside > threshold]
        if not len(inside):
            continue
        within = values[low : high + 1]
        recorded = ~np.isnan(within)
        usual_and_high = np.quantile(inside, _USUAL_AND_HIGH)
        heights = np.outer(_PARTS, usual_and_high).ravel()
        capped = np.clip(values, 0.0, usual_and_high[0])
        for height in np.unique(np.maximum(heights, threshold)):
            late = recorded & (np.nan_to_num(within, nan=-np.inf) >= height)
            gain, first, last = _most_likely(late, recorded, ends[1] - low)
            inner = first + low, last + low
            found.append((gain, *_with_late_parts(capped, threshold, ends, inner)))
    _, first, last = max(found)
    late = np.nan_to_num(lateness[0, low : high + 1], nan=-np.inf) > threshold
    return first - _growth(late[: max(0, first - low)][::-1]), last + _growth(
        late[last + 1 - low :]
    )


def _growth(late: Flags) -> int:
    """How many steps [steps], counted from the end of an episode, are nearly all late too.

    A fault that grows is small where it begins.
    """
    gains = np.cumsum(late - _LATE_SHARE)
    return int(np.argmax(gains)) + 1 if gains.max(initial=0.0) > _MIN_GROWTH else 0


def _with_late_parts(
    capped: Matrix, threshold: float, ends: tuple[int, int], inner: tuple[int, int]
) -> tuple[int, int]:
    """The ``inner`` ends, or the outer one where what lies between the two is late too.

    The lateness [steps] of a fault that stands all the time drifts or grows, and a height between
    its parts divides it. ``capped`` is at zero and at its usual value: one pause outweighs many
    steps.
    """
    usual = _MIN_SAME_RATIO * nan_stats.mean(capped[inner[0] : inner[1] + 1])
    is_late = [
        len(part) and (nan_stats.mean(part) >= usual or nan_stats.median(part) > threshold)
        for part in (capped[ends[0] : inner[0]], capped[inner[1] + 1 : ends[1] + 1])
    ]
    return (ends[0] if is_late[0] else inner[0]), (ends[1] if is_late[1] else inner[1])


def _most_likely(late: Flags, recorded: Flags, last: int) -> tuple[float, int, int]:
    """Gain in nats of two rates over one, at the most likely ends, and the ends.

    Flags are [steps]; the begin is searched for with ``last`` as the end, the end with the begin
    that was found, and both once more.
    """
    first = 0
    for _ in range(2):
        first = _begin(late[: last + 1], recorded[: last + 1])
        last = len(late) - 1 - _begin(late[first:][::-1], recorded[first:][::-1])
    hits, steps = _counts(late), _counts(recorded)
    inside = hits[last + 1] - hits[first], steps[last + 1] - steps[first]
    outside = hits[-1] - inside[0], steps[-1] - inside[1]
    gain = _likelihood(*inside) + _likelihood(*outside) - _likelihood(hits[-1], steps[-1])
    return float(gain), first, last


def _begin(late: Flags, recorded: Flags) -> int:
    """The first step of the likeliest rise of the rate of late steps; 0 where none is likelier."""
    hits, steps = _counts(late), _counts(recorded)
    before, num_before = hits[:-1], steps[:-1]
    after, num_after = hits[-1] - before, steps[-1] - num_before
    likelihood = _likelihood(before, num_before) + _likelihood(after, num_after)
    rises = after * num_before > before * num_after
    begin = int(np.argmax(np.where(rises, likelihood, likelihood[0])))
    # Of so many places one gains that much by chance.
    is_likelier = likelihood[begin] - likelihood[0] > _MIN_GAIN
    return begin if is_likelier else int(np.argmax(late))


def _counts(flags: Flags) -> Integers:
    """Number of true flags before each step, and of all [steps + 1]."""
    return np.concatenate([[0], np.cumsum(flags)])


def _likelihood(hits: Integers, steps: Integers) -> Matrix:
    """Logarithm of the probability of so many hits in so many steps, at their own rate."""
    misses = steps - hits
    with np.errstate(divide="ignore", invalid="ignore"):
        value = hits * np.log(hits / steps) + misses * np.log(misses / steps)
    # Of nothing but hits, or nothing but misses, the probability is 1.
    return np.where((hits > 0) & (misses > 0), value, 0.0)
