from lockstep_alerts.conditions.attempts.replicas import ReplicasDiffer
from lockstep_catalogue import training

from ..case import Case, proves
from ..synthetic import JOB, Samples, Timing, sample_node


@proves(ReplicasDiffer)
def replicas_differ(condition: ReplicasDiffer, timing: Timing) -> list[Case]:
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
