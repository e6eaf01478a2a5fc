"""The boards of Lockstep, by the file that each is generated into."""

from lockstep_dashboards.layouts.fabric import FABRIC
from lockstep_dashboards.layouts.job import JOB
from lockstep_dashboards.layouts.node import NODE

BOARDS = {"job.json": JOB, "node.json": NODE, "fabric.json": FABRIC}
