"""The narrow way to the GPU time of jobs: intervals that overlap a period, from their records."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, or_, select

from lockstep_ledger.merge.record import Record, record_of_json
from lockstep_ledger.money.accrual import BilledJob, GpuInterval
from lockstep_ledger.store.tables import jobs

_FACTS = BilledJob.__struct_fields__


def read_intervals(connection: Connection, begin: float, end: float) -> Iterator[GpuInterval]:
    """Intervals of all jobs that ran in a period, whole ones; a job without GPUs has none."""
    query = select(*(jobs.c[name] for name in _FACTS), jobs.c.state).where(
        jobs.c.started < end,
        or_(jobs.c.ended.is_(None), jobs.c.ended > begin, jobs.c.status != "finished"),
    )
    for row in connection.execute(query.order_by(jobs.c.number)):
        *facts, state = row
        values: dict[str, Any] = {n: v or "" for n, v in zip(_FACTS, facts, strict=True)}
        job = BilledJob(**values)
        yield from intervals_of(job, record_of_json(state))


def intervals_of(job: BilledJob, record: Record) -> Iterator[GpuInterval]:
    """The GPU time of each run; of one that goes on, the GPUs that it holds."""
    for number, run in enumerate(record.runs):
        if run.has_start and run.gpus:
            yield GpuInterval(
                job=job,
                run=number,
                node="",
                gpu_model=record.gpu_model,
                num_gpus=run.gpus,
                begin=run.begin,
                end=run.end,
                states=run.states or record.goodput,
                gpu_seconds=None if run.end is None else sum(run.states.values()),
                price_per_gpu_hour=record.price_per_gpu_hour,
                currency=record.currency,
            )
