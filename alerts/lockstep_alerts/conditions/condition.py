"""A condition: its limits and its PromQL; tests/alerts/cases proves it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, dataclass_transform

from lockstep_catalogue.foreign import ALERT_CAUSE
from lockstep_catalogue.windows import ScrapeWindows

LIVE_WINDOW = "live window"


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Condition:
    """When an alert fires.

    Every subclass is a frozen dataclass whose annotated fields are its limits, as an entry of the
    spec gives them (``quantities.py``). Its kind is its name in lower case; its area is its module.

    Attributes:
        DETECTED_AFTER: how long a fault must last in the samples for the expression to hold:
            seconds, ``LIVE_WINDOW``, or the name of a field that is a duration.
        GPU_FLOORS: fields that no cluster can reach that has fewer GPUs.
    """

    DETECTED_AFTER: ClassVar[int | str] = 0
    GPU_FLOORS: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def expression(self, windows: ScrapeWindows) -> str:
        """PromQL that yields one series for each alert; ``windows`` gives every range of time."""
        raise NotImplementedError

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """How long a fault must last in the samples for the expression to hold."""
        after = self.DETECTED_AFTER
        if isinstance(after, int):
            return after
        return windows.live_seconds if after == LIVE_WINDOW else getattr(self, after).seconds

    def impossible(self, ranks: float) -> Iterator[tuple[str, str]]:
        """Fields that cannot work in a cluster of so many ranks, each with the reason."""
        for field in self.GPU_FLOORS:
            if getattr(self, field) > ranks:
                yield field, f"no job loses so much at size.ranks {ranks:g}; write less"

    def parts(self) -> "Iterator[Condition]":
        """The conditions that it consists of; of most itself."""
        yield self

    def evidence(self) -> str:
        """A Prometheus template that the description ends with; empty where the labels say all."""
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """One sign of a fault.

    Attributes:
        name: value of the label ``cause``.
        says: what it means, a template; empty where the alert's own words say all.
    """

    name: str
    condition: Condition
    says: str = ""


class Signs(Condition):
    """Any of several signs; the label ``cause`` names the one that shows."""

    signs: tuple[Sign, ...]

    def expression(self, windows: ScrapeWindows) -> str:
        """The series of every sign, each with its name."""
        return "\nor\n".join(
            f'label_replace({each.condition.expression(windows)}, "{ALERT_CAUSE.name}",'
            f' "{each.name}", "", "")'
            for each in self.signs
        )

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """That of the slowest sign."""
        return max(each.condition.detection_seconds(windows) for each in self.signs)

    def parts(self) -> Iterator[Condition]:
        """The conditions of its signs."""
        for each in self.signs:
            yield each.condition

    def evidence(self) -> str:
        """What the sign that shows means, and what Prometheus knows of it."""
        return "".join(
            f'{{{{ if eq $labels.{ALERT_CAUSE.name} "{each.name}" }}}}{text}{{{{ end }}}}'
            for each in self.signs
            if (text := f"{each.says} {each.condition.evidence()}".strip())
        )
