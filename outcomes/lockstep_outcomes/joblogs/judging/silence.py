"""Logs that tell no end: a wrapper hides the cause, it hangs, it goes on, or nobody can tell."""

from lockstep_outcomes.joblogs.judging.judgement import Judgement
from lockstep_outcomes.joblogs.model import JobLog
from lockstep_outcomes.progress.hangs import hang_limit_seconds

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
        outcome="failed", blame="unknown", cause="hidden", failure_class="unknown",
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
