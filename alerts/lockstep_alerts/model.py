"""What a spec means once it is read: symptoms, each with its limits, and how to deliver them."""

import re
from dataclasses import dataclass

_DURATION = re.compile(r"^([1-9][0-9]{0,5})(s|m|h|d)$")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Duration:
    """A Prometheus duration of one unit, such as ``10s`` or ``4m``.

    Raises:
        ValueError: the text is none.
    """

    text: str

    def __post_init__(self) -> None:
        if not _DURATION.match(self.text):
            raise ValueError(
                f"{self.text!r} is no duration; write a whole number and s, m, h or d, such as 10s"
            )

    def __str__(self) -> str:
        return self.text

    @property
    def seconds(self) -> int:
        """The length in seconds."""
        return int(self.text[:-1]) * _SECONDS[self.text[-1]]


@dataclass(frozen=True, kw_only=True, slots=True)
class StragglerLimits:
    """One rank comes later than the others by more than this share of the step."""

    above_ratio: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StalledLimits:
    """No rank moves for this many median steps, and at least for this long."""

    median_steps: float
    at_least: Duration


@dataclass(frozen=True, kw_only=True, slots=True)
class NotFiniteLimits:
    """Some step of the last window had a loss or gradient norm that is no number."""

    window: Duration


Limits = StragglerLimits | StalledLimits | NotFiniteLimits


@dataclass(frozen=True, kw_only=True, slots=True)
class Symptom:
    """One alert: what it means, when it fires, whom it wakes.

    Attributes:
        alert: its name, which is also the name of its runbook.
        failure: the failure mode it answers, such as ``F2``.
        severity: ``critical`` wakes somebody, ``warning`` makes a ticket.
        limits: the figures of its kind.
        pending: how long the condition must hold; None fires at once.
        keep_firing: how long it fires on after the condition has gone.
        deadline: from the fault to the notification.
        summary: one line for people, a Prometheus template.
        description: what is known, a Prometheus template.
    """

    alert: str
    failure: str
    severity: str
    limits: Limits
    pending: Duration | None
    keep_firing: Duration | None
    deadline: Duration
    summary: str
    description: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """How alerts reach people.

    Attributes:
        runbook_base: what stands before the file name of a runbook in its link.
        dashboard_base: what stands before ``/d/...`` in links to boards.
        pager_base: where the webhooks ``/pager`` and ``/tickets`` are.
        group_interval: how soon news of a group that was told already are told.
        interval: how often rules are evaluated.
    """

    runbook_base: str = "runbooks/"
    dashboard_base: str = ""
    pager_base: str = "http://127.0.0.1:9095"
    group_interval: Duration = Duration("1m")
    interval: Duration = Duration("5s")
