"""Finds short stretches that are too high for their length, where ``late`` needs many steps.

A fault that doubles a step needs few of them. Each stretch of late steps at each of several heights
is held against three ways in which a healthy run could make it, and the likeliest counts:

* count: steps reach that height as often elsewhere, on this rank or on any, in runs as long;
* shock: one rare shock fades so slowly that it keeps all these steps high;
* mean: normal noise that drags on.

The probability is multiplied by every place and height that was looked at. The constants come from
generated null runs (``bench/reports/worker_tables.py``), never from a recording.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.search.chance import Noise, measure_noise, tail_bound
from lockstep_reports.search.late import Stretch, collect_late, is_among

# Shorter stretches are hiccups of busy hosts, which last up to eight steps.
_MIN_LATE = 10
# Share of a stretch's steps that must be late, as the price of a step (see ``collect_late``), and
# the longest gap: a pause of a few steps ends no stretch, but two hiccups are not one either.
_PRICE, _GAP = 0.7, 4
_HEIGHT_RATIO = 1.4
_MAX_HEIGHTS = 40
# A stretch must be so many times as long as the longest run elsewhere: of about its own height,
# because two hiccups may follow each other, and of late steps of any height.
_RUNS_AS_HIGH, _RUNS_OF_ANY = 2.0, 1.5


def find_high(excess: Matrix, threshold: float, probability: float) -> list[Stretch]:
    """The stretches too high and too long for chance, by unit and step.

    Args:
        excess: beyond the usual, positive when late, as a logarithm or in seconds, [units, steps];
            NaN where unknown.
        threshold: least height that counts.
        probability: upper bound for a stretch anywhere in a healthy run.
    """
    heights = _heights(excess, threshold)
    candidates = [stretch for height in heights for stretch in _candidates(excess, height)]
    if not candidates:
        return []
    elsewhere = excess.copy()
    for candidate in candidates:
        elsewhere[candidate.unit, candidate.columns] = np.nan
    noise = measure_noise(elsewhere)
    if noise is None:
        return []
    num_places = excess.size * len(heights)
    stretches: list[Stretch] = []
    # The highest first: its ends are those of the fault, not of the noise around it.
    for candidate in reversed(candidates):
        chance = num_places * _chance(candidate, elsewhere, noise, threshold)
        if chance <= probability and not is_among(stretches, candidate):
            stretches.append(replace(candidate, chance=chance))
    return sorted(stretches, key=lambda stretch: (stretch.unit, stretch.first))


def _heights(excess: Matrix, threshold: float) -> list[float]:
    top = float(np.nan_to_num(excess, nan=-np.inf).max(initial=-np.inf))
    heights: list[float] = []
    height = threshold
    while height < top and len(heights) < _MAX_HEIGHTS:
        heights.append(height)
        height *= _HEIGHT_RATIO
    return heights


def _candidates(excess: Matrix, height: float) -> Iterator[Stretch]:
    late = excess > height
    for unit in np.flatnonzero(late.sum(axis=1) >= _MIN_LATE).tolist():
        for first, last, count in collect_late(np.flatnonzero(late[unit]), _PRICE, _GAP):
            if count >= _MIN_LATE:
                yield Stretch.between(unit, (first, last), excess, height)


def _chance(candidate: Stretch, elsewhere: Matrix, noise: Noise, threshold: float) -> float:
    """Largest probability of the three ways at one given place; 1 where runs are as long elsewhere.

    ``elsewhere`` is the recording without any candidate [units, steps], ``noise`` that of it.
    """
    height, num_late = candidate.threshold, candidate.num_late
    as_high, of_any = (
        _run_lengths(elsewhere > least).max(initial=0)
        for least in (height / _HEIGHT_RATIO, threshold)
    )
    if num_late < max(_RUNS_AS_HIGH * as_high, _RUNS_OF_ANY * of_any):
        return 1.0
    late, is_known = elsewhere > height, ~np.isnan(elsewhere)
    total = int(late.sum())
    # Late steps come in runs, so each is worth one run's share of an independent step.
    weight = len(_run_lengths(late)) / total if total else 1.0
    # One more than was seen: nothing seen does not mean that it never happens.
    own_share = (late[candidate.unit].sum() + 1) / (is_known[candidate.unit].sum() + 1)
    share = max(float(own_share), (total + 1) / (int(is_known.sum()) + 1))
    num_steps = candidate.last - candidate.first + 1
    return max(
        tail_bound(num_late * weight, num_steps * weight, share),
        noise.chance_of_shock(height, num_late),
        noise.chance_of_mean(height, num_late),
    )


def _run_lengths(flags: Flags) -> Integers:
    """Steps of each run of true flags [units, steps]."""
    edges = np.diff(np.pad(flags.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    return np.nonzero(edges == -1)[1] - np.nonzero(edges == 1)[1]
