"""The capacity of one Prometheus: lines through what was measured on clusters of several sizes."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from lockstep_alerts.shipped import measured_path

MAX_SHARE = 0.5
"""Of its interval, beyond which a rule group is refused: a restart takes as long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A quantity by the number of nodes.

    Attributes:
        exponent: of the growth between the largest three sizes; 1 is linear.
        error_ratio: by how much the line through all other sizes misses the largest, of the less of
            the two: a line that says a third is as wrong as one that says thrice as much.
        measured_nodes: the largest size.
    """

    fixed: float
    per_node: float
    exponent: float
    error_ratio: float
    measured_nodes: float

    def at(self, nodes: float) -> float:
        """The estimate."""
        return self.fixed + self.per_node * nodes

    def error_at(self, nodes: float) -> float:
        """The error as a ratio: that of the last doubling, for each doubling beyond it."""
        doublings = max(1.0, math.log2(nodes / self.measured_nodes))
        return math.pow(1.0 + self.error_ratio, doublings) - 1.0

    def highest(self, nodes: float) -> float:
        """The estimate with its error."""
        return self.at(nodes) * (1.0 + self.error_at(nodes))


def fit(points: Sequence[tuple[float, float]]) -> Fit:
    """The line with the least relative errors through at least three sizes, rising.

    Args:
        points: nodes and quantity of each size, from the smallest on.
    """
    *others, (most, value) = points
    fixed, per_node = _line(points)
    fixed_before, per_node_before = _line(others)
    before = fixed_before + per_node_before * most
    (low, low_value), _, (high, high_value) = points[-3:]
    exponent = math.log(high_value / low_value) / math.log(high / low)
    return Fit(
        fixed=fixed,
        per_node=per_node,
        exponent=exponent,
        error_ratio=max(before / value, value / before) - 1,
        measured_nodes=most,
    )


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Constant and slope, neither below 0."""
    weights = [1 / max(y, 1e-12) ** 2 for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    covariance = sum(
        w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)
    )
    variance = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = max(covariance / variance, 0.0)
    constant = mean_y - slope * mean_x
    return (constant, slope) if constant >= 0 else (0.0, mean_y / mean_x)


@cache
def measured() -> dict[str, Any]:
    """What ``make bench-scale`` measured; the shape is that of bench/simulated_cluster/scale.py."""
    document: dict[str, Any] = json.loads(measured_path().read_text(encoding="utf-8"))
    return document


def fit_of(*keys: str) -> Fit:
    """The line of a figure of each size, such as ``resident_bytes`` or a group's ``mean``."""
    points = []
    for size in measured()["sizes"]:
        value = size
        for key in keys:
            value = value[key]
        points.append((float(size["nodes"]), float(value)))
    return fit(points)


def group_fits() -> Iterator[tuple[str, float, Fit]]:
    """Each rule group, its interval in seconds, and the seconds of an evaluation."""
    for name, group in measured()["sizes"][-1]["groups"].items():
        yield name, float(group["interval"]), fit_of("groups", name, "mean")


def most_nodes() -> int:
    """How many nodes of 8 GPUs one Prometheus evaluates in time, with the error of the estimate."""
    low, high = 0, 1 << 20
    while high - low > 1:
        nodes = (low + high) // 2
        holds = all(x.highest(nodes) <= MAX_SHARE * interval for _, interval, x in group_fits())
        low, high = (nodes, high) if holds else (low, nodes)
    return low


def refusal(nodes: int) -> str:
    """Why one Prometheus does not hold so many nodes, and how many it holds; empty if it does."""
    most = most_nodes()
    if nodes <= most:
        return ""
    name, interval, slowest = max(group_fits(), key=lambda x: x[2].highest(nodes) / x[1])
    return (
        f"--nodes {nodes}: rule group {name} would take {slowest.at(nodes):.1f}s, and"
        f" {slowest.highest(nodes):.1f}s with the error of the estimate, of its {interval:g}s, of"
        f" which it may take {MAX_SHARE:.0%}; one Prometheus holds {most:,} nodes: divide the"
        " clusters among several (docs/capacity.md)"
    )
