"""The leader's housekeeping between deliveries, in steps so small that none waits for long.

Counts of objectives are rolled up as they age: into minutes after an hour, into hours after a day.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, Table, delete, func, literal, select

from lockstep_catalogue.ledger import SLO_WINDOWS
from lockstep_ledger.store import letters
from lockstep_ledger.store.database import insert_into
from lockstep_ledger.store.retention import Keeper, Retention
from lockstep_ledger.store.tables import dead_letters, slo_events, slo_rollups

_TURN_SECONDS = 0.02
_HOUR_SECONDS, _DAY_SECONDS = 3600, 86_400
_KEEP_SECONDS = max(SLO_WINDOWS.values()) + _DAY_SECONDS
_STAGES: tuple[tuple[Table, int, int, int], ...] = (
    (slo_events, 0, 60, _HOUR_SECONDS),
    (slo_rollups, 60, _HOUR_SECONDS, _DAY_SECONDS),
)
"""Table, size of its buckets, size of the next ones, and the age at which rows go there."""
_GROUP = ("cluster", "job_class", "slo")


@dataclass(slots=True)
class Upkeep:
    """Rolls up, thins, takes out names and trims dead letters: by turns, each in a transaction."""

    engine: Engine
    retention: Retention
    _keeper: Keeper = field(init=False)
    _trimmed_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._keeper = Keeper(self.retention)

    def take_turn(self, now_seconds: float) -> None:
        """Works for a moment, or for one step where that takes longer."""
        end_seconds = time.monotonic() + _TURN_SECONDS
        if now_seconds - self._trimmed_seconds > _HOUR_SECONDS:
            self._trimmed_seconds = now_seconds
            with self.engine.begin() as connection:
                letters.trim(connection)
                if self.retention.names_seconds is not None:
                    oldest = now_seconds - self.retention.names_seconds
                    connection.execute(delete(dead_letters).where(dead_letters.c.received < oldest))
        is_busy = True
        while is_busy and time.monotonic() < end_seconds:
            with self.engine.begin() as connection:
                is_busy = roll_up(connection, now_seconds)
                is_busy = self._keeper.run_step(connection, now_seconds) or is_busy


def roll_up(connection: Connection, now_seconds: float) -> bool:
    """Moves the rows of one bucket; returns whether there was one to move.

    A row that comes late is moved by itself and added to its bucket.
    """
    for table, seconds, size, age_seconds in _STAGES:
        own = [table.c.seconds == seconds] if seconds else []
        oldest = connection.execute(select(func.min(table.c.time)).where(*own)).scalar()
        if oldest is None:
            continue
        begin = oldest // size * size
        if begin + size <= now_seconds - age_seconds:
            _move(connection, table, [*own, table.c.time >= begin, table.c.time < begin + size],
                  (size, begin))  # fmt: skip
            return True
    old = slo_rollups.c.time < now_seconds - _KEEP_SECONDS
    connection.execute(delete(slo_rollups).where(slo_rollups.c.seconds == _HOUR_SECONDS, old))
    return False


def _move(connection: Connection, table: Table, own: list[Any], key: tuple[int, float]) -> None:
    names = [table.c[name] for name in _GROUP]
    sums = (func.sum(table.c.good), func.sum(table.c.total))
    query = select(*map(literal, key), *names, *sums).where(*own).group_by(*names)
    moved = insert_into(connection, slo_rollups).from_select(slo_rollups.c.keys(), query)
    added = {name: slo_rollups.c[name] + moved.excluded[name] for name in ("good", "total")}
    keys = list(slo_rollups.primary_key)
    connection.execute(moved.on_conflict_do_update(index_elements=keys, set_=added))
    connection.execute(delete(table).where(*own))
