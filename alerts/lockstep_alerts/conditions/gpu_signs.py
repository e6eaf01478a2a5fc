"""PromQL: GPUs with a fault now, by the agent's verdict on them and by the kernel log."""

from lockstep_catalogue import incidents
from lockstep_catalogue.labels import CLUSTER, NODE, PCI_BUS_ID, UUID, VERDICT
from lockstep_catalogue.promql import Matcher, eq, names, select

JUDGED_EVERY_SECONDS = 10
"""Tier of the agent's collector of verdicts."""
HOLD_SECONDS = {"throttled": 60, "link_slow": 30}
"""How long the agent sees these signs before it calls them a verdict (``health/signs.py``)."""
GPU_JOIN = f"on ({names(CLUSTER, NODE, UUID)})"
BUS_JOIN = f"on ({names(CLUSTER, NODE, PCI_BUS_ID)})"
_XID_JOIN = f"on ({names(CLUSTER, NODE, incidents.XID)})"
WHOLE_NODE = ("gpu_count_short", "driver_hung")
"""Reasons of a failed node that name no GPU."""


def failed() -> str:
    """GPUs that failed: lost, silent, hung, out of spare rows."""
    return select(incidents.GPU_HEALTH, eq(VERDICT, "failed"))


def fatal_xids(window: str, *matchers: Matcher, has_remedy: bool = False) -> str:
    """Fatal Xids that were reported within the window, by address on the bus.

    Args:
        window: in seconds.
        matchers: of the series.
        has_remedy: whether they carry the vendor's remedy by the catalogue's table.
    """
    # The time and not the count: a counter kept over restarts is born with old incidents.
    lately = f"time() - {select(incidents.GPU_XID_LAST, *matchers)} < {window}"
    fatal = select(incidents.GPU_XID_INFO, eq(incidents.SEVERITY, "fatal"))
    if has_remedy:
        return f"({lately}) * {_XID_JOIN} group_left ({incidents.REMEDY.name}) {fatal}"
    return f"({lately}) and {_XID_JOIN} {fatal}"
