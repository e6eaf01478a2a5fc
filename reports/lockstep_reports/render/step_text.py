"""The sentences of a report on steps: headline, story, evidence, caveats, end; and its cards."""

from lockstep_reports.job_report import Card
from lockstep_reports.render.missing_reasons import why_no_phases
from lockstep_reports.step_analysis import StepAnalysis
from lockstep_reports.summary import Ending
from lockstep_reports.verdict.verdict import Episode, culprits
from lockstep_reports.wording import clock, duration, percent, plural, printable

_ENDS = {
    "failed": "The job failed",
    "cancelled": "The job was cancelled",
    "preempted": "The job was preempted",
    "time_limit": "The job ran into its time limit",
    "not_converged": "The job did not converge",
}


def headline(analysis: StepAnalysis) -> str:
    """The verdict in one short sentence."""
    costliest = analysis.costliest_episode
    if costliest is None:
        return _headline_without_episode(analysis)
    return f"{culprits(costliest)} was slow{_in_phase(costliest.phase)}."


def _in_phase(phase: str | None) -> str:
    if phase is None:
        return ""
    return " outside the marked phases" if phase == "other" else f" in {phase}"


def _headline_without_episode(analysis: StepAnalysis) -> str:
    verdict = analysis.verdict
    if verdict.ranks:
        ranks = ", ".join(map(str, verdict.ranks))
        effect = "held up the job" if verdict.cause else "was slow"
        return f"{'Rank' if len(verdict.ranks) == 1 else 'Ranks'} {ranks}: {effect}."
    if verdict.kind == "workload":
        return "The workload was slow, no rank."
    if analysis.end_reason is not None:
        # Of a job that failed, the failure is the news, and not that nobody was slow.
        outcome = _ENDS.get(analysis.outcome, "The job ended")
        reason = printable(analysis.end_reason)
        # The name of an exception keeps its capitals.
        is_word = reason.split(" ", 1)[0][1:].islower()
        return f"{outcome}: {reason[:1].lower() if is_word else reason[:1]}{reason[1:]}"
    return "Nobody was slow." if verdict.kind == "nobody" else "Cannot tell who was slow."


def story(analysis: StepAnalysis) -> str:
    """The sentences after the headline: since when, how long, at what cost."""
    costliest = analysis.costliest_episode
    # Without an episode the first piece of evidence says why.
    if costliest is None:
        slow = "Nobody was slow. " if analysis.verdict.kind == "nobody" else ""
        return (slow if analysis.end_reason else "") + analysis.verdict.evidence[0]
    begin, end = analysis.episode_span(costliest)
    until = (
        "the last recorded step"
        if costliest.ongoing
        else f"step {costliest.end_step}{_in_brackets(end)}"
    )
    sentence = (
        f"From step {costliest.start_step}{_in_brackets(begin, ' UTC')} to {until} it cost "
        f"{duration(costliest.lost_seconds)} of wall time, "
        f"{percent(analysis.lost_step_ratio(costliest))} of each step."
    )
    num_others = len(analysis.episodes) - 1
    if not num_others:
        return sentence
    return (
        f"{sentence} With {plural(num_others, 'other episode')} the job lost "
        f"{duration(analysis.cost.lost_seconds)}."
    )


def _in_brackets(wall_seconds: float | None, zone: str = "") -> str:
    return "" if wall_seconds is None else f" ({clock(wall_seconds)}{zone})"


def further_evidence(analysis: StepAnalysis) -> tuple[str, ...]:
    """The evidence that is not part of the story."""
    evidence = analysis.verdict.evidence
    return evidence if analysis.costliest_episode else evidence[1:]


def caveats(analysis: StepAnalysis) -> tuple[str, ...]:
    """What was not read, and what was not judged."""
    others = [
        f"Attempt {attempt.number} is not in this report; it {_outcome_phrase(attempt.outcome)}."
        for attempt in analysis.others
    ]
    return (*analysis.steps.notes, *others)


def how_ended(analysis: StepAnalysis) -> str:
    """The end of the attempt, and the first rank to fail; empty where neither was recorded."""
    if analysis.outcome == "unknown" and not any(has_end(ending) for ending in analysis.endings):
        return ""
    sentence = f"Attempt {analysis.steps.attempt} {_outcome_phrase(analysis.outcome)}."
    for ending in analysis.endings:
        if ending.first:
            signal = ending.signal or f"exit code {ending.exit_code}"
            sentence += f" Rank {ending.rank} was the first to fail, by {signal}"
            sentence += f": {ending.exception}." if ending.exception else "."
    # With plain torchrun nobody wrote the order of the ends.
    if not any(ending.first for ending in analysis.endings):
        failed = next((ending for ending in analysis.endings if ending.exception), None)
        if failed is not None:
            sentence += f" Rank {failed.rank} ended with {failed.exception}."
    if analysis.end_reason is not None:
        sentence += f" {printable(analysis.end_reason)}"
    return sentence


def has_clock(analysis: StepAnalysis) -> bool:
    """Whether any episode has a time of day."""
    return any(analysis.episode_span(episode)[0] is not None for episode in analysis.episodes)


def has_end(ending: Ending) -> bool:
    """Whether anything was recorded of a rank's end."""
    values = (ending.exit_code, ending.signal, ending.last_step)
    return any(value is not None for value in values)


def episode_end(analysis: StepAnalysis, episode: Episode) -> str:
    """End of an episode for a column of a table; a running job may not have reached it."""
    # An episode that reaches the last step ends when the job does, or goes on.
    if not episode.ongoing and not has_clock(analysis):
        return f"step {episode.end_step}"
    if not episode.ongoing:
        return clock(analysis.episode_span(episode)[1])
    if analysis.outcome == "running":
        return "still going"
    return "at the last step" if analysis.outcome == "unknown" else "with the job"


def _outcome_phrase(outcome: str | None) -> str:
    if outcome in {"cancelled", "preempted"}:
        return f"was {outcome}"
    if outcome == "running":
        return "is running"
    if outcome in {None, "unknown"}:
        return "left no word of its end"
    return str(outcome)


def cards(analysis: StepAnalysis) -> tuple[Card, ...]:
    """Loss, price, duration and number of the steps, and the productive share; unknown left out."""
    summary = analysis.summary
    figures = [*_loss_cards(analysis)]
    if summary.median_seconds is not None:
        p95 = "" if summary.p95_seconds is None else f"p95 {duration(summary.p95_seconds)}"
        figures.append(Card(duration(summary.median_seconds), "median step", p95))
    if summary.count:
        figures.append(Card(f"{summary.count:,}", "steps", f"{summary.first} to {summary.last}"))
    # All time of such a recording is unknown, and 0 % productive would be false.
    if why_no_phases(analysis) is None and analysis.goodput.ratio is not None:
        share = percent(analysis.goodput.ratio)
        figures.append(Card(share, "productive", "of the time of all ranks"))
    return tuple(figures)


def _loss_cards(analysis: StepAnalysis) -> list[Card]:
    """None where nobody could be judged: a loss of 0 would look like a finding."""
    cost, num_ranks = analysis.cost, analysis.world_size
    if analysis.verdict.kind == "unknown" or not analysis.summary.count:
        return []
    figures = [
        Card(duration(cost.lost_seconds), "lost", f"{percent(cost.lost_ratio)} of the run"),
        Card(duration(cost.lost_gpu_seconds), "over all ranks", plural(num_ranks, "rank")),
    ]
    if cost.lost_money is not None:
        price = f"at {analysis.price_per_gpu_hour:g} a GPU-hour"
        figures.append(Card(f"{cost.lost_money:,.2f}", "lost money", price))
    return figures
