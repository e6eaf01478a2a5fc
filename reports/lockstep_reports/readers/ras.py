"""Reads answers of NCCL's status socket: a file with one or several, or a folder of polls."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from lockstep_outcomes.progress.launches import LaunchHistory
from lockstep_records.file_access.compressed import read_content
from lockstep_records.nccl.ras import MAX_BYTES, is_answer, read_answers
from lockstep_records.nccl.ras_answer import Answer, RasError
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.files import files_of, head, holds_any
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import Member, timed_steps
from lockstep_reports.wording import plural

_MAX_POLLS = 4096
_LEAST_SECONDS = 20.0  # of a standstill, where the answers have times
# The one that says most comes first, of several jobs.
_ORDER = ("hang", "suspect", "still", "unseen", "starting", "ending", "moving")


def recognises(path: Path) -> bool:
    """Whether it is an answer, or a folder with some."""
    return holds_any(path, _is_answer)


def _is_answer(file: Path) -> bool:
    return is_answer(head(file).decode(errors="replace").replace("\r\n", "\n"))


def read(path: Path, options: ReadOptions) -> Recording:
    """The answers as a recording without steps; raises as ``ReaderModule.read``."""
    del options
    answers, notes = _answers_in(path)
    if not answers:
        raise ValueError(f"no answer in {path} can be read: {notes[0] if notes else 'none'}")
    jobs = [_history_of(polls) for polls in _split_by_job(answers)]
    are_timed = all(answer.time for answer in answers)
    findings = [(job.finding(limit_seconds=_LEAST_SECONDS * are_timed), job) for job in jobs]
    finding, job = min(findings, key=lambda pair: _ORDER.index(pair[0].kind))
    if len(jobs) > 1:
        notes.append(f"The answers are of {len(jobs)} jobs; this is of the one that says most.")
    newest = job.last
    assert newest is not None
    if newest.num_timeouts:
        waits = plural(newest.num_timeouts, "time-out")
        notes.append(f"The newest answer came after {waits} of processes; it may lack some.")
    nodes = {each.rank: each.process.host for each in (*newest.world, *finding.late)}
    ranks = sorted({*range(newest.world_size), *(rank for rank in nodes if rank >= 0)}) or [0]
    steps = timed_steps(
        path.name,
        ranks,
        np.array([], dtype=np.int64),
        np.empty((len(ranks), 0)),
        notes=tuple(notes),
    )
    members = tuple(Member(rank=rank, node=nodes.get(rank, "")) for rank in ranks)
    return Recording(
        source_kind="ras", path=path, steps=replace(steps, members=members), launches=finding
    )


def _answers_in(path: Path) -> tuple[list[Answer], list[str]]:
    """The answers in the order of their times, else of the names of their files; and notes."""
    answers: list[Answer] = []
    notes: list[str] = []
    for file in filter(_is_answer, files_of(path)):
        try:
            answers += read_answers(read_content(file, MAX_BYTES))
        except RasError as error:
            if file == path:
                raise ValueError(f"{path}: {error}") from error
            notes.append(f"Left out: {file.name}: {error}.")
        if len(answers) > _MAX_POLLS:
            raise ValueError(f"{path} has over {_MAX_POLLS:,} answers; give those of the hang")
    if all(answer.time for answer in answers):
        answers.sort(key=lambda answer: answer.time)
    return answers, notes


def _split_by_job(answers: Sequence[Answer]) -> list[list[Answer]]:
    """Answers by job: those of one share a communicator. A port may be that of several in turn."""
    jobs: list[tuple[set[str], list[Answer]]] = []
    for answer in answers:
        names = {each.name for each in answer.communicators}
        same = [job for job in jobs if job[0] & names]
        polls = [answer] if not same else [poll for _, own in same for poll in own] + [answer]
        jobs = [job for job in jobs if job not in same]
        jobs.append((names.union(*(own for own, _ in same)), polls))
    # A job that is not among the newest answers has ended, or has been started again.
    newest = answers[-len(jobs) :]
    named = [polls for names, polls in jobs if names and polls[-1] in newest]
    # A text in which nothing differs names no communicator; of one job it is a poll all the same.
    return named if len(jobs) > 1 and named else [list(answers)]


def _history_of(polls: Sequence[Answer]) -> LaunchHistory:
    history = LaunchHistory()
    times = [_seconds_of(answer) for answer in polls]
    before = None
    for answer, seconds in zip(polls, times, strict=True):
        # The same answer twice is one poll.
        if seconds and seconds == before:
            continue
        before = seconds
        history.ingest(answer, seconds if all(times) else 0.0)
    return history


def _seconds_of(answer: Answer) -> float:
    """Its local time, as if that were UTC; 0 where it has none."""
    try:
        return datetime.fromisoformat(answer.time).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0
