"""A job to which the ledger applies events one request after the other, and what they added."""

from collections import Counter
from typing import Any

from sqlalchemy import select

from lockstep_catalogue import ledger as counted
from lockstep_ledger.ingest.document import RefusedEvent
from lockstep_ledger.merge.outcome import SettleTimeouts
from lockstep_ledger.merge.record import Record
from lockstep_ledger.merge.spans import WindowRow
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.tables import amendments, slo_events
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import StoreWriter

from ..stories import Story, checked

PATIENCE = SettleTimeouts(node_seconds=600.0, requeue_seconds=3600.0)


class Replay:
    """Applies stories of one job, each event in a transaction of its own."""

    def __init__(self, *stories: Story) -> None:
        self.key = (stories[0].cluster, stories[0].job_id)
        self.engine = open_store("sqlite:///:memory:")
        self.now = 0.0
        self.writer = StoreWriter(self.engine, PATIENCE, clock=lambda: self.now)
        self.refused: list[RefusedEvent] = []
        for story in stories:
            self.apply(story)

    def apply(self, story: Story) -> "Replay":
        for event in checked(story):
            self.now = event.received_seconds
            submission = Submission([event])
            self.writer.write([submission])
            self.refused += submission.refused
        return self

    def settle(self, after_seconds: float) -> "Replay":
        settle_at = self.job.settle_at
        assert settle_at is not None
        self.now = settle_at + after_seconds
        self.writer._settle_from_seconds = 0.0
        assert self.writer.settle_due() == 1
        return self

    @property
    def job(self) -> Record:
        state = self.writer._state.memory.get(self.key)
        assert state is not None
        assert state.record is not None
        return state.record

    @property
    def totals(self) -> "Counter[tuple[str, ...]]":
        totals: Counter[tuple[str, ...]] = Counter()
        for (name, labels), row in self.writer.counters.snapshot().items():
            key: Any = (name, *labels[len(counted.GROUP) :])
            if row.value:
                totals[key] += row.value  # type: ignore[assignment]  # GPU-seconds are floats
        return totals

    def finished(self) -> dict[tuple[str, ...], float]:
        name = counted.JOBS_FINISHED.name
        return {key[1:]: count for key, count in self.totals.items() if key[0] == name and count}

    def amended(self, metric: Any) -> float:
        return self.totals[counted.AMENDED.name, metric.name]

    def amendments(self) -> dict[str, tuple[str, str]]:
        with self.engine.connect() as connection:
            rows = connection.execute(select(amendments).order_by(amendments.c.number)).all()
        return {row.field: (row.before, row.after) for row in rows}

    def rows(self, slo: str) -> list[WindowRow]:
        with self.engine.connect() as connection:
            found = connection.execute(select(slo_events).where(slo_events.c.slo == slo)).all()
        sums: dict[float, list[float]] = {}
        for row in found:
            held = sums.setdefault(row.time, [0.0, 0.0])
            held[0], held[1] = held[0] + row.good, held[1] + row.total
        return [WindowRow(time, slo, *held) for time, held in sorted(sums.items()) if any(held)]
