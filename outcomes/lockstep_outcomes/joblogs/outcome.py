"""The outcome of a job by its log: the first cause, and whom it names, if anyone.

``kinds.KINDS`` is the table of causes; this module combines several of them.
"""

from dataclasses import dataclass
from typing import Any

from lockstep_catalogue.vocabulary import FailureClass, OutcomeOrRunning, Verdict
from lockstep_outcomes.joblogs.blame import Judgement, find_first_cause
from lockstep_outcomes.joblogs.kinds import KIND_BY_NAME, Tier
from lockstep_outcomes.joblogs.model import Finding, JobLog, Line
from lockstep_outcomes.progress.hangs import hang_limit_seconds
from lockstep_records.events.event import PREEMPTED

_SILENT_SECONDS = 120.0
# Evaluations and checkpoints of big models take their time, and log no step meanwhile.
_PAUSE_SECONDS = 1800.0
_PHASES = {"evaluation": "in the evaluation", "checkpoint": "while it saved a checkpoint"}


def judge_hidden_cause(log: JobLog) -> Judgement | None:
    """A failure whose cause the program's wrapper keeps to itself; None where training went on."""
    lines = [f for f in log.select_kinds("hidden_cause") if f.last_order > log.progress_order]
    if not lines:
        return None
    text = lines[0].first.text
    setting = "HYDRA_FULL_ERROR=1" if "ydra" in text.lower() or "overrides" in text else None
    advice = "run it again with full traces" + (f" ({setting})" if setting else "")
    return Judgement(
        outcome="failed", blame="unknown", cause="exit", failure_class="unknown",
        reason=f"It says that it failed, and a wrapper hides the cause: {advice}.",
        first=lines[0],
    )  # fmt: skip


