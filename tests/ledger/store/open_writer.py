"""A writer over a store whose jobs are settled at once, and what a scrape of it shows."""

from collections.abc import Iterator
from contextlib import contextmanager

from lockstep_ledger.merge.outcome import SettleTimeouts
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.windows import count_windows
from lockstep_ledger.store.writer import StoreWriter
from lockstep_ledger.web.app import Exposition, windows

from ..stories import BEGIN

NOW = BEGIN + 10_000


@contextmanager
def opened(dsn: str, clusters: frozenset[str] | None = None) -> Iterator[StoreWriter]:
    engine = open_store(dsn)
    try:
        timeouts = SettleTimeouts(node_seconds=0, requeue_seconds=0)
        writer = StoreWriter(engine, timeouts, clock=lambda: NOW, clusters=clusters)
        yield writer
    finally:
        engine.dispose()


def metrics(writer: StoreWriter, clusters: frozenset[str] | None = None) -> str:
    counts = count_windows(writer._engine, NOW, clusters)
    exposition = Exposition(0.0)
    samples = exposition.counted(writer.counters.snapshot(), NOW)
    names = {cluster for cluster, *_ in (*counts.slo, *counts.jobs)}
    samples |= windows(counts.slo, counts.jobs, sorted(names))
    return exposition.render(samples).decode()
