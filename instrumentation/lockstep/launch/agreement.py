"""What the launchers of a job's nodes agree on by the rendezvous, before their workers start."""

import logging
from datetime import timedelta

from torch.distributed.elastic.agent.server.api import WorkerGroup

log = logging.getLogger("lockstep")
_WAIT = timedelta(seconds=30)


def agree_on_first_attempt(worker_group: WorkerGroup, own: int) -> int:
    """Highest number that a node of the job counts on with; a node may lack the earlier pages.

    Args:
        worker_group: after its rendezvous.
        own: number that this node counts on with.

    Returns:
        The same on all nodes; ``own`` where they do not answer in time.
    """
    store, num_nodes = worker_group.store, worker_group.group_world_size or 1
    if store is None or num_nodes == 1:
        return own
    keys = [f"lockstep/first_attempt/{node}" for node in range(num_nodes)]
    try:
        store.set(keys[worker_group.group_rank or 0], str(own))
        store.wait(keys, _WAIT)
        return max(int(store.get(key)) for key in keys)
    except (RuntimeError, ValueError) as error:  # of torch's stores
        log.warning("nodes may count attempts differently, as one did not answer: %s", error)
        return own
