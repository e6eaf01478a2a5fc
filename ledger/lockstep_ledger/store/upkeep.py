"""The leader's housekeeping between deliveries, in steps so small that none waits for long."""

import time
from dataclasses import dataclass, field

from sqlalchemy import Engine, delete

from lockstep_ledger.store import letters
from lockstep_ledger.store.retention import Keeper, Retention
from lockstep_ledger.store.rollup import roll_up
from lockstep_ledger.store.tables import dead_letters

_TURN_SECONDS = 0.02
_HOUR_SECONDS = 3600.0


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
