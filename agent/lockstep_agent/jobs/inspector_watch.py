"""Jobs seen through the files of NCCL's and RCCL's Inspector: in a thread, for a disk may hang.

A process belongs to the user that the kernel states, and only files and folders of that user are
read, the new part of each, within bounds for all of them. A job moves as long as its files grow;
that one of them does not while others do makes its rank unknown, never well.
"""

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lockstep_agent.jobs.inspector_files import RecordFile, TextFile
from lockstep_agent.jobs.watched_jobs import FollowedJob, Key, Watch, WatchedJob, one_a_rank
from lockstep_agent.sources.inspector_processes import InspectorProcess
from lockstep_outcomes.progress.hangs import hang_limit_seconds
from lockstep_outcomes.progress.launch_finding import Kind, LateRank, LaunchFinding
from lockstep_records.file_access.foreign_files import ForeignFileError, scan_foreign
from lockstep_records.nccl.inspector_text import FILE_NAME as TEXT_NAME
from lockstep_records.nccl.ras_answer import ProcessDevice

POLL_SECONDS = 15.0
_JSON_NAME = re.compile(r".{1,255}-pid(\d{1,10})\.log")
_MAX_ENTRIES, _MAX_FOLDERS, _MAX_FILES = 1 << 17, 256, 1024
_MAX_BYTES, _MAX_FILE_BYTES = 64 << 20, 8 << 20
_MAX_SECONDS = 10.0
"""Of a run; whose files come late wait for the next one."""
_LIST_SECONDS = 60.0
_RECOVERED_STOPS, _INTERVALS = 2.0, 3.0
"""A stop counts once it has lasted so many times the longest that the job came out of, and so many
intervals between dumps."""
_FEW_MOVES = 3
_NEVER = "the Inspector is told to write nothing: its variable for the interval of dumps is not set"


@dataclass(slots=True, kw_only=True)
class _Job(FollowedJob[InspectorProcess]):
    """What is known of a job.

    Attributes:
        files: by pid of this node, or, of texts, by name.
    """

    polls: int = 0
    files: dict[int | str, RecordFile] = field(default_factory=dict)
    listed: dict[Path, float] = field(default_factory=dict)


