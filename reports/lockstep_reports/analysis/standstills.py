"""Stretches without progress: which ranks the others waited for, where, and how long."""

from dataclasses import dataclass, replace

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_outcomes.progress.hang_events import HangRecord, hangs_of, standstill_words
from lockstep_outcomes.progress.missing import WAITING, RankState, find_missing, rank_words
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import Steps
from lockstep_reports.recording.window import select_columns
from lockstep_reports.wording import duration

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
        hung |= np.nan_to_num(steps.hung).max(axis=0, initial=0) > 0
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
