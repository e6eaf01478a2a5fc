"""The trace of a job: ids that every rank, launcher and agent computes alike, with no exchange.

The trace id is that of the environment's W3C TRACEPARENT, else the first 16 bytes of SHA-256 over
``lockstep trace JOB_ID``. A span id is the first 8 bytes of SHA-256 over the trace id, the requeue
and the span's path. So a job has one trace over all its ranks, attempts and requeues, and a span
that is exported twice is the same span.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_REQUEUE = re.compile(r"[0-9]{1,9}")
TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
SPAN_ID = re.compile(r"(?!0{16})[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """The trace that the spans of one job belong to.

    Attributes:
        trace_id: 32 hexadecimal digits.
        parent_id: span outside the job that started it, 16 hexadecimal digits; None = the root.
        requeue: how often the scheduler has started the job again, from 0.
        sampled: the recording flag of TRACEPARENT; True without one.
    """

    trace_id: str
    parent_id: str | None = None
    requeue: int = 0
    sampled: bool = True

    def span_id(self, *path: object) -> str:
        """Id of a span by its path below the job: (), (attempt,), (attempt, rank), ..."""
        # hash() differs from process to process; every rank must compute the same id.
        text = "/".join(str(part) for part in (self.trace_id, self.requeue, *path))
        return hashlib.sha256(f"lockstep span {text}".encode()).hexdigest()[:16]

    def traceparent(self) -> str:
        """Value of TRACEPARENT for the ranks: this trace, below the job's span."""
        return f"00-{self.trace_id}-{self.span_id()}-{'01' if self.sampled else '00'}"


def trace_of(job_id: str, environment: Mapping[str, str] = os.environ) -> Trace:
    """The trace of a job, by SLURM_RESTART_COUNT and by TRACEPARENT, ignored when malformed."""
    restarts = environment.get("SLURM_RESTART_COUNT", "")
    requeue = int(restarts) if _REQUEUE.fullmatch(restarts) else 0
    parent = _TRACEPARENT.fullmatch(environment.get("TRACEPARENT", ""))
    if parent and TRACE_ID.fullmatch(parent[1]) and SPAN_ID.fullmatch(parent[2]):
        sampled = bool(int(parent[3], 16) & 1)
        return Trace(trace_id=parent[1], parent_id=parent[2], requeue=requeue, sampled=sampled)
    digest = hashlib.sha256(f"lockstep trace {job_id}".encode()).hexdigest()
    return Trace(trace_id=digest[:32], requeue=requeue)