class InspectorWatch(Watch[InspectorProcess, _Job]):
    """Looks for jobs, reads what is new, and judges."""

    name, poll_seconds, of_job = "inspector", POLL_SECONDS, _Job

    def moving_pids(self) -> Collection[int]:
        """Processes of jobs that move."""
        moving = (job for job in self.jobs if job.kind == "moving")
        return {process.pid for job in moving for process in job.processes}

    def _learn(self, now: float) -> None:
        """Reads the files of all jobs, those of each within its part of the bounds."""
        end, num_folders = time.monotonic() + _MAX_SECONDS, 0
        jobs = [job for job in self.followed.values() if job.processes]
        for job in sorted(jobs, key=lambda job: job.polls):  # whoever waited longest is first
            left, pids = _MAX_BYTES // len(jobs), {each.pid for each in job.processes}
            job.files = {
                key: each for key, each in job.files.items() if isinstance(key, str) or key in pids
            }
            for folder in sorted({process.folder for process in job.processes}):
                num_folders += 1
                if num_folders <= _MAX_FOLDERS and time.monotonic() < end:
                    self._list(job, folder, now)
            for file in list(job.files.values()):
                if left <= 0 or time.monotonic() > end:
                    self._log_once("state=behind reason='more is written than is read'")
                    break
                left -= self._read_file(file, now, min(left, _MAX_FILE_BYTES))
            job.polls += 1

    def _list(self, job: _Job, folder: Path, now: float) -> None:
        """Finds the files of a folder's processes that are new."""
        inside = {each.inner_pid: each for each in job.processes if each.folder == folder}
        is_text = any(each.is_text for each in inside.values())
        # Of processes that have files each nothing is looked for; a GPU may come late.
        lacks = is_text or any(each.pid not in job.files for each in inside.values())
        if not lacks or now - job.listed.get(folder, -_LIST_SECONDS) < _LIST_SECONDS:
            return
        job.listed[folder] = now
        user = next(iter(inside.values())).user
        from lockstep_agent.jobs.inspector_json import JsonFile  # noqa: PLC0415  # loads msgspec

        try:
            for name in scan_foreign(folder, TEXT_NAME if is_text else _JSON_NAME, _MAX_ENTRIES):
                match = _JSON_NAME.fullmatch(name)
                pid = process.pid if match and (process := inside.get(int(match[1]))) else -1
                key: int | str = name if is_text else pid
                if key != -1 and key not in job.files and len(job.files) < _MAX_FILES:
                    job.files[key] = (TextFile if is_text else JsonFile)(folder / name, user, pid)
        except FileNotFoundError:  # before the first dump
            job.listed.pop(folder)
        except OSError as error:
            self._log_once(f"user={user} reason={str(error)!r}")

    def _read_file(self, file: RecordFile, now: float, max_bytes: int) -> int:
        if file.refusal:
            return 0
        try:
            return file.read(now, max_bytes)
        except FileNotFoundError:  # the Inspector deletes a text at its end
            return 0
        except ForeignFileError as error:
            file.refusal = str(error)
            self._log_once(f"user={file.user} reason={file.refusal!r}")
        except OSError as error:
            self._log_once(f"user={file.user} reason={str(error)!r}")
        return 0

    def _view(self, key: Key, job: _Job, ids: Mapping[int, str], now: float) -> WatchedJob | None:
        ranks = one_a_rank(_ranks_of(job))
        files = [
            file
            for name, file in job.files.items()
            if isinstance(name, int) or file.job_id in {"", key[1]}
        ]
        if not ranks:  # those that only started the ranks have the same environment
            return None
        moved = [each for file in files if (each := file.growth.moved_seconds) is not None]
        limit = self._limit_seconds(job, files)
        totals = {each.rank: f.totals for each in ranks if (f := job.files.get(each.pid))}
        return self._seen(
            *(key, job, ids, ranks),
            finding=self._finding(job, files, limit, now),
            limit_seconds=limit,
            polls=job.polls,
            answered_seconds=now,
            moved_seconds=max(moved, default=None),
            totals={rank: found for rank, found in totals.items() if rank is not None},
        )

    def _limit_seconds(self, job: _Job, files: Sequence[RecordFile]) -> float:
        steps = [each for file in files if (each := file.steps.seconds) is not None]
        growths = [file.growth for file in files]
        limit = hang_limit_seconds(
            max(steps, default=None),
            self._timeout_seconds,
            # Before the first steps a program may compile for long.
            is_pause=not steps and max((each.moves for each in growths), default=0) < _FEW_MOVES,
        )
        longest = max((each.longest_seconds for each in growths), default=0.0)
        interval = max(each.interval_seconds or 0.0 for each in job.processes)
        return max(limit, _RECOVERED_STOPS * longest, _INTERVALS * interval)

    def _finding(
        self, job: _Job, files: Sequence[RecordFile], limit: float, now: float
    ) -> LaunchFinding:
        moved = [each for file in files if (each := file.growth.moved_seconds) is not None]
        if not moved:
            is_off = all(each.interval_seconds is None for each in job.processes)
            reason = "its files hold no operation yet"
            return LaunchFinding(kind="unseen", why=_NEVER if is_off else reason)
        seconds = now - max(moved)
        silent = [f for f in files if now - (f.growth.moved_seconds or job.first_seconds) > limit]
        if not silent:
            return LaunchFinding(kind="moving", why="ranks go on completing collectives")
        if seconds > limit:
            is_judged = self._timeout_seconds > 0
            why = "nothing was written" if is_judged else "stops are not judged here"
            kind: Kind = "hang" if is_judged else "suspect"
            return LaunchFinding(kind=kind, why=why, seconds=seconds)
        ranks = {each.pid: each for each in job.processes}
        return LaunchFinding(
            kind="suspect",
            why="the files of others grow, so that it is unknown whether these ranks do well",
            late=tuple(_late(file, ranks) for file in silent),
        )


def _late(file: RecordFile, processes: Mapping[int, InspectorProcess]) -> LateRank:
    process = processes.get(file.pid)
    rank = file.rank if process is None or process.rank is None else process.rank
    return LateRank(
        rank=-1 if rank is None else rank,
        is_of_job=rank is not None,
        process=ProcessDevice(host="" if process else file.label, pid=file.pid),
        communicator=file.path.name,
        why="silent",
        act="completed",
    )


def _ranks_of(job: _Job) -> Iterator[InspectorProcess]:
    """The processes that may be ranks: of JSON those that have a file, which may tell its rank."""
    for each in job.processes:
        file = job.files.get(each.pid)
        if file is not None and each.rank is None:
            yield replace(each, rank=file.rank, world_size=file.world_size)
        elif file is not None or each.is_text:
            yield each
