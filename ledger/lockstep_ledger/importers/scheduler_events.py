"""Events of a scheduler's word on a whole job, with ids that follow from what they say."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep_records.events.event import Event, stable_id

SCHEDULER_NODE = ""
"""The node of a word on the whole job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEvents:
    """Makes the events of one job of a source.

    Args:
        source: slurm, kubernetes or mlperf; a part of the ids.
        job_id: name of the job in the ledger.
        node: source of the event; the scheduler when left out.
    """

    source: str
    job_id: str
    node: str = SCHEDULER_NODE

    def event(
        self,
        kind: str,
        time: float,
        identity: object,
        fields: Mapping[str, Any] | None = None,
        attempt: int = 0,
    ) -> Event:
        """An event; None among its fields is left out.

        Args:
            kind: of the event.
            time: seconds since 1970.
            identity: distinguishes it from others of this kind of the job, in every import alike.
            fields: by kind.
            attempt: number of the run.
        """
        return Event(
            kind=kind,
            job_id=self.job_id,
            attempt=attempt,
            time=time,
            id=stable_id(self.source, None, self.job_id, self.node, kind, identity),
            node=self.node,
            fields={name: value for name, value in (fields or {}).items() if value is not None},
        )