def judge_hang(log: JobLog) -> Judgement | None:
    """Silence of the ranks while a scheduler calls the job running."""
    if log.watched is None:
        return None
    begin, last = log.watched
    silent = last - (begin if log.last_progress is None else min(begin, log.last_progress))
    median = sorted(log.step_seconds)[len(log.step_seconds) // 2] if log.step_seconds else None
    limit = hang_limit_seconds(median)
    if log.last_work in _PHASES:
        limit = max(limit, _PAUSE_SECONDS)
    if silent <= limit:
        return None
    phase = _PHASES.get(log.last_work or "", "")
    step = "" if log.last_step is None else f"after step {log.last_step}"
    where = " ".join(part for part in (phase, step) if part) or "before its first step"
    least = "at least " if log.last_progress is None else ""
    return Judgement(
        outcome="unknown", blame="unknown", cause="hang",
        reason=f"It hung {where}: no progress for {least}{silent:,.0f} s, while the scheduler calls"
        " it running.",
    )  # fmt: skip


def judge_silence(log: JobLog, now_seconds: float | None) -> Judgement:
    """No end and no failure: it runs, or its outcome is unknown."""
    fresh = now_seconds is not None and log.last_sign is not None
    if fresh and 0 <= (now_seconds or 0.0) - (log.last_sign or 0.0) < _SILENT_SECONDS:
        return Judgement(outcome="running", reason="It is running.")
    reached = "" if log.last_step is None else f" after step {log.last_step}"
    why = "tells no end and no cause"
    if log.withdrawn_by is not None:
        kind = {"epoch": "an epoch", "evaluation": "an evaluation"}.get(
            log.withdrawn_by, f"a {log.withdrawn_by}"
        )
        why = f"tells no end: {kind} came after its words of success"
    return Judgement(
        outcome="unknown", blame="unknown", reason=f"The log stops{reached} and {why}."
    )


def spans_of(log: JobLog, *, is_hang: bool) -> dict[str, float | None]:
    """Fields of an incident: spans in seconds, and the end since 1970; None where unknown.

    Never negative. The wall clock reaches from the first sign to the end and holds the others. In a
    hang the job lives as long as its scheduler calls it running.
    """
    begin, progress = log.training_start, log.last_progress
    stop = log.run_stop if log.run_stop is not None else progress
    ended = _ended(log, is_hang=is_hang)
    return {
        "ended": ended,
        "startup_seconds": _difference(log.first_sign, begin),
        "run_seconds": _difference(begin, stop),
        "wall_seconds": _difference(log.first_sign, ended),
        "seconds_after_last_progress": _difference(_last_progress(log), ended),
    }


def _last_progress(log: JobLog) -> float | None:
    if log.last_progress is not None or log.watched is None:
        has_worked = log.last_work not in {None, "start"}
        return log.last_progress if has_worked else log.last_progress or log.training_start
    # Lines of progress without a time stand before the scheduler's.
    return log.watched[0]


def _ended(log: JobLog, *, is_hang: bool) -> float | None:
    """When the ranks ended: by the resource manager's line, else the last sign of the job.

    A closing line may carry the start's time and a late one an old time, so that the latest counts.
    """
    killed = [f.first.time for f in log.select_kinds("time_limit", "preempted", "slurm_cancelled")]
    by_manager = next((time for time in killed if time is not None), None)
    ends = [t for t in (by_manager, log.last_progress, log.run_stop) if t is not None]
    if by_manager is None and log.last_sign is not None:
        ends.append(log.last_sign)
    if is_hang and log.watched is not None:
        ends.append(log.watched[1])
    return max(ends, default=None)


def _difference(begin: float | None, end: float | None) -> float | None:
    """The time between two moments; None where their order is impossible."""
    if begin is None or end is None or end < begin:
        return None
    return end - begin


_GOOD = frozenset({"success", "mlperf success", "succeeded", "ok", "finished", "planned stop"})
_PREEMPTED = frozenset({"preempted", "preempted_exit", "exit_line"})
_NAMED_ENDS = _PREEMPTED | {"time_limit"}
_OTHER_ENDS = ("time_limit", "slurm_cancelled", "torchrun_signal", "interrupted")
_SIGINT, _SIGHUP = frozenset({"2", "SIGINT"}), frozenset({"1", "SIGHUP"})
_MOVED_ON_SECONDS = 60.0
_MOST_EVIDENCE = 12
_LAUNCHES = frozenset({"launch_failure", "launch_system"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Incident:
    """What happened, by a log.

    Attributes:
        blame: rank, group (a node), workload, nobody, or unknown.
        cause: name of the first cause in ``kinds.KINDS`` or one of this module's; None when the log
            names none.
        ended: time at which the resource manager ended the ranks, else the last time in the log;
            seconds since 1970.
    """

    outcome: OutcomeOrRunning
    blame: Verdict
    ranks: tuple[int, ...]
    group: str | None
    cause: str | None
    failure_class: FailureClass | None
    reason: str
    first: Line | None
    evidence: tuple[Line, ...]
    ended: float | None
    startup_seconds: float | None
    run_seconds: float | None
    wall_seconds: float | None
    seconds_after_last_progress: float | None


def judge_log(log: JobLog, *, now_seconds: float | None = None) -> Incident:
    """The incident of a log; by ``now_seconds`` a running job is none that fell silent."""
    return _with_times(log, _judge(log, now_seconds))


def _judge(log: JobLog, now_seconds: float | None) -> Judgement:
    good = log.run_status in _GOOD
    end = _end_of(log)
    failure = find_first_cause(log, before=_horizon(log, end, good=good))
    if good:
        return _judge_success(log, end)
    if failure is not None and not _has_moved_on(log, failure, end):
        return _judge_failure(log, failure)
    if log.run_status is not None:
        return Judgement(
            outcome="not_converged", blame="workload", cause="not_converged",
            reason=f"The run ended by itself without its target (it reported: {log.run_status}).",
        )  # fmt: skip
    if end is not None:
        return _judge_end(end)
    if hidden := judge_hidden_cause(log):
        return hidden
    return judge_hang(log) or judge_silence(log, now_seconds)


def _has_moved_on(log: JobLog, failure: Judgement, end: Finding | None) -> bool:
    """Whether training moved on after the supposed cause, so that it was none.

    Buffered output is printed late, so the clock has to agree; and where the launcher reports
    ranks that failed, it was the cause whatever else was printed.
    """
    finding = failure.first
    if finding is not None and finding.kind in _LAUNCHES:
        return log.last_work is not None and finding.last_order < log.progress_order
    failed_exit = any(_bad_exit(f) for f in log.select_kinds("srun_exit", "exit_line"))
    if finding is None or failed_exit or finding.last_order > log.progress_order:
        return False
    if end is not None and end.kind == "torchrun_signal":
        return False
    failed_at, moved_at = finding.first.time, log.last_progress
    if failed_at is None or moved_at is None:
        return False
    return moved_at - failed_at > _MOVED_ON_SECONDS


def _horizon(log: JobLog, end: Finding | None, *, good: bool) -> int | None:
    """Position from which on lines are consequences of the end; None where it failed by itself."""
    orders = [end.order] if end is not None and _from_outside(log, end) else []
    if good:
        orders.append(log.run_stop_order)
    return min(orders, default=None)


def _from_outside(log: JobLog, end: Finding) -> bool:
    """Whether a manager or a person ended the job, and not its own ranks' failure."""
    if end.kind != "slurm_cancelled" or end.key == "JOB":
        return True
    return not any(_bad_exit(finding) for finding in log.select_kinds("srun_exit"))


def _bad_exit(finding: Finding) -> bool:
    how = finding.key
    if finding.kind != "srun_exit":
        # A launcher ends the other ranks by SIGTERM, which is not their failure.
        return not set(finding.codes) <= {0, -15, PREEMPTED}
    return not ("Terminated" in how or how == "Killed" or how.endswith(("code 143", "code 0")))


def _end_of(log: JobLog) -> Finding | None:
    ends = log.select_kinds(*_PREEMPTED - {"exit_line"}, *_OTHER_ENDS)
    ends += tuple(f for f in log.select_kinds("exit_line") if PREEMPTED in f.codes)
    better = [end for end in ends if end.kind in _NAMED_ENDS]
    return (better or ends or (None,))[0]


def _judge_success(log: JobLog, end: Finding | None) -> Judgement:
    reason = "The run reported its success."
    if log.run_status == "planned stop":
        after = "" if log.planned_minutes is None else f" after {log.planned_minutes:,.0f} min"
        saved = "" if log.last_step is None else f", at step {log.last_step}"
        reason = f"It ended itself as planned{after}{saved}."
    stop, after_stop = log.run_stop, end.first.time if end else None
    late = [f for f in log.findings if f.order > log.run_stop_order and _is_trouble(f)]
    if end is not None and end.order > log.run_stop_order:
        is_later = after_stop is not None and stop is not None and after_stop >= stop
        later = f" {(after_stop or 0) - (stop or 0):.0f} s later" if is_later else ""
        reason += f" It was ended by {KIND_BY_NAME[end.kind].says}{later}, which changes nothing."
    elif late:
        reason += " What failed afterwards was the leaving."
    return Judgement(outcome="succeeded", reason=reason)


def _is_trouble(finding: Finding) -> bool:
    return KIND_BY_NAME[finding.kind].tier < Tier.MILESTONE


def _judge_failure(log: JobLog, failure: Judgement) -> Judgement:
    if failure.cause in _LAUNCHES and log.last_work is None:
        return Judgement(
            outcome="failed", blame=failure.blame, cause="launch_failure",
            failure_class=failure.failure_class, first=failure.first,
            reason="It never started: "
            + ("the launcher refused it." if failure.cause == "launch_failure" else
               "the system could not start its tasks."),
        )  # fmt: skip
    return failure


def _judge_end(end: Finding) -> Judgement:
    outcome: OutcomeOrRunning = "cancelled"
    # A terminal sends these two: on Ctrl-C, and when it closes.
    by_hand = end.kind == "interrupted" or end.key in _SIGINT | _SIGHUP
    says = f"It was cancelled by {'a person' if by_hand else 'somebody'} outside"
    if end.kind == "time_limit":
        outcome, says = "time_limit", "It was still running when its time limit ended it"
    elif end.kind in _PREEMPTED:
        outcome, says = "preempted", "It was preempted"
    cause = "preemption" if outcome == "preempted" else outcome
    reason = f"{says}; nothing had failed."
    return Judgement(outcome=outcome, cause=cause, first=end, reason=reason)


def _with_times(log: JobLog, judgement: Judgement) -> Incident:
    is_hang = judgement.cause == "hang" and judgement.outcome == "unknown"
    names = ("outcome", "blame", "ranks", "group", "cause", "failure_class", "reason")
    fields: dict[str, Any] = {name: getattr(judgement, name) for name in names}
    return Incident(
        **fields | spans_of(log, is_hang=is_hang),
        first=judgement.first.first if judgement.first else None,
        evidence=_evidence(log, judgement),
    )


def _evidence(log: JobLog, judgement: Judgement) -> tuple[Line, ...]:
    lines = [judgement.first.first] if judgement.first else []
    lines += [f.first for f in log.findings if _is_trouble(f) and f is not judgement.first]
    return tuple(lines[:_MOST_EVIDENCE])
