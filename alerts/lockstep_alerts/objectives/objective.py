"""One objective: the share of good events that a cluster promises over 28 days."""

import re
from dataclasses import dataclass

from lockstep_alerts.entry import Entry
from lockstep_catalogue.ledger import EVENT_SLOS

PERIOD = "28d"
"""Window of the ledger over which the objective holds and its budget is counted."""
_ALERT = re.compile(r"^[A-Z][A-Za-z0-9]+$")
_MEASURE = re.compile(r"^M[1-9][0-9]*$")
_REQUIRED = ("slo", "measure", "good_ratio", "bad")
_OPTIONAL = ("page", "ticket")
# Below a half the budget is no exception but the rule; above 0.999 one bad event in a month of a
# thousand is already too many, and no window shorter than the month can tell.
_LEAST_RATIO, _MOST_RATIO = 0.5, 0.999


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """What is promised of one kind of event.

    Attributes:
        slo: name of the events that the ledger counts, one of ``EVENT_SLOS``.
        measure: what it answers, such as ``M1``.
        good_ratio: share of good events over 28 days.
        bad: the events that are not good, in words: a plural noun and what qualifies it.
        page: name of the alert that wakes somebody; None for none.
        ticket: name of the alert that makes a ticket; None for none.
    """

    slo: str
    measure: str
    good_ratio: float
    bad: str
    page: str | None
    ticket: str | None

    @property
    def bad_ratio(self) -> float:
        """The error budget: share of bad events that the objective allows."""
        return 1 - self.good_ratio


def read_objective(entry: Entry) -> Objective:
    """The objective of an entry.

    Raises:
        SpecError: a field is unknown, missing or outside of its bounds, or no alert is named.
    """
    entry.check_keys(_REQUIRED, _OPTIONAL)
    objective = Objective(
        slo=entry.choice("slo", *EVENT_SLOS),
        measure=entry.text("measure", _MEASURE),
        good_ratio=entry.number("good_ratio", _LEAST_RATIO, _MOST_RATIO),
        bad=entry.text("bad"),
        page=entry.optional_text("page", _ALERT),
        ticket=entry.optional_text("ticket", _ALERT),
    )
    if objective.page is None and objective.ticket is None:
        raise entry.refuse("ticket", "name an alert that follows, as page or as ticket")
    return objective
