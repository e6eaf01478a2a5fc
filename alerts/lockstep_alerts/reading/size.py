"""The declared size of the clusters that one Prometheus watches, and how much ends there."""

from dataclasses import dataclass
from typing import Annotated

from lockstep_alerts.reading.entry import Entry
from lockstep_alerts.reading.quantities import Number, Whole, check_fields, read_quantities

_MOST = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """What the cost of rules and the rate of false pages are estimated for.

    Attributes:
        nodes, ranks: of all running jobs together.
        jobs: that run at the same time.
        jobs_per_week: that end.
        location: file and line, for a refusal.
    """

    nodes: Annotated[int, Whole(0, _MOST)]
    ranks: Annotated[int, Whole(0, _MOST)]
    jobs: Annotated[int, Whole(0, _MOST)]
    jobs_per_week: Annotated[float, Number(0, _MOST)]
    location: str


def read_size(entry: Entry) -> Size:
    """The size of a spec.

    Raises:
        SpecError: a field is unknown, missing or not a number above 0.
    """
    check_fields(Size, entry)
    return read_quantities(Size, entry, location=entry.location().rpartition(": ")[0])
