"""Slurm's word on how a job of this cluster ended, where its programs are installed."""

import os
import re
import shutil
import subprocess

from lockstep_records.outcomes.slurm import ENDED_STATES, state_of

_ID = re.compile(r"[0-9]{1,12}(?:_[0-9]{1,9}|\+[0-9]{1,3})?")
_TIMEOUT_SECONDS = 5.0
_SLACK_SECONDS = 10.0
_FIELDS = 3


def ask_slurm(job_id: str, last_sign_seconds: float) -> str:
    """State of the run in which a job gave its last sign; empty where Slurm does not say.

    Args:
        job_id: as Slurm writes it; another id is none of its jobs.
        last_sign_seconds: wall clock.
    """
    if not _ID.fullmatch(job_id) or shutil.which("sacct") is None:
        return ""
    command = ["sacct", "--noheader", "--allusers", "--duplicates", "--allocations", "--parsable2"]
    try:
        printed = subprocess.run(
            [*command, "--format", "Start,End,State", "--jobs", job_id],
            env={**os.environ, "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"},
            capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    for line in reversed(printed.stdout.splitlines()):
        start, end, state = [*line.split("|"), "", ""][:_FIELDS]
        if not (start.isdecimal() and end.isdecimal()):
            continue
        begin, over = int(start) - _SLACK_SECONDS, int(end) + _SLACK_SECONDS
        if begin <= last_sign_seconds <= over:
            word = state_of(state)[0]
            return word if word in ENDED_STATES else ""
    return ""
