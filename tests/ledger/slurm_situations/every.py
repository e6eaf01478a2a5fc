"""All situations, in the order of their files."""

from . import (
    arrays,
    bad_input,
    endings,
    feed_outages,
    history,
    ids,
    limits,
    node_failures,
    nodes,
    polls,
    preemptions,
    queues,
    requeues,
    sacct_texts,
    zones,
)

MODULES = (
    arrays,
    bad_input,
    endings,
    feed_outages,
    history,
    ids,
    limits,
    node_failures,
    nodes,
    polls,
    preemptions,
    queues,
    requeues,
    sacct_texts,
    zones,
)
EVERY_SITUATION = tuple(situation for module in MODULES for situation in module.SITUATIONS)
