"""Follows Slurm's accounting: each poll gives what is new, and the end of every job heard of.

sacct lists the jobs of a period. A job that was heard open and is in no period any more, because
the feed was away for days or because it never became eligible, is asked for by its id.
"""

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from lockstep_ledger.importers.sacct import description_of, events_of_job, later_word
from lockstep_outcomes.slurm import SlurmJob, ask_sacct
from lockstep_records.events.event import Event, stable_id
from lockstep_records.file_access.atomic_file import write_atomically

# slurmctld tells slurmdbd later what it could not, with times that lie before the last poll.
_OVERLAP_SECONDS = 3600.0
_FIRST_SECONDS = 86_400.0
# sacct leaves out what becomes eligible after the period: jobs with --begin.
_AHEAD_SECONDS = 366 * 86_400.0
_CLOCK_SECONDS = 2.0
_IDS_AT_ONCE = 500
_ASK_TIMEOUT_SECONDS = 20.0


class KnownJob(msgspec.Struct):
    """What was sent of a job.

    Attributes:
        sent: ids of events, shortened.
        word: digest of what Slurm said of it.
        end: None while it is open.
        is_missing: whether accounting no longer knows it.
    """

    sent: set[str] = set()
    word: str = ""
    end: float | None = None
    is_missing: bool = False


class FeedState(msgspec.Struct):
    """Until when a feed has asked, and the jobs that are open or ended lately."""

    until: float
    jobs: dict[str, KnownJob] = {}
    version: Literal[1] = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which jobs are fed.

    Attributes:
        partitions: the only ones; all where empty.
        has_cpu_jobs: whether jobs without a GPU count too.
    """

    partitions: frozenset[str] = frozenset()
    has_cpu_jobs: bool = False

    def takes(self, job: SlurmJob) -> bool:
        """Whether a job is fed; of an array that waits only the tasks are jobs, once they start."""
        is_used = self.has_cpu_jobs or bool(job.gpus or any(run.gpus for run in job.earlier))
        queues = frozenset((job.partition or "").split(","))
        is_chosen = not self.partitions or bool(queues & self.partitions)
        return is_used and is_chosen and "[" not in job.job_id


class SlurmFeed:
    """The feed of one Slurm.

    Args:
        state: file that remembers where the last poll ended and which jobs are open.
        since_seconds: from when on jobs are told, again too; None goes on as the file says, and
            begins a day ago without it.
        warn: gets a sentence for each thing that is left out.

    Attributes:
        num_rows: jobs that the last poll has read.
        warn: where sentences go.
        answered: events that the ledger took and refused of the poll before.
    """

    def __init__(
        self,
        state: Path,
        since_seconds: float | None,
        selection: Selection,
        warn: Callable[[str], None],
    ) -> None:
        self._path, self._selection, self.warn = state, selection, warn
        self._state = self._load()
        if since_seconds is not None:
            self._state.until = min(self._state.until, since_seconds)
        self.num_rows = 0
        self.answered: dict[str, int] = {}

    def poll(self, now_seconds: float) -> Iterator[Event]:
        """What is new; it counts as sent once ``commit`` is called.

        Raises:
            NoAccountingError: Slurm has no accounting here.
            subprocess.SubprocessError: sacct failed; a later call reaches back as far.
        """
        begin, end = max(0.0, self._state.until - _OVERLAP_SECONDS), now_seconds + _AHEAD_SECONDS
        period = (f"--starttime={_slurm_time(begin)}", f"--endtime={_slurm_time(end)}")
        found = {job.job_id: job for job in ask_sacct(period, self.warn)}
        open_ids = {name for name, entry in self._state.jobs.items() if entry.end is None}
        # Jobs that are held or depend on others are in the queue and in no period.
        waiting_ids = _ask("squeue", "--noheader", "--states=PENDING", "--format=%A")
        other_ids = sorted(open_ids.union(waiting_ids) - found.keys())
        for first in range(0, len(other_ids), _IDS_AT_ONCE):
            some = ",".join(other_ids[first : first + _IDS_AT_ONCE])
            found |= {job.job_id: job for job in ask_sacct(("--jobs", some), self.warn)}
        self._note_missing(open_ids - found.keys())
        self.num_rows = len(found)
        for job in found.values():
            if self._selection.takes(job) or job.job_id in self._state.jobs:
                # An end that is still to come by this clock waits until it has.
                is_ahead = job.end is not None and job.end > now_seconds + _CLOCK_SECONDS
                yield from self._news(replace(job, end=None) if is_ahead else job, now_seconds)
        self._state.until = now_seconds

    def commit(self) -> None:
        """Remembers that everything was sent."""
        horizon = self._state.until - 2 * _OVERLAP_SECONDS
        self._state.jobs = {
            name: entry
            for name, entry in self._state.jobs.items()
            if entry.end is None or entry.end > horizon
        }
        write_atomically(self._path, msgspec.json.encode(self._state), mode=0o600)

    def _news(self, job: SlurmJob, now_seconds: float) -> Iterator[Event]:
        entry = self._state.jobs.setdefault(job.job_id, KnownJob())
        word = stable_id(*sorted(description_of(job).items()))[:16]
        is_new_word, entry.word = entry.word not in {"", word}, word
        news = [event for event in events_of_job(job) if event.id[:16] not in entry.sent]
        # A start says it anyway.
        if is_new_word and not any(event.kind == "job_started" for event in news):
            news.append(later_word(job, min(now_seconds, job.end or now_seconds)))
        entry.sent |= {event.id[:16] for event in news}
        entry.end, entry.is_missing = job.end, False
        yield from sorted(news, key=lambda event: event.time)

    def _note_missing(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            entry = self._state.jobs[name]
            if not entry.is_missing:
                self.warn(
                    f"accounting does not know job {name} any more (PurgeJobAfter); its end"
                    " is not told"
                )
            entry.is_missing = True

    def _load(self) -> FeedState:
        """Where the last feed ended."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=FeedState)
        except FileNotFoundError:
            return FeedState(time.time() - _FIRST_SECONDS)
        except (OSError, msgspec.DecodeError) as error:
            raise ValueError(
                f"--state {self._path} is not the state of a feed ({error}); remove it, and give"
                " --since the time from which on jobs are to be told again"
            ) from error


def list_partitions() -> list[str]:
    """Names of Slurm's partitions; empty where it does not say."""
    return sorted(set(_ask("sinfo", "--noheader", "--format=%R")))


def _slurm_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _ask(*command: str) -> list[str]:
    """Words that a program of Slurm prints; none where slurmctld does not answer."""
    try:
        printed = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_ASK_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return printed.stdout.split() if printed.returncode == 0 else []
