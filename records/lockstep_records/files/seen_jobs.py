"""Jobs without pages that an agent sees, in one file under the root of jobs, for its commands."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep_records.file_access.own_files import replace_own_file
from lockstep_records.files.jobs import JOB_ID
from lockstep_records.files.rank_files import read_object

_PATH = Path("seen") / "jobs.json"
_MAX_BYTES, _MAX_JOBS, _MAX_WORDS = 1 << 20, 1024, 2000
_STALE_SECONDS = 300.0
"""After which an agent that wrote nothing new is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenJob:
    """A job of this node, what shows it, since when, and a sentence on whether it moves."""

    job_id: str
    seen_by: str
    ranks: int
    world_size: int | None
    start_seconds: float
    finding: str


def write_seen(root: Path, jobs: Sequence[SeenJob]) -> None:
    """Replaces the list, readable for root and the group of the folder; or OSError."""
    path = root / _PATH
    path.parent.mkdir(mode=0o755, exist_ok=True)
    document = {"seconds": time.time(), "jobs": [asdict(job) for job in jobs[:_MAX_JOBS]]}
    replace_own_file(path, json.dumps(document))


def read_seen(root: Path) -> list[SeenJob]:
    """The jobs of an agent that runs; empty where there is none, or it may not be read."""
    document = read_object(root / _PATH, _MAX_BYTES) or {}
    seconds, jobs = document.get("seconds"), document.get("jobs")
    is_fresh = isinstance(seconds, int | float) and time.time() - seconds < _STALE_SECONDS
    found = map(_job, jobs if is_fresh and isinstance(jobs, list) else ())
    return [job for job in found if job is not None][:_MAX_JOBS]


def _job(fields: Any) -> SeenJob | None:
    try:
        world_size = fields["world_size"]
        job = SeenJob(
            job_id=str(fields["job_id"]),
            seen_by=str(fields["seen_by"])[:_MAX_WORDS],
            ranks=int(fields["ranks"]),
            world_size=None if world_size is None else int(world_size),
            start_seconds=float(fields["start_seconds"]),
            finding=str(fields["finding"])[:_MAX_WORDS],
        )
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
    return job if JOB_ID.fullmatch(job.job_id) else None
