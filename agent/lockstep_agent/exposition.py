"""From readings to the bytes of a scrape, byte for byte what prometheus_client would write.

Written out here because the library takes 5 us a series and format, which alone would be more
than one percent of a core; the tests hold both against each other.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from lockstep_agent.collector import AnyReading, Exemplar, HistogramReading, Reading
from lockstep_catalogue import METRICS, Kind, Metric, health

_OPENMETRICS = "application/openmetrics-text"
_TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS_TYPE = f"{_OPENMETRICS}; version=1.0.0; charset=utf-8; escaping=underscores"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposition:
    """One rendered scrape in both formats.

    Attributes:
        readings: what it was rendered from.
        rendered_seconds: wall clock of the rendering.
    """

    text: bytes
    openmetrics: bytes
    readings: tuple[AnyReading, ...]
    rendered_seconds: float

    def choose(self, accept: str) -> tuple[bytes, str]:
        """Body and content type for an Accept header."""
        if _OPENMETRICS in accept:
            return self.openmetrics, _OPENMETRICS_TYPE
        return self.text, _TEXT_TYPE


def render(readings: Iterable[AnyReading], now_seconds: float) -> Exposition:
    """The exposition of these readings, in the order of the catalogue.

    Args:
        readings: of all collectors; of a series told twice the first stays.
        now_seconds: wall clock, served as the time of this tick.
    """
    kept = tuple(readings)
    told: dict[str, dict[tuple[str, ...], AnyReading]] = {metric.name: {} for metric in METRICS}
    for reading in kept:
        told[reading.metric.name].setdefault(reading.labels, reading)
    told[health.AGENT_TICK.name][()] = Reading(health.AGENT_TICK, (), now_seconds)
    series = 1 + sum(_series(reading) for group in told.values() for reading in group.values())
    told[health.AGENT_SERIES.name][()] = Reading(health.AGENT_SERIES, (), series)
    text: list[str] = []
    openmetrics: list[str] = []
    for metric in METRICS:
        if group := told[metric.name]:
            lines = "".join(line for reading in group.values() for line in _lines(reading))
            text_head, openmetrics_head = _HEADS[metric.name]
            text += (text_head, lines)
            openmetrics += (openmetrics_head, _with_exemplars(group.values()) or lines)
    return Exposition(
        text="".join(text).encode(),
        openmetrics="".join((*openmetrics, "# EOF\n")).encode(),
        readings=kept,
        rendered_seconds=now_seconds,
    )


def _series(reading: AnyReading) -> int:
    return len(reading.counts) + 2 if isinstance(reading, HistogramReading) else 1


def _with_exemplars(readings: Iterable[AnyReading]) -> str:
    """The lines of a family in which a bucket has an exemplar; empty where none has."""
    told = [one for one in readings if isinstance(one, HistogramReading) and one.exemplars]
    if not told:
        return ""
    return "".join(line for one in readings for line in _lines(one, exemplars=True))


def _lines(reading: AnyReading, *, exemplars: bool = False) -> Iterator[str]:
    if isinstance(reading, Reading):
        stem = _stem(reading.metric.name, reading.metric, reading.labels)
        value = reading.value
        yield f"{stem} {_number(value) if value else number(value)}\n"  # -0.0 equals 0.0
        return
    metric, labels = reading.metric, reading.labels
    bucket, total, count = metric.sample_names
    bounds = (*(number(bound) for bound in metric.buckets), "+Inf")
    told = (exemplars and reading.exemplars) or [None] * len(bounds)
    seen = 0
    for bound, seen, one in zip(bounds, accumulate(reading.counts), told, strict=True):
        yield f"{_stem(bucket, metric, labels, bound)} {number(seen)}{_exemplar(one)}\n"
    yield f"{_stem(count, metric, labels)} {number(seen)}\n"
    yield f"{_stem(total, metric, labels)} {number(reading.sum)}\n"


def _exemplar(one: Exemplar | None) -> str:
    if one is None:
        return ""
    inside = ",".join(f'{key}="{escaped(value)}"' for key, value in sorted(one.labels.items()))
    return f" # {{{inside}}} {number(one.value)} {one.wall_seconds}"


def _memory_of_series(
    make: Callable[[str, Metric, tuple[str, ...], str], str],
) -> Callable[..., str]:
    """Remembers what was made for a sample name and its label values."""
    made: dict[tuple[str, tuple[str, ...], str], str] = {}

    def remembered(name: str, metric: Metric, labels: tuple[str, ...], bound: str = "") -> str:
        key = (name, labels, bound)
        stem = made.get(key)
        if stem is None:
            if len(made) > 20_000:  # noqa: PLR2004  # gone jobs leave their series here
                made.clear()
            stem = made[key] = make(name, metric, labels, bound)
        return stem

    return remembered


@_memory_of_series
def _stem(name: str, metric: Metric, labels: tuple[str, ...], bound: str) -> str:
    """Name and labels of a sample, as they stand before its value."""
    pairs = list(zip(metric.label_names, labels, strict=True))
    if bound:
        pairs.append(("le", bound))
    if not pairs:
        return name
    inside = ",".join(f'{key}="{escaped(value)}"' for key, value in sorted(pairs))
    return f"{name}{{{inside}}}"


def escaped(value: str) -> str:
    """A label value as it stands between quotation marks."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number(value: float) -> str:
    """A number as the Go programs write it, which the library does too."""
    real = float(value)
    if not math.isfinite(real):
        return "NaN" if math.isnan(real) else "+Inf" if real > 0 else "-Inf"
    text = repr(real)
    point = text.find(".")
    if real > 0 and point > 6:  # noqa: PLR2004  # seven digits and more before the point
        mantissa = f"{text[0]}.{text[1:point]}{text[point + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{point - 1:02d}"
    return text


# most values are what they were a tick ago, or what another series has
_number = lru_cache(maxsize=8192, typed=True)(number)


def _text_head(metric: Metric) -> str:
    told = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {metric.name} {told}\n# TYPE {metric.name} {metric.kind.value}\n"


def _openmetrics_head(metric: Metric) -> str:
    name = metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name
    unit = f"# UNIT {name} {metric.unit.value}\n" if metric.unit.value else ""
    return f"# HELP {name} {escaped(metric.help)}\n# TYPE {name} {metric.kind.value}\n{unit}"


_HEADS = {metric.name: (_text_head(metric), _openmetrics_head(metric)) for metric in METRICS}
