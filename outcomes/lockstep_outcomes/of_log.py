"""The evidence that the log of a job gives: what it names as first cause, for the outcome table.

The reader of logs finds which of thousands of lines came first and which ranks wrote it; what
such a cause means, outcome and class, is the table's to say.
"""

from lockstep_outcomes.evidence import Evidence, NodeEvent, RankEnd
from lockstep_outcomes.joblogs.judging.outcome import Incident
from lockstep_outcomes.joblogs.kinds import BY_NAME
from lockstep_outcomes.joblogs.model import JobLog

_REPORTED = {
    "succeeded": "success",
    "not_converged": "not_converged",
    "time_limit": "time_limit",
    "preempted": "preempted",
    "cancelled": "cancelled",
}
"""Outcome in the words of the log to the sign of it."""


def evidence_of_log(log: JobLog, incident: Incident) -> Evidence:
    """The evidence of a log by its incident; a job that runs gives none of an end."""
    sign = _REPORTED.get(incident.outcome)
    if sign is not None:
        return Evidence(reported=(sign,))
    if incident.outcome != "failed" or incident.cause is None:
        return Evidence()
    world_size = max(log.world_size or 0, 2, *(rank + 1 for rank in incident.ranks))
    ranks = tuple(range(world_size)) if _is_everywhere(incident) else incident.ranks
    found = NodeEvent(
        sign=_sign(incident, incident.cause),
        ranks=ranks,
        node=incident.group,
        detail="" if incident.first is None else incident.first.text,
    )
    return Evidence(
        ranks=tuple(RankEnd(rank=rank) for rank in range(world_size)),
        world_size=log.world_size,
        node_events=(found,),
    )


def _sign(incident: Incident, cause: str) -> str:
    """The sign in the table's words."""
    if cause == "launch_failure" and incident.failure_class == "infra":
        return "launch_system"  # the reader calls both kinds of launches that failed alike
    # Behind a wrapper that hides the cause all that is known is that it failed.
    return "exit" if cause == "hidden" else cause


def _is_everywhere(incident: Incident) -> bool:
    """Whether the reader found that most ranks failed alike, and names none therefore."""
    kind = BY_NAME.get(incident.cause or "")
    return incident.blame == "workload" and kind is not None and kind.blame in {"rank", "group"}
