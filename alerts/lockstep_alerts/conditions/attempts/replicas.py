"""Data-parallel replicas differ in their parameters or gradients: silent corruption."""

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.joins import JOB_LABELS
from lockstep_catalogue import training
from lockstep_catalogue.labels import NODE
from lockstep_catalogue.promql import by, names, select
from lockstep_catalogue.windows import ScrapeWindows

_PART = (*JOB_LABELS, training.MODEL_PART)


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
