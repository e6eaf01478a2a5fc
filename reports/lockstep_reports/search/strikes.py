"""Finds the first and the last step of what strikes now and then, high above all noise.

Its rate may change, so that no rate says where it began, as for other episodes (``ends``). It goes
on over gaps that are no longer than a steady rate makes now and then. A process that is stopped
again and again is also stopped in collectives, where its own work shows nothing and all ranks wait,
and where it waits for its loader anyway.
"""

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.chance import tail_bound
from lockstep_reports.search.stretches import Stretch

# A gap of so many mean ones is one of 1,100 where strikes come at a steady rate.
_GAPS_OF_MEAN = 7.0
# Of the usual strike: less is noise, or the rest of one beside a boundary, more is something else.
_LEAST_RATIO, _MOST_RATIO = 0.5, 2.0
_MAX_CHANCE = 0.1  # that other waits make an episode longer
_MOST_OF_RATE = 2.0  # more waits beside the strikes are of something else
# Counters of the kernel are read so often at most: steps between two reads share a value.
_READ_EVERY_SECONDS = 0.05


def steps_read_together(seconds: Matrix) -> int:
    """How many steps more than one share a read of the kernel's counters.

    Args:
        seconds: of steps, [steps] or [ranks, steps].
    """
    usual = nan_stats.median_number(seconds)
    return int(_READ_EVERY_SECONDS // usual) if usual else 0


def split_strikes(steps: Steps, late: Flags) -> list[Integers]:
    """The late steps of each strike: those that are so near to each other, of flags [steps]."""
    columns = np.flatnonzero(late)
    gaps = np.flatnonzero(np.diff(columns) > steps_read_together(steps.seconds) + 1)
    return np.split(columns, 1 + gaps) if len(columns) else []


def ends_of_strikes(steps: Steps, lateness: Matrix, stretch: Stretch) -> tuple[int, int]:
    """First and last column of strikes.

    Args:
        steps: in which they are.
        lateness: of the rank by its own work: seconds, [steps].
        stretch: where they were found; its unit is the row of the rank.
    """
    ends = stretch.first, stretch.last
    parts = split_strikes(steps, lateness > stretch.threshold)
    columns = np.array([part[np.argmax(lateness[part])] for part in parts])
    heights = np.array([lateness[part].sum() for part in parts])
    is_inside = (columns >= ends[0]) & (columns <= ends[1])
    usual = float(np.median(heights[is_inside]))
    seen = columns[heights >= _LEAST_RATIO * usual]
    longer = np.maximum(_waits_of_all(steps), _waits_for_loader(steps, stretch.unit))
    elsewhere = (longer >= _LEAST_RATIO * usual) & (longer <= _MOST_RATIO * usual)
    ends = _around(seen, ends)
    strikes = np.union1d(seen, np.flatnonzero(elsewhere))
    both = _around(strikes, ends)
    wider = min(ends[0], both[0]), max(ends[1], both[1])
    inside = np.count_nonzero((strikes >= ends[0]) & (strikes <= ends[1]))
    rate = inside / (ends[1] - ends[0] + 1)
    return wider if _are_strikes(elsewhere, ends, wider, rate) else ends


def _around(strikes: Integers, ends: tuple[int, int]) -> tuple[int, int]:
    """First and last of the strikes without a long gap between them, most of which lie inside."""
    is_inside = (strikes >= ends[0]) & (strikes <= ends[1])
    longest = _GAPS_OF_MEAN * (ends[1] - ends[0]) / max(1, int(is_inside.sum()) - 1)
    parts = np.split(np.arange(len(strikes)), 1 + np.flatnonzero(np.diff(strikes) > longest))
    found = max(parts, key=lambda part: np.count_nonzero(is_inside[part]))
    return int(strikes[found[0]]), int(strikes[found[-1]])


def _waits_of_all(steps: Steps) -> Matrix:
    """By how much longer than usual all ranks waited, and not for a core: seconds, [steps]."""
    shortest = nan_stats.lowest(steps.sync, axis=0)
    longer: Matrix = np.nan_to_num(shortest - nan_stats.median(shortest))
    if steps.run_queue is not None:
        longer = longer - np.nan_to_num(nan_stats.highest(steps.run_queue, axis=0))
    return longer


def _waits_for_loader(steps: Steps, row: int) -> Matrix:
    """By how much longer than usual a rank waited for its loader, without a core [steps]."""
    if steps.blocked is None:
        return np.zeros(len(steps.numbers))
    waits = np.minimum(steps.blocked[row], steps.phases["data"][row])
    longer: Matrix = np.nan_to_num(waits - nan_stats.median(waits))
    return longer


def _are_strikes(flags: Flags, ends: tuple[int, int], wider: tuple[int, int], rate: float) -> bool:
    """Whether flags [steps] between ends and wider ones are strikes, which come at a rate.

    They are too many for those outside of both, and not far more than inside.
    """
    num_added = int(flags[wider[0] : ends[0]].sum() + flags[ends[1] + 1 : wider[1] + 1].sum())
    num_added_steps = ends[0] - wider[0] + wider[1] - ends[1]
    outside = int(flags[: wider[0]].sum() + flags[wider[1] + 1 :].sum())
    num_outside = len(flags) - (wider[1] + 1 - wider[0])
    # One more than was seen: nothing seen does not mean that it never happens.
    chance = tail_bound(num_added, num_added_steps, (outside + 1) / (num_outside + 1))
    return chance <= _MAX_CHANCE and num_added <= _MOST_OF_RATE * (1 + rate * num_added_steps)
