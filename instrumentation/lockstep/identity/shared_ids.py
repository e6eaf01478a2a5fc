"""A job id between launches: what rank 0 says of it, and why no page can be created under it."""

import os
import sys
from pathlib import Path

from lockstep_records.files.roots import harm_of
from lockstep_records.page.liveness import find_process
from lockstep_records.page.reader import PageError, read_page
from lockstep_records.page.writer import NoPageError, RankIdentity


def check_page_is_free(path: Path, identity: RankIdentity) -> None:
    """Does nothing where the page of a rank can be created.

    Raises:
        NoPageError: there is one; the message says whose.
    """
    if not path.exists():
        return
    try:
        page = read_page(path)
    except PageError:
        return  # the writer refuses the file itself
    rank, job_id, pid = identity.rank, identity.job_id, page.identity["pid"]
    if pid == os.getpid():
        raise NoPageError(
            f"this process has attached before, as rank {rank} of job {job_id!r}; "
            "one training a process has a page"
        )
    if find_process(page) is None:
        raise NoPageError(
            f"rank {rank} of job {job_id!r} was process {pid} of the same launch, which has ended; "
            "give the second program another LOCKSTEP_JOB_ID"
        )
    if page.identity["launch_key"] == identity.launch_key and identity.launch_key:
        raise NoPageError(
            f"processes {pid} and {os.getpid()} of job {job_id!r} both say that they are rank"
            f" {rank}; attach after init_process_group, or have the launcher set RANK"
        )
    raise NoPageError(
        f"job id {job_id!r} is in use: its rank {rank}, process {pid}, still runs; "
        "wait for its end or set LOCKSTEP_JOB_ID to another id"
    )


def announce_job(job: Path, identity: RankIdentity, *, is_default_root: bool) -> None:
    """Says on rank 0 what ``lockstep run`` would have said: the job's id, and how to read it."""
    if identity.rank == 0:
        name = identity.job_id if is_default_root else job
        sys.stderr.write(f"lockstep: job {identity.job_id}; its report: lockstep report {name}\n")
        if harm := harm_of(job.parents[1]):
            sys.stderr.write(f"lockstep: {harm}\n")
