"""Situations on a real Slurm: all that share a lab and some others; all by ``rehearse.py``."""

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from .every import EVERY_SITUATION
from .rehearse import rehearse

PROGRAMS = ("slurmctld", "slurmdbd", "mariadbd", "munged")
# Seven minutes and a half with the lab's start and end.
_SECONDS = 400.0
# Of those that have the lab to themselves: one of each daemon, and of what must show.
_ALONE = (
    "slurmdbd restarts",
    "a failed node, not requeued",
    "a job that waits for GPUs",
    "the feed is away for days",
    "the hour that is twice",
    "pages in /run/lockstep",
)


def _missing() -> str:
    lacking = [
        name
        for name in PROGRAMS
        if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None
    ]
    if lacking:
        return f"a Slurm cannot be started: {', '.join(lacking)} are not installed"
    return "" if os.geteuid() == 0 else "a Slurm cannot be started: that needs root"


@pytest.mark.cluster
@pytest.mark.server
@pytest.mark.timeout(520)
@pytest.mark.skipif(bool(_missing()), reason=_missing() or "everything is there")
def test_situations_of_ordinary_weeks_are_told_as_slurm_tells_them() -> None:
    begin = time.monotonic()
    chosen = [
        each
        for each in EVERY_SITUATION
        if not (each.conf or each.cgroup) and (not each.exclusive or each.name in _ALONE)
    ]
    with tempfile.TemporaryDirectory(
        prefix="lockstep-slurm-", dir="/var/tmp", ignore_cleanup_errors=True
    ) as folder:
        Path(folder).chmod(0o755)
        results = rehearse(Path(folder), chosen, _SECONDS)
    assert {name: found for name, found in results.items() if found} == {}
    assert len(results) == len(chosen) >= 70, f"in {time.monotonic() - begin:.0f} s"
