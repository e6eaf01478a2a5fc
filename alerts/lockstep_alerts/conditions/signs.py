"""A condition of several signs: one alert, one ticket an object, whatever shows the fault."""

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep_alerts.conditions.condition import Condition
from lockstep_catalogue.foreign import ALERT_CAUSE
from lockstep_catalogue.windows import ScrapeWindows


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """One sign of a fault.

    Attributes:
        name: value of the label ``cause``.
        condition: when it shows.
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
