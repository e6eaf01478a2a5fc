"""Reads what counts once of a job from the store: checkpoints, resumes, failures."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, select

from lockstep_ledger.merge.marks import Mark, group_of
from lockstep_ledger.store.database import chunks_of
from lockstep_ledger.store.tables import marks

_ALL = select(marks).where(marks.c.job == bindparam("job"))
_OF_ATTEMPTS = _ALL.where(marks.c.attempt.in_(bindparam("attempts", expanding=True)))
_CHECKPOINTS = _OF_ATTEMPTS.where(
    marks.c.what == "checkpoint", marks.c.number.in_(bindparam("steps", expanding=True))
)
_OTHERS = _OF_ATTEMPTS.where(marks.c.what.in_(bindparam("kinds", expanding=True)))
_DURABLE = select(func.count(), func.min(marks.c.time), func.max(marks.c.time)).where(
    marks.c.job == bindparam("job"),
    marks.c.what == "checkpoint",
    marks.c.time <= bindparam("until"),
)
Marks = dict[Mark, dict[int, float]]
"""Earliest report by number, by group."""


def all_marks(connection: Connection, job: int) -> Marks:
    """The stored marks of a job."""
    return _group_marks(connection.execute(_ALL, {"job": job}))


def held_marks(connection: Connection, job: int, groups: Collection[Mark]) -> Marks:
    """The stored marks of some groups of a job.

    A delivery may report hundreds of checkpoints: they are read together, by key.
    """
    steps = sorted({group[2] for group in groups if group[0] == "checkpoint"})
    others = {group[0] for group in groups} - {"checkpoint"}
    values = {"job": job, "attempts": {group[1] for group in groups}}
    answers = [
        connection.execute(_CHECKPOINTS, {**values, "steps": some}) for some in chunks_of(steps)
    ]
    if others:
        answers.append(connection.execute(_OTHERS, {**values, "kinds": others}))
    return _group_marks(chain.from_iterable(answers))


def durable_checkpoints(connection: Connection, job: int, until: float) -> tuple[int, float, float]:
    """Number, first and last time of the durable checkpoints of a job up to a time."""
    number, first, last = connection.execute(_DURABLE, {"job": job, "until": until}).one()
    return number, first or 0.0, last or 0.0


def _group_marks(rows: Iterable[Row[Any]]) -> Marks:
    found: Marks = defaultdict(dict)
    for row in rows:
        found[group_of((row.what, row.attempt, row.number))][row.number] = row.time
    return found
