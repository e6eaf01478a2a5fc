"""Judges from outside the ranks whether they hang, and which ranks keep the others waiting.

A rank that hangs cannot report it: its threads may wait for the interpreter's lock, or the process
may be stopped. Its page shows it all the same: the heartbeat is a time of this machine's monotonic
clock.

The rule is one for all of Lockstep: no progress for longer than ``hang_limit_seconds``. The agent
judges by it, and the alert fires on the agent's judgement.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

from lockstep_catalogue.vocabulary import ENDED_PHASES, PAUSE_PHASES
from lockstep_outcomes.progress import missing
from lockstep_records.files.rank_files import read_object, write_rank_file
from lockstep_records.files.switches import read_switches, switches_path
from lockstep_records.nccl.launches import FUNCTIONS, PAIRWISE, read_launches
from lockstep_records.page.layout import STEP_BUCKETS
from lockstep_records.page.liveness import RankProcess, find_process
from lockstep_records.page.reader import Page, PageError, newest_rows
from lockstep_records.page.replicas import UNSEEN, unseen_in

_SUFFIX = ".progress.json"
_MAX_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class RankProgress:
    """How far a rank has come, whether its device has work, and its collectives by group."""

    device: missing.Device | None = None
    launched: dict[str, missing.Launched]


def write_progress(page: Page, progress: RankProgress) -> None:
    """Writes it for the standstill that the page shows; or OSError."""
    document = {
        "standing_since_ns": page.progress_ns,
        "device": progress.device,
        "launched": {group: launched.number for group, launched in progress.launched.items()},
    }
    write_rank_file(page.path, _SUFFIX, json.dumps(document).encode())


def read_progress(page: Page) -> RankProgress:
    """What the rank's watch has found; nothing where it is of an earlier standstill.

    NCCL's plugin counts the launches of its rank itself.
    """
    if page.is_of_plugin:
        return RankProgress(launched=_launched_by_plugin(page))
    document = read_object(page.path.with_suffix(_SUFFIX), _MAX_BYTES) or {}
    if document.get("standing_since_ns") != page.progress_ns:
        return RankProgress(launched={})
    device, launched = document.get("device"), document.get("launched")
    return RankProgress(
        device=device if device in {"pending", "passed"} else None,
        launched={
            str(group): missing.Launched(number)
            for group, number in (launched.items() if isinstance(launched, dict) else ())
            if is_count(number)
        },
    )


def _launched_by_plugin(page: Page) -> dict[str, missing.Launched]:
    try:
        launches = read_launches(page.path)
    except (OSError, PageError):
        return {}
    newest = {f"{each['communicator']:#x}": each for each in launches.collectives}
    return {
        group: missing.Launched(number, _operation(newest.get(group)))
        for group, number in launches.by_communicator.items()
    }


def _operation(launch: Mapping[str, int] | None) -> str:
    """Function and number of a collective; empty where its peers call another one, as of a send."""
    function = "Send" if launch is None else FUNCTIONS[launch["function"]]
    return "" if launch is None or function in PAIRWISE else f"{function} {launch['sequence']}"


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value of a file is a number from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


HANG_TIMEOUT_SECONDS = 120.0
"""Default time-out. Of short steps: the file system or the network may pause for shorter."""
HANG_MEDIAN_STEPS = 20.0
"""Far beyond the slowest step of a job that moves."""
PAUSE_TIMEOUT_SECONDS = 1800.0
"""Default time-out of a planned pause: the file system of a large checkpoint may take minutes, and
so may the compilation before the first step; gloo's own time-out is 30 minutes too."""
ProcessOf = Callable[[Page], RankProcess | None]
# The newest rows: steps may become longer or shorter in a run.
_ROWS_FOR_MEDIAN = 64


