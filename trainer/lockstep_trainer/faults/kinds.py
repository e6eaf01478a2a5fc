"""All kinds of faults by name: one line here for each file."""

from lockstep_trainer.faults import (
    checkpoint,
    disk,
    imbalance,
    killed,
    memory,
    network,
    numbers,
    preempted,
    slow,
    stopped,
    wrong_world,
)

_ALL = (
    *slow.KINDS,
    *preempted.KINDS,
    *numbers.KINDS,
    *checkpoint.KINDS,
    *imbalance.KINDS,
    *wrong_world.KINDS,
    stopped.KIND,
    killed.KIND,
    memory.KIND,
    disk.KIND,
    network.KIND,
)
KINDS = {kind.name: kind for kind in _ALL}
