"""Judges from outside the ranks whether they hang, and who keeps the others waiting.

A rank that hangs cannot tell: its threads may wait for the interpreter's lock, or the process may
be stopped. Its page shows it all the same: the heartbeat is a time of this machine's monotonic
clock.
"""

import json
import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep_records.jobs import list_attempts, list_pages
from lockstep_records.page.reader import Page, PageError, read_page, read_rows

DEFAULT_SECONDS = 120.0
MEDIAN_STEPS = 20.0
# Before the first step models are loaded and compiled; a checkpoint may take its time.
PATIENT_PHASES = frozenset({"init", "checkpoint", "eval", "restore"})
PATIENCE = 10.0
OVER = frozenset({"done", "failed"})
_WAITING = "sync"
_STOPPED = frozenset("Tt")
_ROWS_FOR_MEDIAN = 64


def limit_seconds(floor_seconds: float, median_step_seconds: float | None) -> float:
    """How long without progress is a hang: 20 median steps, and the floor at least."""
    return max(floor_seconds, MEDIAN_STEPS * (median_step_seconds or 0.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle:
    """A rank that has made no progress.

    Attributes:
        phase: where it stands.
        step: last completed step; None before the first.
        idle_seconds: since its last mark.
        process: state of its process as /proc tells it (R running, S asleep, D in the kernel,
            T stopped, Z ended); None when it has gone.
    """

    rank: int
    phase: str
    step: int | None
    idle_seconds: float
    process: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Hang:
    """Ranks of this node without progress.

    Attributes:
        missing: ranks for which the others wait, as far as it can be told: they stand elsewhere
            than in the synchronisation, or their process is stopped.
    """

    limit_seconds: float
    ranks: tuple[Idle, ...]
    missing: tuple[int, ...]


def newest_pages(job: Path) -> list[Page]:
    """Readable pages of a job's newest attempt on this node."""
    found = []
    for path in [page for folder in list_attempts(job)[-1:] for page in list_pages(folder)]:
        try:
            found.append(read_page(path))
        except PageError:
            continue
    return found


def judge(
    pages: Iterable[Page], now_ns: int, floor_seconds: float, proc: Path = Path("/proc")
) -> Hang | None:
    """The hang of an attempt's ranks on this node; None while they make progress.

    Args:
        pages: one per rank, written on this machine.
        now_ns: its monotonic clock.
        floor_seconds: no hang is shorter.
        proc: where its processes are told.
    """
    idle, limit = [], 0.0
    for page in pages:
        seconds = (now_ns - page.progress_ns) / 1e9
        if page.phase in OVER or seconds <= floor_seconds:
            continue
        own = limit_seconds(floor_seconds, _median_step_seconds(page))
        first = page.state["step"] is None
        own *= PATIENCE if first or page.phase in PATIENT_PHASES else 1.0
        if seconds > own:
            idle.append(_idle(page, seconds, proc))
            limit = max(limit, own)
    if not idle:
        return None
    return Hang(limit_seconds=limit, ranks=tuple(idle), missing=_missing(idle))


def _median_step_seconds(page: Page) -> float | None:
    try:
        rows = read_rows(page)[-_ROWS_FOR_MEDIAN:]
    except PageError:
        return None
    return statistics.median(row["seconds"] for row in rows) if rows else None


def _idle(page: Page, seconds: float, proc: Path) -> Idle:
    return Idle(
        rank=page.identity["rank"],
        phase=page.phase,
        step=page.state["step"],
        idle_seconds=seconds,
        process=process_state(page.identity["pid"], proc),
    )


def _missing(idle: list[Idle]) -> tuple[int, ...]:
    stopped = [one.rank for one in idle if one.process in _STOPPED]
    if stopped:
        return tuple(stopped)
    elsewhere = [one.rank for one in idle if one.phase != _WAITING]
    return tuple(elsewhere) if len(elsewhere) < len(idle) or len(idle) == 1 else ()


def process_state(pid: int, proc: Path = Path("/proc")) -> str | None:
    """State letter of a process; None when there is none."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    state = text.rpartition(")")[2].split()[:1]
    return state[0] if state else None


def behind_in_flight(dumps: dict[int, bytes]) -> tuple[int, ...]:
    """Ranks that have not entered a collective which another rank has, by Flight Recorder dumps.

    Args:
        dumps: JSON of the Flight Recorder by rank; what cannot be read is left out.
    """
    entered: dict[str, dict[int, int]] = {}
    for rank, data in dumps.items():
        for group, last in _last_enqueued(data).items():
            entered.setdefault(group, {})[rank] = last
    behind = {
        rank
        for by_rank in entered.values()
        for rank, last in by_rank.items()
        if last < max(by_rank.values())
    }
    return tuple(sorted(behind))


def _last_enqueued(data: bytes) -> dict[str, int]:
    try:
        told: Any = json.loads(data)
        return {
            str(group): int(status["last_enqueued_collective"])
            for group, status in told["pg_status"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def write_beside(page: Path, suffix: str, data: bytes) -> Path:
    """Writes what was fetched about a rank beside its page, in one move."""
    path = page.with_suffix(suffix)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(data)
    beside.replace(path)
    return path
