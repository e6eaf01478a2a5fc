"""Ranks that hold up a job whose Inspector has fallen silent, by the operations that completed."""

from collections.abc import Sequence

import numpy as np

from lockstep_outcomes.progress.launch_finding import LateRank, LaunchFinding
from lockstep_records.nccl.ras_answer import ProcessDevice
from lockstep_reports.readers.inspector_steps import Operations
from lockstep_reports.recording.steps import Member

SILENT_SECONDS = 120.0
"""Without a record, from which on a job may hang; its dumps come every few seconds."""
# A rank may complete these before others have come: elsewhere one that is through proves that all
# have come, and a count that lacks is a record that was not written.
_ROOTED = frozenset({"Broadcast", "Reduce", "Scatter", "Gather"})
_MAX_BEHIND_RATIO = 0.25


def find_behind(
    operations: Operations, members: Sequence[Member], silent_seconds: float
) -> LaunchFinding | None:
    """The few ranks that completed less than all others, which completed the same.

    Where a job ends, every rank lacks what it has not written yet, another number each.
    """
    if silent_seconds < SILENT_SECONDS:
        return None
    for number, (communicator, function) in enumerate(operations.families):
        if function not in _ROOTED:
            continue
        is_own = operations.family == number
        last = np.full(len(members), -1)
        np.maximum.at(last, operations.row[is_own], operations.sequence[is_own])
        behind = np.flatnonzero((last >= 0) & (last < last.max()))
        if 0 < len(behind) <= _MAX_BEHIND_RATIO * np.count_nonzero(last >= 0):
            return LaunchFinding(
                kind="hang",
                why="nothing was written",
                seconds=silent_seconds,
                late=tuple(
                    LateRank(
                        rank=members[row].rank,
                        is_of_job=True,
                        process=ProcessDevice(host=members[row].node),
                        communicator=operations.names[communicator],
                        why="behind",
                        function=function,
                        launched=(int(last[row]) + 1, int(last.max()) + 1),
                        act="completed",
                    )
                    for row in behind.tolist()
                ),
            )
    return None
