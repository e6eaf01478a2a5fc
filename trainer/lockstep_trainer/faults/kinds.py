"""All kinds of faults by name: one line here for each file."""

from lockstep_trainer.faults import imbalance, network, numbers, process, resources, slow

_ALL = (
    *slow.KINDS,
    *process.SIGNAL_KINDS,
    *process.END_KINDS,
    *numbers.KINDS,
    *resources.DAMAGE_KINDS,
    *imbalance.KINDS,
    *process.WORLD_KINDS,
    resources.MEMORY_KIND,
    resources.DISK_KIND,
    network.KIND,
)
KINDS = {kind.name: kind for kind in _ALL}
