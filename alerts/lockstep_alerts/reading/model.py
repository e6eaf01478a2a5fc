"""Durations as Prometheus reads them, and how alerts are delivered."""

from dataclasses import dataclass

from lockstep_records.text.durations import parse_duration


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration in Prometheus' spelling, such as ``4m``; ValueError unless whole seconds."""

    text: str

    def __post_init__(self) -> None:
        seconds = parse_duration(self.text)
        if seconds < 1 or seconds % 1:
            raise ValueError(f"{self.text!r} must be a whole number of seconds, 1s or more")

    def __str__(self) -> str:
        return self.text

    @property
    def seconds(self) -> int:
        """The length in seconds."""
        return round(parse_duration(self.text))


_TICKET_WAIT_SECONDS = 15
_WEBHOOK_SECONDS = 4


def group_wait_seconds(severity: str, evaluation_seconds: int) -> int:
    """How long Alertmanager waits for more alerts of one incident, by severity.

    Longer than an evaluation: the cause of a symptom that fires now may fire at the next.
    """
    wait = evaluation_seconds + 1
    return wait if severity == "critical" else max(_TICKET_WAIT_SECONDS, wait)


def delivery_seconds(severity: str, evaluation_seconds: int) -> int:
    """Part of an alert's deadline that belongs to Alertmanager and the webhook."""
    return group_wait_seconds(severity, evaluation_seconds) + _WEBHOOK_SECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """How alerts reach people.

    Attributes:
        pager_base: where the webhooks ``/pager`` and ``/tickets`` are.
        group_interval: time before changes of a group that was notified are notified too.
        evaluation_seconds: time between two evaluations of the rules.
    """

    runbook_base: str = "runbooks/"
    dashboard_base: str = ""
    pager_base: str = "http://127.0.0.1:9095"
    group_interval: Duration = Duration("1m")
    evaluation_seconds: int = 15