def hang_limit_seconds(
    median_step_seconds: float | None,
    timeout_seconds: float = HANG_TIMEOUT_SECONDS,
    pause_timeout_seconds: float = PAUSE_TIMEOUT_SECONDS,
    *,
    is_pause: bool = False,
) -> float:
    """Time without progress from which on a rank hangs.

    Args:
        median_step_seconds: median duration of the job's steps; None while there is none.
        timeout_seconds: the user's time-out, which a hang is never shorter than.
        pause_timeout_seconds: the same for a planned pause.
        is_pause: whether the rank has completed no step yet or is in one of ``PAUSE_PHASES``.

    Returns:
        The longest of the time-out, 20 median steps and, in a pause, the pause's time-out.
    """
    limit = max(timeout_seconds, HANG_MEDIAN_STEPS * (median_step_seconds or 0.0))
    return max(limit, pause_timeout_seconds) if is_pause else limit


@dataclass(frozen=True, kw_only=True, slots=True)
class HangTimeouts:
    """Time-outs of a job's ranks.

    Attributes:
        step_seconds: time-out in steps; 0 judges no rank.
        pause_seconds: in a planned pause: initialisation, checkpoint, evaluation, restore; 0
            judges no rank in one.
        switched_seconds: that of steps by the job's switches, which also overrides the ranks' own.
    """

    step_seconds: float = HANG_TIMEOUT_SECONDS
    pause_seconds: float = PAUSE_TIMEOUT_SECONDS
    switched_seconds: float | None = None

    def apply_page(self, page: Page) -> "HangTimeouts":
        """The rank's own time-outs where it has some, else these."""
        own = [page.periodic[f"{name}_timeout_seconds"] for name in ("hang", "pause")]
        step_seconds = own[0] if self.switched_seconds is None else self.switched_seconds
        return HangTimeouts(
            step_seconds=self.step_seconds if step_seconds is None else step_seconds,
            pause_seconds=self.pause_seconds if own[1] is None else own[1],
        )

    @property
    def is_off(self) -> bool:
        """Whether no rank without a time-out of its own is judged."""
        return not (self.step_seconds if self.switched_seconds is None else self.switched_seconds)


def switched_timeouts(job: Path, timeouts: HangTimeouts) -> HangTimeouts:
    """The time-outs with what the switches in a job's folder say; a hung rank reads none itself."""
    try:
        switched_seconds = read_switches(switches_path(job)).hang_seconds
    except ValueError:  # the ranks log what is wrong with the file
        return timeouts
    return replace(timeouts, switched_seconds=switched_seconds)


