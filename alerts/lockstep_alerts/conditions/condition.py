"""What a condition is: its limits, its PromQL, and the cases that prove it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from lockstep_alerts.entry import Entry
from lockstep_alerts.synthetic import Samples

ONSET_SECONDS = 60
"""When the fault begins in a case: the recorded windows are full by then."""
DELIVERY_SECONDS = 10
"""Part of each deadline that belongs to Alertmanager: its group_wait and the webhook."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Series that are fed in, and what fires at one moment.

    Attributes:
        name: what happens, in a few words.
        series: input of promtool, from time 0.
        at_seconds: when the alert is evaluated.
        fires: labels of the alert that fires then, beyond name and severity; None for silence.
    """

    name: str
    series: list[Samples]
    at_seconds: int
    fires: Mapping[str, str] | None = None


class Condition(Protocol):
    """The limits of one kind of condition, read from an entry of the spec.

    Attributes:
        FIELDS: names of the fields in the spec, all of them required.
    """

    FIELDS: ClassVar[tuple[str, ...]]

    @classmethod
    def read(cls, entry: Entry) -> Self:
        """The limits of an entry.

        Raises:
            SpecError: a field is missing or outside of its bounds.
        """
        ...

    def expression(self) -> str:
        """PromQL that yields one series for each alert."""
        ...

    def evidence(self) -> str:
        """A Prometheus template that the description ends with; empty where the labels say all."""
        ...

    def cases(self, deadline_seconds: int) -> list[Case]:
        """Cases for promtool, firing ones first; at least one of each.

        Args:
            deadline_seconds: from the fault to the notification.
        """
        ...
