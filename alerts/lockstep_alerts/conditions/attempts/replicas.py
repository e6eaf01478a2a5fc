"""Data-parallel replicas differ in their parameters or gradients: silent corruption."""

from dataclasses import dataclass

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.joins import JOB_LABELS
from lockstep_alerts.conditions.synthetic import JOB, Samples, Stretch, Timing, growing, samples
from lockstep_catalogue import training
from lockstep_catalogue.labels import NODE
from lockstep_catalogue.promql import by, names, select
from lockstep_catalogue.windows import ScrapeWindows

_PART = (*JOB_LABELS, training.PART_OF_MODEL)
_ALL = {"part_of_model": "all"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicasDiffer(Condition):
    """Data-parallel replicas whose fingerprints differ; they have to be equal to the bit."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Jobs with ranks that differ on one node, or with nodes that differ at one step."""
        step = select(training.FINGERPRINT_STEP)
        # Nodes are scraped at different moments: only those at the newest step are compared.
        newest = f"{step} == on ({names(*_PART)}) group_left () {by('max', step, *_PART)}"
        same_step = f"({select(training.FINGERPRINT)} and on ({names(*_PART, NODE)}) ({newest}))"
        differ = f"{by('max', same_step, *_PART)} > {by('min', same_step, *_PART)}"
        odd = f"{by('max', select(training.ODD_REPLICAS), *JOB_LABELS)} > 0"
        return f"{by('group', differ, *JOB_LABELS)}\nor\n{by('group', odd, *JOB_LABELS)}"

    def cases(self, timing: Timing) -> list[Case]:
        odd = samples(
            training.ODD_REPLICAS,
            growing(Stretch(timing.onset_seconds, 0), Stretch(1, 1), Stretch(10**4, 0)),
            instance="n1:9400",
            node="n1",
            **JOB,
        )
        outlines: list[tuple[str, list[Samples], bool]] = [
            ("two nodes differ", _two_nodes(timing, (7, 9), (200, 200)), True),
            ("ranks of a node differ", [odd], True),
            ("two nodes agree", _two_nodes(timing, (7, 7), (200, 200)), False),
            ("one node is a fingerprint behind", _two_nodes(timing, (7, 9), (200, 100)), False),
        ]
        return [Case(name, series, JOB if fires else None) for name, series, fires in outlines]


def _two_nodes(
    timing: Timing, fingerprints: tuple[int, int], steps: tuple[int, int]
) -> list[Samples]:
    """Two nodes with a fingerprint each, from the onset on."""
    series = []
    for number, (value, step) in enumerate(zip(fingerprints, steps, strict=True), 1):
        labels = {"instance": f"n{number}:9400", **JOB, "node": f"n{number}", **_ALL}
        for metric, figure in ((training.FINGERPRINT, value), (training.FINGERPRINT_STEP, step)):
            course = timing.appears(figure)
            series.append(samples(metric, course, **labels))
    return series
