"""Which series of the catalogue a PromQL expression reads, and how far back."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep_catalogue import FOREIGN, METRICS, RECORDED
from lockstep_catalogue.metric import Series
from lockstep_records.text.durations import parse_duration

_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([^}]*)\})?(?:\[([0-9a-z]+)(?::[^]]*)?\])?")
_MATCHER = re.compile(r'([a-z_]+)(=~|!~|!=|=)"([^"]*)"')
_BY_SAMPLE: dict[str, Series] = {
    **{name: metric for metric in METRICS for name in metric.sample_names},
    **{series.name: series for series in FOREIGN},
    **{series.name: series for series in RECORDED},
}


@dataclass(frozen=True, slots=True)
class Selector:
    """A part of an expression that reads series.

    Attributes:
        name: under which its samples are stored.
        matchers: label, operator and value of each.
        range_seconds: how far back it reads; 0 for the newest sample.
    """

    name: str
    series: Series
    matchers: tuple[tuple[str, str, str], ...]
    range_seconds: float


def selectors(expression: str) -> Iterator[Selector]:
    """The selectors of series that the catalogue knows, in their order."""
    for found in _SELECTOR.finditer(expression):
        series = _BY_SAMPLE.get(found[1])
        if series is not None:
            matchers = tuple((m[1], m[2], m[3]) for m in _MATCHER.finditer(found[2] or ""))
            seconds = parse_duration(found[3]) if found[3] else 0.0
            yield Selector(found[1], series, matchers, seconds)
