"""Verdicts in a scrape, and as the JSON that ``/health`` serves and ``lockstep doctor`` prints."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lockstep_agent.collector import AnyReading, Reading
from lockstep_agent.exposition.text import Exposition
from lockstep_catalogue import METRICS, Metric, labels
from lockstep_catalogue.incidents import NO_REASON, OK
from lockstep_catalogue.labels import VERDICT

VERDICT_NAMES = frozenset(metric.name for metric in METRICS if labels.VERDICT in metric.labels)
"""Names of the metrics that are verdicts."""
_SEVERITIES = VERDICT.values


@dataclass(frozen=True, slots=True)
class Verdict:
    """One verdict with one reason.

    Attributes:
        labels: name and value of each label that identifies the part.
        verdict: a value of the label ``verdict``.
        reason: ``none`` where the verdict is ok.
    """

    metric: Metric
    labels: tuple[tuple[str, str], ...]
    verdict: str
    reason: str

    @property
    def name(self) -> str:
        """Short name of the part: index of a GPU, device and port; empty for the node."""
        names = [value for name, value in self.labels if value and name != labels.UUID.name]
        return "/".join(names)


def verdicts_in(readings: Iterable[AnyReading]) -> Iterator[Verdict]:
    """Every verdict among readings; its reason is the label that comes last."""
    for reading in readings:
        if isinstance(reading, Reading) and reading.metric.name in VERDICT_NAMES:
            pairs = tuple(zip(reading.metric.label_names, reading.labels, strict=True))
            verdict = dict(pairs)[labels.VERDICT.name]
            part = tuple(pair for pair in pairs[:-1] if pair[0] != labels.VERDICT.name)
            yield Verdict(reading.metric, part, verdict, reading.labels[-1])


def kind_of(metric: Metric) -> str:
    """Whether a verdict is on a ``gpu``, a ``port`` or the ``node``."""
    if labels.GPU.name in metric.label_names:
        return "gpu"
    return "port" if labels.DEVICE.name in metric.label_names else "node"


def health_of(exposition: Exposition, node: str) -> dict[str, Any]:
    """The node's verdict, and each part with its verdict and reasons."""
    parts: dict[tuple[str, str], dict[str, Any]] = {}
    node_health: dict[str, Any] = {"verdict": OK, "reasons": []}
    for verdict in verdicts_in(exposition.readings):
        kind = kind_of(verdict.metric)
        new_part: dict[str, Any] = {"kind": kind, "name": verdict.name, **dict(verdict.labels)}
        new_part |= {"verdict": OK, "reasons": []}
        is_node = kind == "node"
        part = node_health if is_node else parts.setdefault((kind, verdict.name), new_part)
        part["verdict"] = max(part["verdict"], verdict.verdict, key=_SEVERITIES.index)
        if verdict.reason != NO_REASON:
            part["reasons"].append(verdict.reason)
    return {
        "node": node,
        **node_health,
        "at_seconds": exposition.rendered_seconds,
        "parts": list(parts.values()),
    }
