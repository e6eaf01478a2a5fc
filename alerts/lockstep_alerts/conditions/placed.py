"""PromQL: which jobs run on a node, or did a moment ago; faults are paged through them."""

from lockstep_catalogue import gpu_owner, training
from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE, STATE
from lockstep_catalogue.promql import Matcher, by, has, names, one_of, select
from lockstep_catalogue.windows import ScrapeWindows

RUNNING = ("init", "training", "checkpoint", "eval", "restore")
"""States of a rank whose process runs."""
_MOMENT_SECONDS = 120
_OF_JOB_NODE = (CLUSTER, JOB_ID, NODE)


def runs_on(*matchers: Matcher) -> str:
    """Jobs with a running rank on a node, one series each."""
    ranks = select(training.RANKS, one_of(STATE, *RUNNING), *matchers)
    return by("group", f"{ranks} > 0", *_OF_JOB_NODE)


def ran_on(windows: ScrapeWindows) -> str:
    """The same of the last two minutes, without jobs that ended well.

    A fault that ends its rank at once is seen after the rank.
    """
    moment = windows.at_least(_MOMENT_SECONDS)
    lately = f"max_over_time({select(training.RANKS, one_of(STATE, *RUNNING))}[{moment}])"
    done = f"on ({names(CLUSTER, JOB_ID)}) {select(training.RANKS, one_of(STATE, 'done'))} > 0"
    return f"({by('group', f'{lately} > 0', *_OF_JOB_NODE)} unless {done})"


def held_gpus(windows: ScrapeWindows, *matchers: Matcher) -> str:
    """Owners of GPUs of the last two minutes that are jobs, one series each."""
    moment = windows.at_least(_MOMENT_SECONDS)
    owner = select(gpu_owner.GPU_OWNER_INFO, has(JOB_ID), *matchers)
    return f"max_over_time({owner}[{moment}])"
