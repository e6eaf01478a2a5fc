"""A node's measured figures against those of its fleet."""

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MOST_BYTES = 256 << 20
_MOST_LINE = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One measured figure; more is faster.

    Attributes:
        device: product name, the same on every node of a kind.
        index: which device of the node; None for all together.
    """

    probe: str
    device: str
    index: int | None
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure beside the fleet's median of the same probe and device; None where there is none."""

    figure: Figure
    median: float | None
    too_slow: bool


def figures_of(told: Any) -> list[Figure]:
    """The figures that ``python -m lockstep.preflight`` prints, or the doctor around them.

    Raises:
        ValueError: it holds none.
    """
    if isinstance(told, dict) and isinstance(told.get("preflight"), dict):
        told = told["preflight"]
    try:
        return [_figure(one) for one in told["figures"]]
    except (KeyError, TypeError) as error:
        raise ValueError("it holds no figures of a preflight") from error


def _figure(told: Any) -> Figure:
    figure = Figure(
        probe=told["probe"],
        device=told["device"],
        index=told["index"],
        value=told["value"],
        unit=told["unit"],
    )
    value = figure.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"value {value!r} of probe {figure.probe!r} is no number")
    if not all(isinstance(text, str) for text in (figure.probe, figure.device, figure.unit)):
        raise ValueError(f"probe {figure.probe!r} has a name that is no text")
    return figure


def read_fleet(path: Path) -> list[Figure]:
    """The figures of a fleet: one JSON object a line, as ``--preflight --json`` prints.

    Raises:
        ValueError: one sentence on what is wrong with the file.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} is longer than {_MOST_BYTES} bytes")
    figures: list[Figure] = []
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_MOST_LINE), b""), 1):
            if not line.strip():
                continue
            try:
                figures += figures_of(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number}: {_why(error)}") from error
    if not figures:
        raise ValueError(f"{path} is empty; give what --preflight --json printed on other nodes")
    return figures


def _why(error: Exception) -> str:
    return "no JSON" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)


def compare(
    own: Iterable[Figure], fleet: Sequence[Figure], slower_than_ratio: float
) -> Iterator[Compared]:
    """Each figure of this node beside the median of its kind in the fleet."""
    for figure in own:
        kind = (figure.probe, figure.device, figure.unit)
        values = [one.value for one in fleet if (one.probe, one.device, one.unit) == kind]
        median = statistics.median(values) if values else None
        too_slow = median is not None and figure.value < slower_than_ratio * median
        yield Compared(figure, median, too_slow)