def median_step_seconds(bucket_counts: Sequence[int], seconds_sum: float) -> float | None:
    """Median duration of steps by the page's histogram, as Prometheus' histogram_quantile does.

    Linear between the bounds of the bucket that holds the median, so it errs by less than that
    bucket's width. Beyond the last bound it is the mean, where that is longer.

    Args:
        bucket_counts: steps in each bucket of ``STEP_BUCKETS``, then those beyond the last one.
        seconds_sum: durations of all the steps together.

    Returns:
        Seconds; None without a step.
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
class Hang:
    """Ranks of this node without progress.

    Attributes:
        limit_seconds: longest limit that one of the ranks has exceeded.
        ranks: those that have exceeded theirs.
        num_unseen: ranks of the job that have no page here.
    """

    limit_seconds: float
    ranks: tuple[missing.RankState, ...]
    states: tuple[missing.RankState, ...]
    num_unseen: int

    def with_launched(self, launched: Mapping[int, Mapping[str, missing.Launched]]) -> "Hang":
        """The hang with the collectives that ranks are known to have launched, by rank."""
        states = [
            replace(state, launched=launched.get(state.rank) or state.launched)
            for state in self.states
        ]
        return replace(self, states=tuple(states))

    @property
    def missing(self) -> missing.Missing:
        """Whom the others wait for."""
        return missing.find_missing(self.states, len(self.states) + self.num_unseen)


def find_hang(
    pages: Sequence[Page],
    now_ns: int,
    timeouts: HangTimeouts,
    procfs: Path = Path("/proc"),
    process_of: ProcessOf | None = None,
) -> Hang | None:
    """The hang of an attempt's ranks on this node; None while they make progress.

    A rank that waits in synchronisation while another is in a planned pause may be waiting for it:
    it has the time of the pause. A rank in work of its own has not.

    Args:
        pages: one per rank, written on this machine.
        now_ns: its monotonic clock.
        timeouts: of the ranks that have none of their own.
        procfs: where the states of its processes are read.
        process_of: finds the process of a page; by default as the page tells.
    """
    process_of = process_of or partial(find_process, procfs=procfs)
    unended = [(page, process_of(page)) for page in pages if page.phase not in ENDED_PHASES]
    # A rank that was killed in a checkpoint pauses no more.
    is_pausing = any(process and page.phase in PAUSE_PHASES for page, process in unended)
    limits: dict[int, float] = {}
    for page, _ in unended:
        idle_seconds = (now_ns - page.progress_ns) / 1e9
        limit = _limit_of_rank(page, timeouts.apply_page(page), idle_seconds, is_pausing=is_pausing)
        if limit is not None and idle_seconds > limit:
            limits[page.identity["rank"]] = limit
    if not limits:
        return None
    seen = [*unended, *((page, None) for page in pages if page.phase == missing.FINISHED)]
    states = tuple(_state_of(page, now_ns, process, procfs) for page, process in seen)
    hang = Hang(
        limit_seconds=max(limits.values()),
        ranks=tuple(state for state in states if state.rank in limits),
        states=states,
        num_unseen=max(0, max(page.identity["world_size"] for page in pages) - len(pages)),
    )
    return hang if _stands(hang, [page for page, _ in unended]) else None


def _stands(hang: Hang, pages: Sequence[Page]) -> bool:
    """Whether ranks stand that may launch collectives which nobody sees.

    Then all of them are idle, and the newest collectives of some group, which all ranks name,
    differ.
    """
    if all(UNSEEN["launches"] not in unseen_in(page.periodic) for page in pages):
        return True
    newest: dict[str, set[str]] = {}
    for state in hang.states:
        for group, launched in state.launched.items():
            newest.setdefault(group, set()).add(launched.operation)
    are_apart = any(len(names) > 1 and "" not in names for names in newest.values())
    return are_apart and len(hang.ranks) == len(pages)


def _limit_of_rank(
    page: Page, timeouts: HangTimeouts, idle_seconds: float, *, is_pausing: bool
) -> float | None:
    """Time without progress from which on a rank hangs; None where it cannot hang."""
    waits_for_pause = is_pausing and page.phase == missing.WAITING
    is_pause = page.phase in PAUSE_PHASES or page.state["step"] is None or waits_for_pause
    least_seconds = timeouts.pause_seconds if is_pause else timeouts.step_seconds
    if page.phase in ENDED_PHASES or not timeouts.step_seconds or not least_seconds:
        return None
    if idle_seconds <= least_seconds:  # the rows are read only of ranks that may hang
        return None
    return hang_limit_seconds(
        _median_of_rows(page), timeouts.step_seconds, timeouts.pause_seconds, is_pause=is_pause
    )


def _median_of_rows(page: Page) -> float | None:
    durations = [row["seconds"] for row in newest_rows(page, _ROWS_FOR_MEDIAN)]
    return statistics.median(durations) if durations else None


def _state_of(
    page: Page, now_ns: int, process: RankProcess | None, procfs: Path
) -> missing.RankState:
    progress = read_progress(page)
    return missing.RankState(
        rank=page.identity["rank"],
        phase=page.phase,
        step=page.state["step"],
        rounds=page.periodic["sync_rounds"],
        idle_seconds=(now_ns - page.progress_ns) / 1e9,
        process=_letter_of(process, procfs),
        device=progress.device,
        launched=progress.launched,
    )


def _letter_of(process: RankProcess | None, procfs: Path) -> str | None:
    if process is None:
        return missing.GONE
    return None if process.pid is None else process_state(process.pid, procfs)


def is_stopped(pid: int, procfs: Path = Path("/proc")) -> bool:
    """Whether a process is stopped by a signal or a debugger."""
    return process_state(pid, procfs) in missing.STOPPED


def process_state(pid: int, procfs: Path = Path("/proc")) -> str | None:
    """State letter of a process; None when there is none."""
    try:
        text = (procfs / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The name of the process stands in brackets and may hold brackets itself.
    state = text.rpartition(")")[2].split()[:1]
    return state[0] if state else None
