"""At most eleven kinds of pages: what on-call has to know is no longer than that (decision 26)."""

from lockstep_alerts.alert import Alert
from lockstep_alerts.conditions.telemetry import AlwaysFiring
from lockstep_alerts.conditions.wide import Wide
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

CONDITION_ALERTS = {
    "F2": "slow part",
    "F3": "broken hardware under a job",
    "F4": "checkpoint at stake",
    "F5": "loss",
    "F11": "hang",
    "F12": "broken hardware under a job",
    "M1": "objective",
    "M14": "objective",
}
"""What is wrong with one job or the objective, by the failure or measure that a page names."""
ALERTS = read_spec(spec_path()).alerts
PAGES = [each for each in ALERTS if each.severity == "critical"]
WIDE = [each for each in PAGES if isinstance(each.condition, Wide)]


def kind(page: Alert) -> str:
    return page.name if page in WIDE else CONDITION_ALERTS[page.failure]


def test_pages_are_of_eleven_kinds_at_most() -> None:
    watchdogs = {each.name for each in ALERTS if isinstance(each.condition, AlwaysFiring)}
    symptoms = {kind(each) for each in PAGES if each not in WIDE}
    assert (len(symptoms), len(WIDE), len(watchdogs)) == (6, 4, 1)
    assert symptoms == set(CONDITION_ALERTS.values())


def test_pages_of_one_kind_are_one_notification_of_a_job_or_differ_in_what_they_are_of() -> None:
    """Names of a kind say where it is; only one of them has no job, but for the objectives."""
    for each in {kind(page) for page in PAGES} - {"objective"}:
        of_kind = [page for page in PAGES if kind(page) == each]
        assert sum(not page.is_of_job for page in of_kind) <= 1, each
