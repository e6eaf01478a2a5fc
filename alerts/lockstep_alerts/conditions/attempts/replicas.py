"""Data-parallel replicas differ in their parameters or gradients: silent corruption."""

from dataclasses import dataclass

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.joins import JOB_LABELS
from lockstep_alerts.conditions.synthetic import JOB, Samples, Timing, sample_node
from lockstep_catalogue import training
from lockstep_catalogue.labels import NODE
from lockstep_catalogue.promql import by, names, select
from lockstep_catalogue.windows import ScrapeWindows

_PART = (*JOB_LABELS, training.PART_OF_MODEL)


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
        odd = sample_node(training.ODD_REPLICAS, timing.steps_up(), job_id="j1")

        def nodes(fingerprints: tuple[int, int], steps: tuple[int, int]) -> list[Samples]:
            """Two nodes with a fingerprint each, from the onset on."""
            return [
                sample_node(metric, timing.appears(figure), node, job_id="j1", part_of_model="all")
                for node, value, step in zip(("n1", "n2"), fingerprints, steps, strict=True)
                for metric, figure in (
                    (training.FINGERPRINT, value),
                    (training.FINGERPRINT_STEP, step),
                )
            ]

        return [
            Case("two nodes differ", nodes((7, 9), (200, 200)), JOB),
            Case("ranks of a node differ", [odd], JOB),
            Case("two nodes agree", nodes((7, 7), (200, 200))),
            Case("one node is a fingerprint behind", nodes((7, 9), (200, 100))),
        ]
