"""All kinds of faults by name: one line here for each file."""

from lockstep_trainer.faults import (
    checkpoint,
    disk,
    ending,
    imbalance,
    memory,
    network,
    numbers,
    signals,
    slow,
    wrong_world,
)

_ALL = (
    *slow.KINDS,
    *signals.KINDS,
    *ending.KINDS,
    *numbers.KINDS,
    *checkpoint.KINDS,
    *imbalance.KINDS,
    *wrong_world.KINDS,
    memory.KIND,
    disk.KIND,
    network.KIND,
)
KINDS = {kind.name: kind for kind in _ALL}
