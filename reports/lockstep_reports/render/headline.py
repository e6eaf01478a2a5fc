"""The sentence that a report begins with, and the ones that say what it leaves out."""

from lockstep_reports.report import Report, lost_step_ratio
from lockstep_reports.verdict.verdict import Episode, whom
from lockstep_reports.wording import clock, duration, percent, plural


def headline(report: Report) -> str:
    """The verdict in a few words."""
    worst = report.worst
    if worst is None:
        return _without_episode(report)
    return f"{whom(worst)} was slow{_in_phase(worst.phase)}."


def _in_phase(phase: str | None) -> str:
    if phase is None:
        return ""
    return " outside the marked phases" if phase == "other" else f" in {phase}"


def ended(report: Report, episode: Episode) -> str:
    """When an episode ended, for a column of a table: of a job that runs it may not have."""
    if not episode.ongoing:
        return clock(report.span(episode)[1])
    return "still going" if report.outcome in {"running", "unknown"} else "with the job"


def _without_episode(report: Report) -> str:
    verdict = report.verdict
    if verdict.ranks:
        ranks = ", ".join(map(str, verdict.ranks))
        held = "held up the job" if verdict.cause else "was slow"
        return f"{'Rank' if len(verdict.ranks) == 1 else 'Ranks'} {ranks}: {held}."
    if verdict.kind == "workload":
        return "The workload was slow, no rank."
    return "Nobody was slow." if verdict.kind == "nobody" else "Cannot tell who was slow."


def story(report: Report) -> str:
    """The sentences after the headline: since when, how long, what it cost."""
    worst = report.worst
    if worst is None:
        return report.verdict.evidence[0]
    start, end = report.span(worst)
    until = "the last recorded step" if worst.ongoing else f"step {worst.end_step}{_at(end)}"
    lost = (
        f"From step {worst.start_step}{_at(start, ' UTC')} to {until} it cost "
        f"{duration(worst.lost_seconds)} of wall time, "
        f"{percent(lost_step_ratio(report, worst))} of each step."
    )
    more = len(report.episodes) - 1
    if not more:
        return lost
    return (
        f"{lost} With {plural(more, 'other episode')} the job lost "
        f"{duration(report.cost.lost_seconds)}."
    )


def _at(wall_seconds: float | None, zone: str = "") -> str:
    return "" if wall_seconds is None else f" ({clock(wall_seconds)}{zone})"


def grounds(report: Report) -> tuple[str, ...]:
    """The evidence that the story has not told yet."""
    evidence = report.verdict.evidence
    return evidence if report.worst else evidence[1:]


def caveats(report: Report) -> tuple[str, ...]:
    """What a reader must know about what was not read or not judged."""
    others = [
        f"Attempt {attempt.number} is not in this report; it {_ended(attempt.outcome)}."
        for attempt in report.others
    ]
    return (*report.steps.notes, *others)


def how_ended(report: Report) -> str:
    """One sentence about the end of the attempt."""
    sentence = f"Attempt {report.steps.attempt} {_ended(report.outcome)}."
    failed = [ending for ending in report.endings if ending.first]
    for ending in failed:
        how = ending.signal or f"exit code {ending.exit_code}"
        sentence += f" Rank {ending.rank} was the first to fail, by {how}."
    return sentence


def _ended(outcome: str | None) -> str:
    if outcome in {"cancelled", "preempted"}:
        return f"was {outcome}"
    if outcome == "running":
        return "is running"
    if outcome in {None, "unknown"}:
        return "left no word of its end"
    return str(outcome)
