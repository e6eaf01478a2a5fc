"""All kinds of faults by name: one line here for each file."""

from lockstep_trainer.faults import network, process, resources
from lockstep_trainer.faults.in_steps import IMBALANCES, NUMBERS, SLOW

_ALL = (
    *SLOW,
    *process.SIGNAL_KINDS,
    *process.END_KINDS,
    *NUMBERS,
    *resources.DAMAGE_KINDS,
    *IMBALANCES,
    *process.WORLD_KINDS,
    resources.MEMORY_KIND,
    resources.DISK_KIND,
    network.KIND,
)
KINDS = {kind.name: kind for kind in _ALL}
