"""The declared size of the clusters that one Prometheus watches, and how much ends there."""

from dataclasses import dataclass

from lockstep_alerts.entry import Entry

_MOST = 1e6
_KEYS = ("nodes", "ranks", "jobs", "jobs_per_week")


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """What the cost of rules and the rate of false pages are estimated for.

    Attributes:
        nodes, ranks: of all running jobs together.
        jobs: that run at the same time.
        jobs_per_week: that end.
        location: file and line, for a refusal.
    """

    nodes: int
    ranks: int
    jobs: int
    jobs_per_week: float
    location: str


def read_size(entry: Entry) -> Size:
    """The size of a spec.

    Raises:
        SpecError: a field is unknown, missing or no number of 1 or more.
    """
    entry.check_keys(_KEYS, ())
    nodes, ranks, jobs, jobs_per_week = (entry.number(key, 0, _MOST) for key in _KEYS)
    return Size(
        nodes=int(nodes),
        ranks=int(ranks),
        jobs=int(jobs),
        jobs_per_week=jobs_per_week,
        location=entry.location().rpartition(": ")[0],
    )
