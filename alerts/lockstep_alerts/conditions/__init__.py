"""The kinds of conditions that an entry of slos.yaml can name: one file each, one line here."""

from collections.abc import Mapping

from lockstep_alerts.conditions.condition import ConditionKind
from lockstep_alerts.conditions.counted import CheckpointFailed, CheckpointInvalid, OutOfMemory
from lockstep_alerts.conditions.not_finite import NotFinite
from lockstep_alerts.conditions.replicas import ReplicasDiffer
from lockstep_alerts.conditions.skew import DataSkew
from lockstep_alerts.conditions.stages import StageSlowed, StageUneven
from lockstep_alerts.conditions.stalled import Stalled
from lockstep_alerts.conditions.straggler import Straggler, StragglerNode
from lockstep_alerts.conditions.unobserved import Unobserved

CONDITIONS: Mapping[str, type[ConditionKind]] = {
    "straggler": Straggler,
    "straggler_node": StragglerNode,
    "stage_slowed": StageSlowed,
    "stage_uneven": StageUneven,
    "stalled": Stalled,
    "not_finite": NotFinite,
    "checkpoint_invalid": CheckpointInvalid,
    "checkpoint_failed": CheckpointFailed,
    "out_of_memory": OutOfMemory,
    "replicas_differ": ReplicasDiffer,
    "data_skew": DataSkew,
    "unobserved": Unobserved,
}
