"""Snapshots from rank pages; reads a few kilobytes of each, whatever the length of the job."""

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_outcomes.progress.hangs import HangTimeouts, find_hang, is_stopped, switched_timeouts
from lockstep_outcomes.progress.progress_events import record_of, standstill_words
from lockstep_records.files.job_status import read_status
from lockstep_records.files.jobs import find_job, find_root, list_attempts, list_jobs, list_pages
from lockstep_records.page.liveness import find_process
from lockstep_records.page.reader import Page, PageError, read_newest, read_page
from lockstep_records.page.replicas import counts_data
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Seconds
from lockstep_reports.readers.page_rows import phase_column
from lockstep_reports.readers.pages import ROW_DTYPE, rows_by_clock
from lockstep_reports.top import table
from lockstep_reports.wording import duration, plural

_NUM_ROWS, _NUM_SPARK_STEPS = 32, 16

Rows = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class _RankData:
    page: Page
    rows: Rows


class PageSource:
    """The pages of a job, by id or folder, or of all jobs on a node or here; else ValueError."""

    def __init__(self, name: str | None) -> None:
        self._node = None
        self._title = name or "all jobs here"
        self._job: Path | None = None
        if name is None:
            return
        try:
            # A job wins over a node of the same name.
            self._job = find_job(name)
        except ValueError:
            ranks = (rank for job in list_jobs(find_root()) for rank in _read_ranks(job, [], 0))
            if not any(name == rank.page.identity["node"] for rank in ranks):
                raise
            self._node = name

    def poll(self) -> table.Snapshot:
        """The ranks now."""
        now, notes = time.time(), list[str]()
        folders = [self._job] if self._job else list_jobs(find_root())
        rows: list[table.RankRow] = []
        standing: list[str] = []
        for folder in folders:
            ranks = _read_ranks(folder, notes)
            # A job that has ended is shown when it is asked for by name, and not among all jobs.
            if self._job or any(rank.page.phase not in ENDED_PHASES for rank in ranks):
                rows += _rows(folder.name, ranks, now)
                standing += _standing(folder, ranks, now)
        if self._node is not None:
            rows = [row for row in rows if row.node == self._node]
        if not rows:
            sentence = f"no rank of {self._title} has a page that can be read"
            raise ValueError(": ".join((sentence, *notes[:1])))
        left_out = [f"{plural(len(notes), 'page')} left out: {notes[0]}"] if notes else []
        state = ""
        if self._job is not None:
            with suppress(OSError):  # the folder is being removed
                state = read_status(self._job).word
        return table.Snapshot(
            title=self._title,
            wall_seconds=now,
            rows=table.worst_first(rows),
            notes=(*standing, *table.why_unobserved(rows), *left_out),
            state=state,
        )

    def close(self) -> None:
        """Does nothing: no file stays open."""


def _standing(job: Path, ranks: list[_RankData], now: float) -> list[str]:
    """A sentence on the hang of a job, where its ranks hang."""
    pages = [rank.page for rank in ranks]
    timeouts = switched_timeouts(job, HangTimeouts())
    hang = find_hang(pages, time.monotonic_ns(), timeouts)
    # Ranks that have ended do not hang: those that are left wait for the launcher.
    if hang is None or not any(rank.process for rank in hang.ranks):
        return []
    record = record_of(hang, 0, now)
    return [f"{job.name} hangs for {duration(now - record.begin)}: {standstill_words(record)}."]


def _read_ranks(job: Path, notes: list[str], num_rows: int = _NUM_ROWS) -> list[_RankData]:
    for attempt in reversed(list_attempts(job)):
        ranks = []
        for path in list_pages(attempt):
            try:
                page = read_page(path)
                data = read_newest(page, num_rows) if num_rows else b""
                newest = np.frombuffer(data, dtype=ROW_DTYPE)
            except PageError as error:
                # A page is being created, or torn: the others are shown all the same.
                notes.append(str(error))
                continue
            ranks.append(_RankData(page, rows_by_clock(newest, page.clock)))
        if ranks:
            return ranks
    return []


def _rows(job_id: str, ranks: list[_RankData], now: float) -> list[table.RankRow]:
    if not ranks:
        return []
    # Ranks are read one after the other, so their newest steps differ by a few.
    numbers = np.unique(np.concatenate([rank.rows["step"] for rank in ranks]))[-_NUM_ROWS:]
    own_work = np.full((len(ranks), len(numbers)), np.nan)
    clock = max((rank.page.clock for rank in ranks), key="host device".index)
    for index, rank in enumerate(ranks):
        if rank.page.clock != clock:
            continue
        rows = rank.rows[np.isin(rank.rows["step"], numbers)]
        seconds = np.sum([phase_column(rows, phase) for phase in OWN_WORK_PHASES], axis=0)
        own_work[index, np.searchsorted(numbers, rows["step"])] = seconds
    return [
        _row(job_id, rank, nan_stats.number(lag), now)
        for rank, lag in zip(ranks, table.lags(own_work), strict=True)
    ]


def _row(job_id: str, rank: _RankData, lag: float | None, now: float) -> table.RankRow:
    page, seconds = rank.page, rank.rows["seconds"].astype(np.float64)
    step, waits = nan_stats.median_number(seconds), phase_column(rank.rows, "sync")
    # A step of the wall clock must not make the time since progress negative.
    quiet = max(0.0, now - page.progress_wall_seconds)
    state = _state(page, quiet, step)
    return table.RankRow(
        job_id=job_id,
        rank=page.identity["rank"],
        node=page.identity["node"],
        state=state,
        phase=page.phase,
        step=page.state["step"],
        lag_seconds=lag,
        # A loop that records no waits has zeros: unknown.
        wait_seconds=_median(waits) if waits.any() else None,
        step_seconds=step,
        tokens_per_second=None
        if state in table.STILL
        else _tokens_rate(rank, float(seconds.sum())),
        loss=page.state["loss"],
        quiet_seconds=quiet,
        other_seconds=_median(phase_column(rank.rows, "other")),
        step_times=tuple(seconds[-_NUM_SPARK_STEPS:].tolist()),
        clock=page.clock,
    )


def _tokens_rate(rank: _RankData, total_seconds: float) -> float | None:
    """Tokens a second; None where the loop counts none, or another rank counts the same ones."""
    tokens = float(rank.rows["tokens"].sum())
    if not tokens or total_seconds <= 0 or not counts_data(rank.page.identity["mesh"]):
        return None
    return tokens / total_seconds


def _median(seconds: Seconds) -> float | None:
    return nan_stats.median_number(seconds.astype(np.float64))


def _state(page: Page, quiet_seconds: float, step_seconds: float | None) -> str:
    """State of a rank; gone where its process has ended without a word."""
    if page.phase not in ENDED_PHASES:
        process = find_process(page)
        if process is None:
            return "gone"
        # A signal stops a rank at once; that it stalls shows after minutes.
        if process.pid is not None and is_stopped(process.pid):
            return "stopped"
    return table.state_of(page.phase, quiet_seconds, step_seconds, HangTimeouts().apply_page(page))
