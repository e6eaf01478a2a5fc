"""Reads a job's folder: the pages of one attempt, how it ended or hangs, and all its events."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lockstep_catalogue.vocabulary import ENDED_PHASES, OUTCOMES, Outcome
from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import drop_strangers, evidence_of
from lockstep_outcomes.progress.hangs import HangTimeouts, find_hang, switched_timeouts
from lockstep_outcomes.progress.progress_events import (
    HangRecord,
    hangs_of,
    record_of,
    standstill_words,
)
from lockstep_outcomes.slurm import ended_state
from lockstep_records.events.event import Event, read_events
from lockstep_records.files.jobs import list_attempts, list_pages
from lockstep_records.page.reader import Page
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.pages import NoStepsError, read_pages
from lockstep_reports.recording.recording import Attempt, Recording
from lockstep_reports.recording.steps import Steps, timed_steps

ReadAttempt = Callable[[Path], tuple[Steps, tuple[Page, ...]]]
# Ends of launchers that saw only a signal, and of ranks without one.
_WEAK_OUTCOMES = frozenset({None, "unknown", "cancelled"})


def recognises(path: Path) -> bool:
    """Whether it is a folder with attempts."""
    return path.is_dir() and bool(list_attempts(path))


def read(path: Path, options: ReadOptions) -> Recording:
    """An attempt of a job, or the newest that has steps; raises as ``ReaderModule.read``."""
    return read_job(path, options, read_pages)


def read_job(path: Path, options: ReadOptions, read_attempt: ReadAttempt) -> Recording:
    """The same with the steps of an attempt read by a function of its folder."""
    folders = {int(folder.name): folder for folder in list_attempts(path)}
    if options.attempt is not None and options.attempt not in folders:
        recorded = ", ".join(map(str, folders)) or "none"
        raise ValueError(f"attempt {options.attempt} is not in {path}; attempts there: {recorded}")
    candidates = [f for number, f in folders.items() if options.attempt in {None, number}]
    events = tuple(drop_strangers(read_events(path)))
    steps, pages = _read_newest(path, candidates, events, read_attempt)
    outcomes = {number: _find_outcome(number, events) for number in folders}
    end = _read_end(path, steps, events)
    if outcomes[steps.attempt] in _WEAK_OUTCOMES and not steps.is_running:
        end = _add_slurm_state(path, steps, pages) or end
        outcome = next((name for name in OUTCOMES if name == end.get("outcome")), None)
        outcomes[steps.attempt] = outcome or outcomes[steps.attempt]
    return Recording(
        source_kind="pages",
        path=path,
        steps=steps,
        events=events,
        attempts=tuple(Attempt(number=n, outcome=outcome) for n, outcome in outcomes.items()),
        read_at_seconds=options.now_seconds,
        end=end,
        hang=_find_hang(path, steps, pages, options.now_seconds),
        stacks=tuple(_list_stacks(path, steps)),
    )


def _read_newest(
    job: Path, folders: list[Path], events: tuple[Event, ...], read_attempt: ReadAttempt
) -> tuple[Steps, tuple[Page, ...]]:
    """The last attempt that has any steps, or that ended without a step, with its pages.

    Raises the first NoStepsError where none has ended or stands.
    """
    first_error: NoStepsError | None = None
    without_steps: tuple[Steps, tuple[Page, ...]] | None = None
    for folder in reversed(folders):
        try:
            attempt = read_attempt(folder)
        except NoStepsError as error:
            first_error = first_error or error
            attempt = _make_empty_steps(folder, events, error), ()
        if len(attempt[0].numbers):
            return attempt
        # The newest of them: of a job that never made a step its end is all there is to tell.
        if without_steps is None and _is_news(attempt[0], events):
            without_steps = attempt
    if without_steps is not None:
        return without_steps
    raise first_error or NoStepsError(f"job {job} has not completed a step yet; ask again later")


def _is_news(steps: Steps, events: tuple[Event, ...]) -> bool:
    """Whether an attempt without steps has ended, failed, or stands still."""
    kinds = {event.kind for event in events if event.attempt == steps.attempt}
    has_failed = any(m.phase in ENDED_PHASES or m.exception for m in steps.members)
    return has_failed or bool(kinds & {"attempt_ended", "hang"})


def _make_empty_steps(folder: Path, events: tuple[Event, ...], error: NoStepsError) -> Steps:
    """An attempt whose ranks left no page that can be read, by its launcher's events."""
    started = [event for event in events if event.kind == "job_started"]
    size = started[-1].fields.get("world_size") if started else None
    num_pages = len(list_pages(folder))
    world_size = max(size if isinstance(size, int) else 0, num_pages, 1)
    nothing = np.empty(0, dtype=np.int64), np.empty((0, 0))
    # Ranks that ended before they had a page leave nothing out.
    notes = (f"Left out: {error}.",) if num_pages else ()
    steps = timed_steps(folder.parent.name, [], *nothing, world_size=world_size, notes=notes)
    return replace(steps, attempt=int(folder.name))


