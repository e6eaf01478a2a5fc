"""Events of jobs that a scheduler's or a log's text tells, with stable ids; MLPerf's logs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep_ledger.merge.precedence import SCHEDULER
from lockstep_outcomes.joblogs.model import JobLog
from lockstep_outcomes.joblogs.outcome import Incident, judge_log
from lockstep_outcomes.joblogs.read import read_log
from lockstep_outcomes.rules import cause_of
from lockstep_records.events.event import Event, stable_id

REPEAT_SECONDS = 86_400.0
"""After which a feed says again what still runs: what nobody speaks of is billed for a week."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEvents:
    """Makes the events of one job of a source; source, cluster and job id are parts of their ids.

    Two clusters may use the same numbers. The ``node`` is the scheduler when left out.
    """

    source: str
    job_id: str
    cluster: str
    node: str = SCHEDULER

    def event(
        self,
        kind: str,
        time: float,
        identity: object,
        fields: Mapping[str, Any] | None = None,
        attempt: int = 0,
    ) -> Event:
        """An event; None among its fields is left out.

        ``identity`` distinguishes it from others of this kind of the job, in every import alike.
        """
        return Event(
            kind=kind,
            job_id=self.job_id,
            attempt=attempt,
            time=time,
            id=stable_id(self.source, self.cluster, self.job_id, self.node, kind, identity),
            node=self.node,
            fields={name: value for name, value in (fields or {}).items() if value is not None},
        )


_MAX_JOB_ID = 120
# What a log leaves unsaid of an end: too short a limit is its owner's to change.
_CLASSES = {"time_limit": "user", "unknown": "unknown"}
_CAUSES = {"succeeded": "success"}


def read_mlperf(path: Path, cluster: str) -> Iterator[Event]:
    """Events of the run in a log or a folder of logs; OSError, or ValueError without a time."""
    log = read_log(path)
    incident = judge_log(log)
    begin = log.first_sign
    if begin is None:
        raise ValueError(f"{path} holds no line with a time, by which the job would be placed")
    name = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    # Start and end from one source: two logs of a name are two jobs only if their times differ.
    job_id = name[-_MAX_JOB_ID:].lstrip("_.-")
    events = JobEvents(source="mlperf", job_id=job_id, cluster=cluster)
    shape = {"world_size": log.world_size, "num_gpus": log.world_size, "source": "mlperf"}
    yield events.event("job_started", begin, begin, shape)
    if log.training_start is not None or incident.outcome not in {"failed", "unknown"}:
        ranks: dict[str, object] = {"ranks": [], "num_gpus": log.world_size}
        yield events.event("attempt_started", begin, begin, ranks)
    if (totals := _goodput(log, incident)) is not None:
        yield events.event("goodput", _end(log, incident), begin, totals)
    if incident.outcome != "running":
        fields = _end_fields(log, incident)
        yield events.event("job_finished", _end(log, incident), begin, fields)


def _end_fields(log: JobLog, incident: Incident) -> dict[str, object]:
    return {
        "outcome": incident.outcome,
        "failure_class": incident.failure_class or _CLASSES.get(incident.outcome),
        "cause": cause_of(incident.cause or _CAUSES.get(incident.outcome, "unknown")),
        "reason": incident.reason,
        "cause_ranks": list(incident.ranks),
        "cause_node": incident.group,
        "last_step": log.last_step,
    }


def _end(log: JobLog, incident: Incident) -> float:
    """When the run ended; a timestamp of the start that is printed late does not count."""
    times = (incident.ended, log.last_sign, log.run_stop, log.first_sign)
    return max(time for time in times if time is not None)


def _goodput(log: JobLog, incident: Incident) -> dict[str, object] | None:
    """GPU-seconds of start-up, of training, and of what came after; None without a world size."""
    if not log.world_size:
        return None
    end, begin = _end(log, incident), log.first_sign or 0.0
    training = end if log.training_start is None else log.training_start
    stop = log.run_stop if log.run_stop is not None else log.last_progress
    stop = min(end, max(training, training if stop is None else stop))
    # A run that ended before it logged training never trained: all of it was start-up.
    seconds = {
        "startup": max(0.0, training - begin),
        "productive": stop - training,
        "other": end - stop,
    }
    return {
        "rank_seconds": {state: value * log.world_size for state, value in seconds.items()},
        "num_ranks": log.world_size,
        "num_gpus": log.world_size,
        "last_step": log.last_step,
    }
