"""What running jobs promised: by when they are to be trained on how many tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, select

from lockstep_catalogue.ledger import MAX_TARGETS
from lockstep_ledger.merge.record import record_of_json
from lockstep_ledger.store.counters import counted_cluster
from lockstep_ledger.store.tables import jobs

_MAX_READ = 2000  # a record is decoded in some ten microseconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The promise of one job.

    Attributes:
        deadline_time: wall clock by which it has to be done.
        tokens: that it is to be trained on by then.
    """

    cluster: str
    job_id: str
    deadline_time: float
    tokens: float


def running_targets(
    connection: Connection, clusters: frozenset[str] | None = None
) -> Iterator[Target]:
    """Targets of the newest running jobs that declare a deadline and their tokens."""
    query = (
        select(jobs.c.state)
        .where(jobs.c.status == "running")
        .order_by(jobs.c.number.desc())
        .limit(_MAX_READ)
    )
    num_targets = 0
    for (state,) in connection.execute(query):
        try:
            job = record_of_json(state)
        except ValueError:  # its record cannot be read, and harms no other
            continue
        if job.deadline and job.declared_tokens and num_targets < MAX_TARGETS:
            num_targets += 1
            yield Target(
                cluster=counted_cluster(job.cluster, clusters),
                job_id=job.job_id,
                deadline_time=job.deadline,
                tokens=job.declared_tokens,
            )
