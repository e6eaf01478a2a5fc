"""What repairing the accused would save, and each one's part of it.

A step of a job takes as long as its slowest rank. Repairing all accused saves what that rank took
beyond the slowest one afterwards, which can never exceed the run. Who is not the slowest by then
costs nothing, however slow it was.
"""

import numpy as np

from lockstep_reports.arrays import Matrix


def saved_by_repair(seconds: Matrix, repaired: Matrix) -> Matrix:
    """Each rank's part of what the repair of all saves: seconds, [ranks, steps].

    The time above the slowest rank after the repair is cut into layers, and all ranks that reach
    into a layer hold it up together, so they share it: the Shapley value of the game in which
    repaired ranks save time together (the airport game of Littlechild and Owen, 1973).

    Args:
        seconds: as recorded: [ranks, steps]; NaN where unknown.
        repaired: the same with the accused ranks' times as they should be.
    """
    if len(seconds) == 0:
        return np.zeros_like(seconds)
    slowest_after = np.nan_to_num(repaired, nan=-np.inf).max(axis=0)
    above = np.maximum(np.nan_to_num(seconds, nan=-np.inf) - slowest_after, 0.0)
    above = np.where(np.isfinite(above), above, 0.0)
    order = np.argsort(-above, axis=0, kind="stable")
    heights = np.take_along_axis(above, order, axis=0)
    layers = heights - np.vstack([heights[1:], np.zeros_like(heights[:1])])
    sharers = np.arange(1, len(seconds) + 1)[:, None]
    # A rank takes part in its own layer and in all lower ones.
    parts = np.cumsum((layers / sharers)[::-1], axis=0)[::-1]
    saved = np.empty_like(above)
    np.put_along_axis(saved, order, parts, axis=0)
    return saved
