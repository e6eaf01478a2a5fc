"""The real writer over a real store, in the shape in which it is held against the model."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import create_engine, make_url, select, text

from lockstep_catalogue.ledger import AMENDED, COUNTED
from lockstep_catalogue.metric import Kind
from lockstep_ledger.ingest.document import read_delivery
from lockstep_ledger.merge.derive import Derivation
from lockstep_ledger.merge.outcome import SettleTimeouts
from lockstep_ledger.store import job_states
from lockstep_ledger.store.database import open_store, store_url
from lockstep_ledger.store.tables import jobs
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.windows import count_windows
from lockstep_ledger.store.writer import StoreWriter

from .job_history import Settings
from .ledger_model import CounterKey
from .windows import WindowKey

GROUP = ("cluster", "queue", "project", "job_class")
AmendedKey = tuple[str, tuple[tuple[str, str], ...]]
"""Family as in ``CounterKey``, and the labels of the group by name, sorted."""
_METRICS = {name: metric for metric in COUNTED for name in metric.sample_names}


def group_key(key: CounterKey) -> AmendedKey:
    """The family of a counter and its labels of the group; of a histogram its cluster alone."""
    family, labels = key
    names = GROUP[:1] if family.endswith("_count") else GROUP
    return family, tuple(pair for pair in labels if pair[0] in names)


class StoreLedger:
    """Writes as ``lockstep ledger serve`` does; a death leaves what was committed."""

    def __init__(self, dsn: str, settings: Settings) -> None:
        self._dsn, self._now = dsn, 0.0
        self._timeouts = SettleTimeouts(
            node_seconds=settings.node_wait_seconds,
            requeue_seconds=settings.requeue_wait_seconds,
            silent_seconds=settings.silent_wait_seconds,
        )
        self._open()

    def _open(self) -> None:
        self._engine = open_store(self._dsn)
        self._writer = StoreWriter(self._engine, self._timeouts, clock=lambda: self._now)

    def deliver(self, batch: Mapping[str, Any], received_seconds: float) -> None:
        self._now = max(self._now, received_seconds)
        delivery = read_delivery(json.dumps(batch).encode(), received_seconds)
        assert not delivery.refused, delivery.refused
        self._writer.write([Submission(delivery.events, [])])

    def settle(self, now: float) -> None:
        """Settles what need not be waited for any longer at a moment."""
        self._now = max(self._now, now)
        self._writer._settle_from_seconds = 0.0
        while self._writer.settle_due():
            pass

    def records(self) -> Sequence[Mapping[str, Any]]:
        """The records of all jobs, with the fields of the model's."""
        with self._engine.connect() as connection:
            rows = connection.execute(select(jobs)).all()
            states = [job_states.load(connection, row) for row in rows]
        return [
            _record(json.loads(row.state), state) for row, state in zip(rows, states, strict=True)
        ]

    def counters(self) -> Mapping[CounterKey, float]:
        """Every counter as it is served; of a histogram its ``_count``."""
        found: dict[CounterKey, float] = defaultdict(float)
        for (name, values), row in self._writer.counters.snapshot().items():
            metric = _METRICS[name]
            is_served = metric.kind is Kind.COUNTER or name.endswith("_count")
            if not is_served or metric is AMENDED or not row.value:
                continue
            labels = dict(zip(metric.label_names, values, strict=True))
            labels = {_SHORT.get((metric.name, label), label): v for label, v in labels.items()}
            family = name.removeprefix("lockstep_ledger_").removesuffix("_total")
            found[family, tuple(sorted(labels.items()))] += row.value
        return found

    def amended(self) -> Mapping[AmendedKey, float]:
        found: dict[AmendedKey, float] = {}
        for (name, values), row in self._writer.counters.snapshot().items():
            if name == AMENDED.name and row.value:
                labels = dict(zip(AMENDED.label_names, values, strict=True))
                family = labels.pop("family").removeprefix("lockstep_ledger_")
                key = (family.removesuffix("_total"), tuple(sorted(labels.items())))
                found[group_key(key)] = row.value
        return found

    def windows(self, now: float) -> Mapping[WindowKey, tuple[float, float]]:
        counts = count_windows(self._engine, now).slo
        return {key: pair for key, pair in counts.items() if any(abs(v) > 1e-6 for v in pair)}

    def close(self) -> None:
        self._engine.dispose()

    def kill(self) -> None:
        self._engine.dispose()
        self._open()


_SHORT = {("lockstep_ledger_resumes_total", "restore_outcome"): "restore"}


def postgres_ledger(server: str, settings: Settings) -> StoreLedger:
    name = f"ledger_{uuid4().hex}"
    engine = create_engine(store_url(server), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    address = make_url(server).set(database=name)
    return StoreLedger(address.render_as_string(hide_password=False), settings)


def sqlite_ledger(folder: Path, settings: Settings) -> StoreLedger:
    return StoreLedger(str(folder / "ledger.db"), settings)


def _record(record: dict[str, Any], state: job_states.JobState) -> dict[str, Any]:
    # Names of nodes are in the spans: a record of a thousand nodes is not written with each event.
    nodes = [
        [span.node for span in run.newest] for run in Derivation(state.facts, state.sources).runs
    ]
    counts = defaultdict(int, record["checkpoint_counts"])
    disagreements = {tuple(each[:3]) for each in record["disagreements"]}
    names = (
        "cluster", "job_id", "ids", "status", "outcome", "failure_class", "cause", "submitted",
        "started", "ended", "queue_wait_seconds", "attempts", "preemptions", "lost_gpu_seconds",
        "gpu_seconds", "silent_nodes",
    )  # fmt: skip
    words = ("name", "user", "queue", "project", "job_class")
    return {
        **{name: record[name] for name in names},
        **{name: record[name] or None for name in words},
        "num_nodes": record["expected_nodes"],
        "num_gpus": record["gpus"],
        "requeues": [run["requeued_after"] for run in record["runs"] if run["requeued_after"]],
        "restores": {"ok": counts["resumed"], "fallback": counts["fallback"],
                     "failed": counts["restore_failed"]},
        "checkpoints": {name: counts[name] for name in ("ok", "failed", "invalid")},
        "states": record["goodput"],
        "cost": record["costs"],
        "disagreements": sorted(map(list, disagreements), key=str),
        "runs": [
            {
                "begin": run["begin"], "end": run["end"], "has_start": run["has_start"],
                "outcome": run["outcome"], "gpu_seconds": sum(run["states"].values()),
                "nodes": names,
            }
            for run, names in zip(record["runs"], nodes, strict=True)
        ],
    }  # fmt: skip
