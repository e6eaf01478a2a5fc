"""Parameters of the PromQL of a recorded series."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lockstep_alerts.reading.limits import Limits
from lockstep_catalogue.metric import Recorded
from lockstep_catalogue.windows import ScrapeWindows


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """What the scrape interval decides, and the limits of the spec."""

    windows: ScrapeWindows
    limits: Limits


Expression = str | Callable[[Parameters], str]
Expressions = Mapping[Recorded, Expression]
"""PromQL of recorded series, as a text where it depends on nothing."""