def _find_outcome(number: int, events: tuple[Event, ...]) -> Outcome | None:
    """The outcome that the launcher wrote for an attempt; None when it wrote none."""
    ends = [event for event in events if event.kind == "attempt_ended" and event.attempt == number]
    if ends:
        outcome = ends[-1].fields.get("outcome")
        return next((known_outcome for known_outcome in OUTCOMES if known_outcome == outcome), None)
    # A launcher that was killed writes no end; a later attempt shows that this one failed.
    restarted = any(e.kind == "attempt_started" and e.attempt > number for e in events)
    return "failed" if restarted else None


def _read_end(job: Path, steps: Steps, events: tuple[Event, ...]) -> Mapping[str, Any]:
    """Fields of the attempt's last event; by its pages where no launcher wrote one; else empty."""
    for event in reversed(events):
        if event.kind == "attempt_ended" and event.attempt == steps.attempt:
            return _judge_hang_again(event.fields, hangs_of(events, steps.attempt))
    # Pages that say neither done nor failed may be a copy of those of a job that runs.
    ended = [member.phase in ENDED_PHASES for member in steps.members]
    has_failed = any(m.phase == "failed" or m.exception is not None for m in steps.members)
    is_complete = len(steps.members) == steps.world_size and bool(ended) and all(ended)
    if steps.is_running or not (has_failed or is_complete):
        return {}
    return _judge_end(job, steps)


def _judge_hang_again(end: Mapping[str, Any], hangs: list[HangRecord]) -> Mapping[str, Any]:
    """The end of a hang with whom the ranks of all nodes name; its launcher knew its own."""
    if end.get("cause") != "hang" or not hangs or not hangs[-1].missing:
        return end
    begin = str(end.get("reason") or "It hung").partition(":")[0]
    reason = f"{begin}: {standstill_words(hangs[-1])}."
    return {**end, "reason": reason, "culprit_ranks": list(hangs[-1].missing)}


def _add_slurm_state(job: Path, steps: Steps, pages: tuple[Page, ...]) -> Mapping[str, Any]:
    """The end by the evidence on this node and by Slurm's word; empty where Slurm has none."""
    signs = [page.progress_wall_seconds for page in pages]
    state = ended_state(job.name, max(signs)) if signs else ""
    return _judge_end(job, steps, scheduler=(state,)) if state else {}


def _judge_end(job: Path, steps: Steps, **evidence: Any) -> Mapping[str, Any]:
    """Fields of an end by the evidence on this node, and by what somebody else told."""
    try:
        return classify(replace(evidence_of(job, steps.attempt), **evidence)).event_fields()
    except OSError:  # the folder is being removed
        return {}


def _find_hang(
    job: Path, steps: Steps, pages: tuple[Page, ...], now_seconds: float
) -> HangRecord | None:
    """The hang of a job that runs on this node, whoever started it; None without."""
    if not steps.is_running:
        return None
    hang = find_hang(pages, time.monotonic_ns(), switched_timeouts(job, HangTimeouts()))
    return None if hang is None else record_of(hang, steps.attempt, now_seconds)


def _list_stacks(job: Path, steps: Steps) -> list[tuple[int, Path]]:
    """Files of stacks of the attempt by rank, without those that are empty."""
    folder = (job / str(steps.attempt)).absolute()
    files = {path.name: path for path in folder.glob("rank-*.stacks") if path.is_file()}
    found = [(m.rank, files.get(f"rank-{m.rank:05d}.stacks")) for m in steps.members]
    return [(rank, path) for rank, path in found if path is not None and path.stat().st_size > 0]
