"""The board of one node and its GPUs: use, saturation and errors, after Brendan Gregg's method.

Source of the method: https://www.brendangregg.com/usemethod.html.
"""

from lockstep_catalogue import health
from lockstep_dashboards.annotations import annotations
from lockstep_dashboards.layouts.node_detail import MEMORY, POWER
from lockstep_dashboards.layouts.node_errors import ERRORS, MEMORY_FAULTS
from lockstep_dashboards.layouts.node_host import AGENT, HOST, JOBS_ON_HOST
from lockstep_dashboards.layouts.node_links import LINKS
from lockstep_dashboards.layouts.node_state import SATURATION, STATUS, UTILISATION
from lockstep_dashboards.links import NODE_BOARD
from lockstep_dashboards.panel import Board
from lockstep_dashboards.selection import Selection
from lockstep_dashboards.variables import (
    GPUS_OF_NODE,
    NODE_OF_AGENT,
    THIS_CLUSTER,
    THIS_NODE,
    cluster_variable,
)

NODE = Board(
    uid=NODE_BOARD,
    title="Lockstep: node and GPU",
    description="One node: what its GPUs do, what holds them back, and what fails.",
    variables=(cluster_variable(health.AGENT_INFO), NODE_OF_AGENT, GPUS_OF_NODE),
    rows=(
        STATUS,
        UTILISATION,
        SATURATION,
        ERRORS,
        HOST,
        JOBS_ON_HOST,
        LINKS,
        MEMORY_FAULTS,
        POWER,
        MEMORY,
        AGENT,
    ),
    annotations=annotations(Selection((THIS_CLUSTER, THIS_NODE), ())),
)
