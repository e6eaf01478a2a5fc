"""The boards of Lockstep, by the file that each is generated into."""

from lockstep_dashboards.job import JOB

BOARDS = {"job.json": JOB}
