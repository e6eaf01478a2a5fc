"""What most causes share: the newest samples are enough, and the labels say all."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from lockstep_alerts.conditions.condition import Case, Timing
from lockstep_alerts.entry import Entry
from lockstep_alerts.synthetic import Course, Samples, Stretch, growing, samples
from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE
from lockstep_catalogue.metric import Label, Series
from lockstep_catalogue.windows import ScrapeWindows

_SERIES_LABEL = re.compile(r"\$series\.Labels\.([a-z_]+)")


@dataclass(frozen=True, slots=True)
class Outline:
    """A case by what it feeds in.

    Attributes:
        name: what happens, in a few words.
        series: input of promtool, from time 0.
        fires: labels of the alert that fires, beyond name and severity; None for silence.
        at_seconds: when the alert is evaluated; None for the moment by which it has to fire.
    """

    name: str
    series: list[Samples]
    fires: Mapping[str, str] | None = None
    at_seconds: int | None = None


class Immediate:
    """A condition without limits that the newest samples decide; others override what differs."""

    __slots__ = ()
    FIELDS: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def read(cls, entry: Entry) -> Self:
        """The condition; an entry gives it nothing."""
        del entry
        return cls()

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """None: the first sample is enough."""
        del windows
        return 0

    def evidence(self) -> str:
        """Nothing: the labels say it."""
        return ""

    def outlines(self, timing: Timing) -> list[Outline]:
        """What the cases feed in, firing ones first."""
        raise NotImplementedError

    def cases(self, timing: Timing) -> list[Case]:
        """The outlines, each at the moment by which the alert has to fire."""
        return [
            Case(
                name=outline.name,
                series=outline.series,
                at_seconds=(
                    timing.fires_by_seconds if outline.at_seconds is None else outline.at_seconds
                ),
                fires=outline.fires,
            )
            for outline in self.outlines(timing)
        ]


def steps_up(timing: Timing, to: float = 1, start: float = 0) -> Course:
    """A value that leaves its start at the onset, within a second, and stays."""
    rise = Stretch(1, to - start)
    return growing(
        Stretch(timing.onset_seconds, 0), rise, Stretch(timing.fires_within_seconds, 0), start=start
    )


def of_node(series: Series, course: Course, node: str = "n1", **labels: str) -> Samples:
    """A series of the agent of a node."""
    return samples(series, course, instance=f"{node}:9400", cluster="c1", node=node, **labels)


def listing(query: str, item: str, *labels: Label) -> str:
    """A Prometheus template: the series of a query, one phrase each; nothing where there are none.

    Args:
        query: PromQL with ``%[1]s`` and so on for the values of the labels.
        item: the phrase, a template over ``$series``, which begins with one of its labels: the
            series come in the order of that label.
        labels: of the alert, in the order of the query's numbers.
    """
    order = _SERIES_LABEL.search(item)
    assert order is not None, f"{item} names no label"
    values = " ".join(f"$labels.{label.name}" for label in labels)
    return (
        f'{{{{ with query (printf `topk(8, {query})` {values}) | sortByLabel "{order[1]}" }}}}'
        f"{{{{ range $i, $series := . }}}}{{{{ if $i }}}}, {{{{ end }}}}{item}{{{{ end }}}}."
        "{{ end }}"
    )


ON_MACHINE = f"on ({CLUSTER.name}, {NODE.name})"
OF_JOB_NODE = (CLUSTER, JOB_ID, NODE)
