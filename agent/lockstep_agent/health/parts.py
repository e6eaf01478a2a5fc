"""Verdicts in a scrape: every reading that has the label ``verdict``."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lockstep_agent.collector import AnyReading, Reading
from lockstep_catalogue import METRICS, Metric, labels

VERDICT_NAMES = frozenset(metric.name for metric in METRICS if labels.VERDICT in metric.labels)
"""Names of the metrics that are verdicts."""


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
