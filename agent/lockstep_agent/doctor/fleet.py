"""A node's measured figures against those of its fleet."""

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lockstep_records.files.node_figure import Figure

_MAX_FILE_BYTES = 256 << 20
_MAX_LINE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure and the fleet's median of the same probe and device; None where there is none."""

    figure: Figure
    median: float | None
    too_slow: bool


def parse_figures(preflight: Any) -> list[Figure]:
    """The figures that ``python -m lockstep.preflight`` prints, or the doctor around them.

    Raises:
        ValueError: it holds none.
    """
    # the output of `lockstep doctor --preflight --json` holds that of the probe
    if isinstance(preflight, dict) and isinstance(preflight.get("preflight"), dict):
        preflight = preflight["preflight"]
    try:
        return [_figure(row) for row in preflight["figures"]]
    except (KeyError, TypeError) as error:
        raise ValueError("it holds no figures of a preflight") from error


def _figure(row: Any) -> Figure:
    figure = Figure(**{each.name: row[each.name] for each in fields(Figure)})
    value = figure.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"value {value!r} of probe {figure.probe!r} is not a number")
    if not all(isinstance(text, str) for text in (figure.probe, figure.device, figure.unit)):
        raise ValueError(f"probe {figure.probe!r} has a name that is not text")
    return figure


def read_fleet(path: Path) -> list[Figure]:
    """The figures of a fleet: one JSON object a line, as ``--preflight --json`` prints.

    Raises:
        ValueError: one sentence on what is wrong with the file.
    """
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError(f"{path} is longer than {_MAX_FILE_BYTES} bytes")
    figures: list[Figure] = []
    with path.open("rb") as file:
        for line_number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), 1):
            if not line.strip():
                continue
            try:
                figures += parse_figures(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {line_number}: {_reason(error)}") from error
    if not figures:
        raise ValueError(f"{path} is empty; give what --preflight --json printed on other nodes")
    return figures


def _reason(error: Exception) -> str:
    return "no JSON" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)


def compare(
    own: Iterable[Figure], fleet: Sequence[Figure], slower_than_ratio: float
) -> Iterator[Comparison]:
    """Each figure of this node with the median of its kind in the fleet."""
    for figure in own:
        # A fleet may have several products; only figures of the same one are comparable.
        kind = (figure.probe, figure.device, figure.unit)
        values = [other.value for other in fleet if (other.probe, other.device, other.unit) == kind]
        median = statistics.median(values) if values else None
        too_slow = median is not None and figure.value < slower_than_ratio * median
        yield Comparison(figure, median, too_slow)
