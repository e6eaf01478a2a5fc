"""Where a job of this node stands: it runs, it has ended, or its processes are gone."""

import math
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_records.events.event import Event, finish_time, read_events
from lockstep_records.files.attempts import newest_pages
from lockstep_records.files.jobs import MAX_ENTRIES, list_attempts, list_jobs, start_seconds
from lockstep_records.page.liveness import find_process
from lockstep_records.page.reader import Page

JobState = Literal["starting", "running", "ended", "gone"]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """One job, as its folder on this node shows it; None where unknown.

    Attributes:
        folder: of the job; its name is the job id.
        state: ``ended`` by its launcher's word or because all of its pages say so; ``gone`` when
            no process of it lives and none of that is known.
        outcome: that the launcher found; None without a launcher, and while it runs.
        start_seconds: wall clock of the first attempt.
        end_seconds: wall clock of the end, or of the last progress of a job that is gone.
        attempts: how many there were on this node.
        ranks: pages of the newest attempt on this node.
        world_size: ranks of the job on all nodes.
        last_step: highest step that a rank completed.
        size_bytes: of all files in the folder.
    """

    folder: Path
    state: JobState
    outcome: str | None
    start_seconds: float
    end_seconds: float | None
    attempts: int
    ranks: int
    world_size: int | None
    last_step: int | None
    size_bytes: int

    @property
    def word(self) -> str:
        """The state in a word or two, the same wherever a job is shown: its outcome says more."""
        return self.outcome or ("ended normally" if self.state == "ended" else self.state)


def read_status(folder: Path) -> JobStatus:
    """The status of the job in a folder.

    Raises:
        OSError: the folder cannot be read, or is being removed.
    """
    events, pages = read_events(folder), newest_pages(folder)
    attempts = list_attempts(folder)
    state = _state(events, pages)
    steps = [page.state["step"] for page in pages if page.state["step"] is not None]
    # Without a launcher the first event, or the last file in the folder, comes long after the page.
    births = [page.wall_seconds(page.identity["start_monotonic_ns"]) for page in pages]
    return JobStatus(
        folder=folder,
        state=state,
        outcome=_outcome(events, pages) if state == "ended" else None,
        start_seconds=min(start_seconds(folder), *births, math.inf),
        end_seconds=_end_seconds(state, events, pages),
        attempts=len(attempts),
        ranks=len(pages),
        world_size=pages[0].identity["world_size"] if pages else None,
        last_step=max(steps, default=None),
        size_bytes=_size_bytes(folder),
    )


def read_statuses(root: Path) -> list[JobStatus]:
    """The status of every job under a root, the one that began last first."""
    statuses = []
    for folder in list_jobs(root):
        try:
            statuses.append(read_status(folder))
        except OSError:  # it is being removed
            continue
    return sorted(statuses, key=lambda status: status.start_seconds, reverse=True)


def _state(events: list[Event], pages: list[Page]) -> JobState:
    if any(find_process(page) is not None for page in pages):
        # A rank that outlives its launcher still computes, whatever the launcher wrote.
        return "running"
    phases = {page.phase for page in pages}
    # Without a launcher the first exception is the end of the job: the others are gone with it.
    has_ended = "failed" in phases or (bool(phases) and phases <= ENDED_PHASES)
    if has_ended or finish_time(events) is not None:
        return "ended"
    return "gone" if pages else "starting"


def _outcome(events: list[Event], pages: list[Page]) -> str | None:
    finishes = [event for event in events if event.kind == "job_finished"]
    if finishes:
        return str(finishes[-1].fields.get("outcome"))
    return "failed" if any(page.phase == "failed" for page in pages) else None


def _end_seconds(state: JobState, events: list[Event], pages: list[Page]) -> float | None:
    if state in {"starting", "running"}:
        return None
    last_progress = max((page.progress_wall_seconds for page in pages), default=None)
    return finish_time(events) or last_progress


def _size_bytes(folder: Path) -> int:
    """Size of all files below a folder, of as many as are looked at; no link is followed."""
    waiting, size, entries_left = [folder], 0, MAX_ENTRIES
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in islice(entries, entries_left):
                entries_left -= 1
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(folder / entry.path)
                else:
                    size += entry.stat(follow_symlinks=False).st_size
    return size
