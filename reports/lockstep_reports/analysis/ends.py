"""The end of an attempt, its times, and stretches without progress."""

import math
from dataclasses import dataclass, replace

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_catalogue.vocabulary import ENDED_PHASES, OUTCOMES, OutcomeOrRunning
from lockstep_outcomes.progress.missing import WAITING, RankState, find_missing, rank_words
from lockstep_outcomes.progress.progress_events import HangRecord, hangs_of, standstill_words
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags
from lockstep_reports.recording.align import Alignment
from lockstep_reports.recording.recording import Recording, select_columns
from lockstep_reports.recording.steps import Steps
from lockstep_reports.wording import duration

# A rank in a long phase is silent for a while; two minutes are the default limit of a hang too.
_SILENT_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NotFinite:
    """Steps whose loss was NaN or infinite.

    Attributes:
        count: how many of the recorded steps, and ``share`` as a share of them.
        at_end: whether the last recorded step is one of them.
        ranks: that had such a loss; None where all had.
    """

    first_step: int
    last_step: int
    count: int
    share: float
    at_end: bool
    ranks: tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Resume:
    """A resume from an older checkpoint than the newest, or than was asked for.

    Attributes:
        passed_over: newer ones that were not valid.
        steps_lost: steps completed before that had to be done again; None where unknown.
    """

    step: int
    passed_over: int
    steps_lost: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Spans of the attempt in seconds and their ends on the wall clock; None where unknown.

    Attributes:
        startup_seconds: first sign of any rank to the start of its first recorded step.
        run_seconds: start of the first to end of the last recorded step.
        seconds_after_last_progress: last progress of any rank to the last event of the attempt.
        wall_seconds: first sign to last sign.
    """

    first_sign: float | None
    first_step: float | None
    last_progress: float | None
    last_sign: float | None
    startup_seconds: float | None
    run_seconds: float | None
    seconds_after_last_progress: float | None
    wall_seconds: float | None


def measure_times(recording: Recording, alignment: Alignment) -> Times:
    """Signs of life, steps and progress of the attempt on the wall clock."""
    steps = recording.steps
    # events.jsonl is text, and `NaN` is a number to Python's JSON.
    events = [
        event.time
        for event in recording.events
        if event.attempt == steps.attempt and math.isfinite(event.time)
    ]
    births = [
        member.page_created_seconds for member in steps.members if member.page_created_seconds
    ]
    progress = [member.progress_seconds for member in steps.members if member.progress_seconds]
    first_sign, last_progress = min([*events, *births], default=None), max(progress, default=None)
    last_sign = max([*events, *progress], default=None)
    first_step, last_step = alignment.measure_span()
    return Times(
        first_sign=first_sign,
        first_step=first_step,
        last_progress=last_progress,
        last_sign=last_sign,
        startup_seconds=_seconds_between(first_sign, first_step),
        run_seconds=_seconds_between(first_step, last_step),
        seconds_after_last_progress=_seconds_between(last_progress, max(events, default=None)),
        wall_seconds=_seconds_between(first_sign, last_sign),
    )


def final_outcome(recording: Recording) -> OutcomeOrRunning:
    """The outcome of the attempt; ``running`` or ``unknown`` where none was recorded."""
    members = recording.steps.members
    by_number = {attempt.number: attempt.outcome for attempt in recording.attempts}
    outcome = by_number[recording.steps.attempt]
    if outcome is not None:
        return outcome
    if recording.steps.is_running:
        return "running"
    judged = next((name for name in OUTCOMES if name == recording.end.get("outcome")), None)
    if judged is not None:
        return judged
    # A lock that nobody holds is a process that has gone, however fresh its last word is.
    if any(member.is_running is not None for member in members):
        return "unknown"
    newest = max((member.progress_seconds for member in members), default=0.0)
    is_alive = any(member.phase not in ENDED_PHASES for member in members)
    # Progress in the future comes from another machine's clock and proves nothing.
    is_fresh = 0 <= recording.read_at_seconds - newest < _SILENT_SECONDS
    return "running" if is_alive and is_fresh else "unknown"


def _seconds_between(begin: float | None, end: float | None) -> float | None:
    if begin is None or end is None:
        return None
    # Clocks of two nodes can put an end before its begin.
    return max(0.0, end - begin)


def find_not_finite(steps: Steps) -> NotFinite | None:
    """The steps whose loss was not finite; None where there are none, or nobody recorded them."""
    if steps.not_finite is None or not len(steps.numbers):
        return None
    bad: Flags = steps.not_finite > 0
    if not bad.any():
        return None
    # The flag is set for gradient norms too, which a scaler of gradients lets overflow on purpose.
    bad &= ~np.isfinite(steps.loss)
    columns = np.flatnonzero(bad.any(axis=0))
    if not len(columns):
        return None
    rows = np.flatnonzero(bad.any(axis=1))
    return NotFinite(
        first_step=int(steps.numbers[columns[0]]),
        last_step=int(steps.numbers[columns[-1]]),
        count=len(columns),
        share=len(columns) / len(steps.numbers),
        at_end=bool(columns[-1] == len(steps.numbers) - 1),
        ranks=None if len(rows) == len(steps.members) else tuple(steps.ranks[r] for r in rows),
    )


def find_older_resume(recording: Recording) -> Resume | None:
    """The resume of the attempt, where it passed over a newer checkpoint; else None."""
    for event in recording.events:
        step = event.fields.get("step")
        if event.kind != "job_resumed" or event.attempt != recording.steps.attempt:
            continue
        if event.fields.get("fallback") is True and isinstance(step, int):
            passed_over, lost = event.fields.get("passed_over"), event.fields.get("steps_lost")
            return Resume(
                step=step,
                passed_over=passed_over if isinstance(passed_over, int) else 0,
                steps_lost=lost if isinstance(lost, int) else None,
            )
    return None


# Of a standstill: a phase of own work that is longer is where its rank stood.
_MIN_SHARE = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Standstill:
    """A stretch in which no rank completed a step.

    Attributes:
        step: last completed step before; None where none was.
        missing: ranks that the others waited for; empty where none stands apart.
        phase: in which they stood; None where unknown.
        seconds: time without progress.
        begin_time: wall clock; None where unknown.
        is_final: whether no step followed.
        is_now: whether the ranks still stand, at the time of the report.
        words: who stood still where, without a full stop.
    """

    step: int | None
    missing: tuple[int, ...]
    phase: str | None
    seconds: float
    begin_time: float | None
    is_final: bool
    is_now: bool
    words: str


def split_standstills(
    recording: Recording, *, is_over: bool
) -> tuple[Recording, tuple[Standstill, ...]]:
    """The recording without the steps that stood still, and what stood in them.

    Such a step says nothing about who is slow: it is as long as the standstill, on whichever rank.
    """
    steps = recording.steps
    hangs = hangs_of(recording.events, steps.attempt)
    hung = _hung_columns(steps, hangs)
    inner = tuple(_describe_column(steps, int(column), hangs) for column in np.flatnonzero(hung))
    outer: tuple[Standstill, ...] = ()
    if is_over:
        times = [event.time for event in recording.events if event.attempt == steps.attempt]
        lasting = [hang for hang in hangs if hang.end is None and _never_moved(steps, hang)]
        outer = tuple(_describe_hang(hang, max(times), is_over=True) for hang in lasting[-1:])
    # The pages no longer show a hang whose end the launcher has not yet written.
    elif recording.hang is not None:
        outer = (_describe_hang(recording.hang, recording.read_at_seconds, is_over=False),)
    if hung.any():
        recording = replace(recording, steps=select_columns(steps, ~hung))
    return recording, (*inner, *outer)


def standstill_sentence(standstill: Standstill) -> str:
    """How long nothing moved, and whether it moved again."""
    end = " until now" if standstill.is_now else ", until the end" if standstill.is_final else ""
    again = "" if standstill.is_final else "; then it moved again"
    return f"No progress for {duration(standstill.seconds)}{end}{again}."


def _hung_columns(steps: Steps, hangs: list[HangRecord]) -> Flags:
    """Which steps stood still by their rows, or by the launcher's word [steps]."""
    hung: Flags = np.zeros(len(steps.numbers), dtype=bool)
    if steps.hung is not None and steps.steps_per_column is None:
        hung |= nan_stats.highest(steps.hung, axis=0) > 0
    seconds = nan_stats.highest(steps.seconds, axis=0)
    for hang in hangs:
        if hang.end is not None:
            following = steps.numbers == (hang.step or 0) + 1
            hung |= following & (np.nan_to_num(seconds) > _MIN_SHARE * (hang.end - hang.begin))
    return hung


