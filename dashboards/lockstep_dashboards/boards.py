"""The boards of Lockstep, by the file that each is generated into."""

from lockstep_dashboards.layouts.executive import EXECUTIVE
from lockstep_dashboards.layouts.fabric import FABRIC
from lockstep_dashboards.layouts.job import JOB
from lockstep_dashboards.layouts.node import NODE
from lockstep_dashboards.layouts.on_call import ON_CALL

BOARDS = {
    "executive.json": EXECUTIVE,
    "on-call.json": ON_CALL,
    "job.json": JOB,
    "node.json": NODE,
    "fabric.json": FABRIC,
}
