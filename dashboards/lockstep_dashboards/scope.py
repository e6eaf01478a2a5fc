"""What a board is opened for: the values of its variables, and a range of time."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_POINTS = 120  # a panel of usual width has about as many; Prometheus allows 11,000
_SCRAPES_IN_A_RATE = 4
_MATCHED = re.compile(r'(=~|!~|!=|=)"\$\{?(\w+)\}?"')


class ScopeError(ValueError):
    """A variable has no value; the text says which."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Values of variables, and the range of time.

    Attributes:
        end: seconds since the epoch.
        range_seconds: length of the range, which ends at ``end``.
        scrape_seconds: time between scrapes; rates reach over four of them.
        chosen: values of the variables by their names; all values of one that is absent.
        max_points: points of a series at most.
    """

    end: float
    range_seconds: float
    scrape_seconds: float
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_points: int = _POINTS

    @property
    def start(self) -> float:
        """Seconds since the epoch."""
        return self.end - self.range_seconds

    @property
    def step_seconds(self) -> float:
        """Time between two points, at least one scrape."""
        return max(self.range_seconds / self.max_points, self.scrape_seconds)

    def fill(self, expression: str) -> str:
        """An expression with every variable replaced, as Grafana does.

        Raises:
            ScopeError: a matcher of one value has none to compare with.
        """
        rate = self.step_seconds + _SCRAPES_IN_A_RATE * self.scrape_seconds
        built_in = {
            "$__rate_interval": f"{math.ceil(rate)}s",
            "$__interval": f"{math.ceil(self.step_seconds)}s",
            "$__range": f"{math.ceil(self.range_seconds)}s",
        }
        for name, value in built_in.items():
            expression = expression.replace(name, value)
        return _MATCHED.sub(self._matcher, expression)

    def _matcher(self, found: re.Match[str]) -> str:
        operator, name = found.groups()
        values = self.chosen.get(name, ())
        if operator.endswith("~"):
            pattern = "|".join(map(re.escape, values)) if values else ".*"
            return f'{operator}"{quote_text(pattern)}"'
        if len(values) != 1:
            raise ScopeError(f"the variable {name} needs one value and has {len(values)}; give it")
        return f'{operator}"{quote_text(values[0])}"'


def quote_text(text: str) -> str:
    """Text escaped for the quotes of a PromQL string."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