def _describe_column(steps: Steps, column: int, hangs: list[HangRecord]) -> Standstill:
    """The standstill in one step, by its rows and by the launcher's word where there is one."""
    number = int(steps.numbers[column])
    usual = float(np.nan_to_num(nan_stats.median(steps.seconds)))
    lost = max(0.0, float(np.nan_to_num(nan_stats.highest(steps.seconds[:, column], 0))) - usual)
    by_rank = {
        member.rank: _standing_phase(steps, row, column, lost)
        for row, member in enumerate(steps.members)
    }
    states = [RankState(rank=rank, phase=phase or WAITING) for rank, phase in by_rank.items()]
    missing = find_missing(states).ranks
    hang = next((h for h in hangs if h.end is not None and (h.step or 0) + 1 == number), None)
    words = "" if hang is None else standstill_words(hang)
    missing = hang.missing if hang is not None and hang.missing else missing
    phases = {by_rank.get(rank) for rank in missing} - {None}
    phase = phases.pop() if len(phases) == 1 else None
    begin = nan_stats.quantile_number(steps.start[:, column], 0)
    return Standstill(
        step=number - 1 if number > 0 else None,
        missing=missing,
        phase=phase,
        seconds=lost,
        begin_time=begin if hang is None else hang.begin,
        is_final=False,
        is_now=False,
        words=words or _words(number, missing, phase),
    )


def _words(number: int, missing: tuple[int, ...], phase: str | None) -> str:
    if not missing:
        return f"no rank made progress in step {number}: none stands apart"
    where = "" if phase is None else f" in {phase}"
    return f"{rank_words(missing)} stood still{where} in step {number}"


def _standing_phase(steps: Steps, row: int, column: int, lost: float) -> str | None:
    """The phase of own work that took most of a standstill; None where the rank waited."""
    spent = {phase: float(steps.phases[phase][row, column]) for phase in OWN_WORK_PHASES}
    phase = max(spent, key=lambda name: np.nan_to_num(spent[name]))
    return phase if lost > 0 and spent[phase] > _MIN_SHARE * lost else None


def _never_moved(steps: Steps, hang: HangRecord) -> bool:
    """Whether no recorded step follows the one that was completed before a hang."""
    last = max((m.last_step for m in steps.members if m.last_step is not None), default=None)
    return last is None or (hang.step is not None and last <= hang.step)


def _describe_hang(hang: HangRecord, end: float, *, is_over: bool) -> Standstill:
    phases = {rank.phase for rank in hang.ranks if rank.rank in hang.missing} - {""}
    return Standstill(
        step=hang.step,
        missing=hang.missing,
        phase=phases.pop() if len(phases) == 1 else None,
        seconds=max(0.0, end - hang.begin),
        begin_time=hang.begin,
        is_final=True,
        is_now=not is_over,
        words=standstill_words(hang),
    )
