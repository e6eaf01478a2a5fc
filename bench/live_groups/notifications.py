"""Holds the notifications that arrived against what was made slow, stretch by stretch."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from live_jobs import Job, Slow

_TAIL_SECONDS = 90.0  # an alert of a stretch may begin when its last steps are in the window
_LABELS = ("rank", "node", "pp", "phase")


@dataclass(frozen=True, slots=True)
class Moment:
    """Begin and end of a stretch on the wall clock, in seconds."""

    begin: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """One alert that was notified.

    Attributes:
        starts: when it began to fire, in wall-clock seconds.
        arrived: when the first notification that holds it arrived.
    """

    job_id: str
    name: str
    severity: str
    labels: Mapping[str, str]
    starts: float
    arrived: float

    @property
    def sentence(self) -> str:
        """Its name, and what it names."""
        named = " ".join(f"{name}={self.labels[name]}" for name in _LABELS if name in self.labels)
        return f"{self.name} {named}".strip()


def read_alerts(lines: Iterable[str]) -> list[Alert]:
    """Every alert of the pager's file, once, in the order of arrival."""
    alerts: dict[tuple[str, ...], Alert] = {}
    for notification in map(json.loads, lines):
        arrived = datetime.fromisoformat(notification["time"]).timestamp()
        for fields in notification["alerts"]:
            labels = fields["labels"]
            key = (fields["starts_at"], *(f"{name}={labels[name]}" for name in sorted(labels)))
            alert = Alert(
                job_id=labels.get("job_id", ""),
                name=labels["alertname"],
                severity=labels["severity"],
                labels=labels,
                starts=datetime.fromisoformat(fields["starts_at"]).timestamp(),
                arrived=arrived,
            )
            alerts.setdefault(key, alert)
    return list(alerts.values())


def table(
    jobs: Iterable[Job], moments: Mapping[str, Mapping[str, Moment]], alerts: list[Alert]
) -> str:
    """One line of Markdown for each stretch of each job, and one for what belongs to none."""
    lines = [
        "| job | stretch | minutes | pages | after | tickets | as it must be |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    unclaimed = list(alerts)
    for job in jobs:
        for name, moment in moments[job.name].items():
            slow = {"slow rank": job.slow, "slow node": job.slow_node}.get(name)
            own = [alert for alert in unclaimed if _is_within(alert, job, moment, slow)]
            unclaimed = [alert for alert in unclaimed if alert not in own]
            lines.append(_line(job, name, moment, slow, own))
    rest = "; ".join(f"{alert.job_id} {alert.sentence}" for alert in unclaimed) or "none"
    return "\n".join([*lines, "", f"Alerts outside of these stretches: {rest}."])


def _is_within(alert: Alert, job: Job, moment: Moment, slow: Slow | None) -> bool:
    end = moment.end + (_TAIL_SECONDS if slow is not None else 0.0)
    return alert.job_id == job.name and moment.begin <= alert.starts < end


def _line(job: Job, name: str, moment: Moment, slow: Slow | None, own: list[Alert]) -> str:
    pages = [alert for alert in own if alert.severity == "critical"]
    tickets = [alert for alert in own if alert.severity != "critical"]
    right = not pages if slow is None else len(pages) == 1 and _names(pages[0], slow)
    after = f"{pages[0].arrived - moment.begin:.0f} s" if pages else ""
    cells = (
        job.name,
        name,
        f"{(moment.end - moment.begin) / 60:.1f}",
        "; ".join(alert.sentence for alert in pages) or "none",
        after,
        "; ".join(alert.sentence for alert in tickets) or "none",
        "yes" if right else "NO",
    )
    return f"| {' | '.join(cells)} |"


def _names(alert: Alert, slow: Slow) -> bool:
    return alert.name == slow.alert and all(
        alert.labels.get(name) == value for name, value in slow.names.items()
    )
