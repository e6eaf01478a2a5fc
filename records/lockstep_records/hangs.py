"""Judges from outside the ranks whether they hang, and which ranks keep the others waiting.

A rank that hangs cannot report it: its threads may wait for the interpreter's lock, or the process
may be stopped. Its page shows it all the same: the heartbeat is a time of this machine's monotonic
clock.

The rule is one for all of Lockstep: no progress for longer than ``hang_limit_seconds``.
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lockstep_catalogue.vocabulary import ENDED_PHASES, PAUSE_PHASES
from lockstep_records.liveness import find_process
from lockstep_records.page.layout import STEP_BUCKETS
from lockstep_records.page.reader import Page, PageError, read_rows

HANG_TIMEOUT_SECONDS = 120.0
"""Default time-out. Of short steps: the file system or the network may pause for shorter."""
HANG_MEDIAN_STEPS = 20.0
"""Far beyond the slowest step of a job that moves."""
# Before the first step models are loaded and compiled; a checkpoint may take its time too.
_PAUSE_FACTOR = 10.0
_WAITING = "sync"
_STOPPED = frozenset("Tt")
# The newest rows: steps may become longer or shorter in a run.
_ROWS_FOR_MEDIAN = 64


def hang_limit_seconds(
    median_step_seconds: float | None,
    timeout_seconds: float = HANG_TIMEOUT_SECONDS,
    *,
    is_pause: bool = False,
) -> float:
    """Time without progress from which on a rank hangs.

    Args:
        median_step_seconds: median duration of the job's steps; None while there is none.
        timeout_seconds: the user's time-out, which a hang is never shorter than.
        is_pause: whether the rank has completed no step yet or is in one of ``PAUSE_PHASES``.

    Returns:
        The longer of the time-out and 20 median steps, ten times that in a pause.
    """
    limit = max(timeout_seconds, HANG_MEDIAN_STEPS * (median_step_seconds or 0.0))
    return limit * (_PAUSE_FACTOR if is_pause else 1.0)


def median_step_seconds(bucket_counts: Sequence[int], seconds_sum: float) -> float | None:
    """Median duration of steps by the page's histogram, as Prometheus' histogram_quantile does.

    Linear between the bounds of the bucket that holds the median, so it errs by less than that
    bucket's width. Beyond the last bound it is the mean, where that is longer.

    Args:
        bucket_counts: steps in each bucket of ``STEP_BUCKETS``, then those beyond the last one.
        seconds_sum: durations of all the steps together.

    Returns:
        Seconds; None when there is no step.
    """
    total = sum(bucket_counts)
    if not total:
        return None
    below = 0
    for (lower, upper), count in zip(pairwise((0.0, *STEP_BUCKETS)), bucket_counts, strict=False):
        if count and 2 * (below + count) >= total:
            return lower + (upper - lower) * (total / 2 - below) / count
        below += count
    return max(STEP_BUCKETS[-1], seconds_sum / total)


@dataclass(frozen=True, kw_only=True, slots=True)
class HungRank:
    """A rank that has made no progress.

    Attributes:
        phase: phase that its last heartbeat began.
        step: last completed step; None before the first.
        idle_seconds: since its last heartbeat.
        process: state of its process by /proc (R running, S asleep, D in the kernel, T stopped,
            Z ended); None when it has gone, or is not visible here.
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
        limit_seconds: longest limit that one of the ranks has exceeded.
        missing: ranks that the others wait for, as far as it can be told: they are outside of
            synchronisation, or their process is stopped.
    """

    limit_seconds: float
    ranks: tuple[HungRank, ...]
    missing: tuple[int, ...]


def find_hang(
    pages: Iterable[Page], now_ns: int, timeout_seconds: float, procfs: Path = Path("/proc")
) -> Hang | None:
    """The hang of an attempt's ranks on this node; None while they make progress.

    Args:
        pages: one per rank, written on this machine.
        now_ns: its monotonic clock.
        timeout_seconds: no hang is shorter.
        procfs: where the states of its processes are read.
    """
    hung, longest_limit = [], 0.0
    for page in pages:
        idle_seconds = (now_ns - page.progress_ns) / 1e9
        # The ring is read only of ranks that may hang: it takes megabytes.
        if page.phase in ENDED_PHASES or idle_seconds <= timeout_seconds:
            continue
        limit = hang_limit_seconds(
            _median_of_rows(page),
            timeout_seconds,
            is_pause=page.phase in PAUSE_PHASES or page.state["step"] is None,
        )
        if idle_seconds > limit:
            hung.append(_hung_rank(page, idle_seconds, procfs))
            longest_limit = max(longest_limit, limit)
    if not hung:
        return None
    return Hang(limit_seconds=longest_limit, ranks=tuple(hung), missing=_missing(hung))


def _median_of_rows(page: Page) -> float | None:
    try:
        rows = read_rows(page)[-_ROWS_FOR_MEDIAN:]
    except PageError:
        return None
    return statistics.median(row["seconds"] for row in rows) if rows else None


def _hung_rank(page: Page, idle_seconds: float, procfs: Path) -> HungRank:
    process = find_process(page, procfs)
    pid = process.pid if process is not None else None
    return HungRank(
        rank=page.identity["rank"],
        phase=page.phase,
        step=page.state["step"],
        idle_seconds=idle_seconds,
        process=process_state(pid, procfs) if pid is not None else None,
    )


def _missing(hung: list[HungRank]) -> tuple[int, ...]:
    stopped = [rank.rank for rank in hung if rank.process in _STOPPED]
    if stopped:
        return tuple(stopped)
    elsewhere = [rank.rank for rank in hung if rank.phase != _WAITING]
    # Where all are outside of synchronisation, none of them waits for another.
    return tuple(elsewhere) if len(elsewhere) < len(hung) or len(hung) == 1 else ()


def process_state(pid: int, procfs: Path = Path("/proc")) -> str | None:
    """State letter of a process; None when there is none."""
    try:
        text = (procfs / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The name of the process stands in brackets and may hold brackets itself.
    state = text.rpartition(")")[2].split()[:1]
    return state[0] if state else None


def ranks_behind(dumps: dict[int, bytes]) -> tuple[int, ...]:
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
        dump: Any = json.loads(data)
        return {
            str(group): int(status["last_enqueued_collective"])
            for group, status in dump["pg_status"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
