"""The first line of a report on steps: of all that is true of the job the most severe."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lockstep_catalogue.vocabulary import Severity
from lockstep_outcomes.first_line import first_line
from lockstep_outcomes.progress.missing import rank_words
from lockstep_outcomes.uneven_ends import find_uneven_end
from lockstep_reports.analysis.ends import Standstill, standstill_sentence
from lockstep_reports.analysis.steps import StepAnalysis
from lockstep_reports.recording.steps import Steps
from lockstep_reports.verdict import sentences
from lockstep_reports.verdict.verdict import MIN_SHARE, Episode, slow_name
from lockstep_reports.wording import duration, percent, plural

# A job straggles from a slowdown of 1.1 on (the published what-if analysis), and a rank that has
# three quarters of the others' speed or less is NVRx's straggler.
_MODERATE_RATIO, _SEVERE_RATIO = 1 - 1 / 1.1, 0.25
SEVERITY_BY_CAUSE: dict[str | None, Severity] = {
    "gpu_oom": "out_of_memory",
    "host_oom": "out_of_memory",
    "hang": "hung",
}
"""Of a failure; of any other cause it is ``failed``."""
_NO_PHASE = (
    "Nothing inside the steps was seen: give lockstep.attach(model, optimizer) what the loop "
    "trains, or enter the phases."
)
_MOST_NAMED = 4
_OUTSIDE_ENDS = frozenset({"cancelled", "preempted", "time_limit", "not_converged"})


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding: a sentence with others that belong to it, and the share of the run lost by it."""

    severity: Severity
    sentence: str
    details: tuple[str, ...] = ()
    lost_ratio: float = 0.0


def findings(analysis: StepAnalysis) -> Iterator[Finding]:
    """What is true of the job, the most severe first; the first one is the headline."""
    if (launches := analysis.recording.launches) is not None:
        severity = _SEVERITY_OF_LAUNCHES.get(launches.kind, "unknown")
        yield Finding(severity, launches.sentence)
        return
    yield from _failures(analysis)
    yield from _standstills(analysis)
    yield from _uneven_end(analysis)
    yield from _not_finite(analysis)
    yield from _resumed(analysis)
    # Who stops a job asks why it ended, and not whom to blame.
    if analysis.outcome in _OUTSIDE_ENDS and analysis.recording.end:
        yield Finding("stopped", first_line(analysis.recording.end))
    slow = sorted(
        (*_slow(analysis), *_lost_without_a_slow_rank(analysis)), key=lambda each: -each.lost_ratio
    )
    yield from slow
    # Whether somebody was slow has an answer also where it is not the news.
    if not slow:
        yield _who_was_slow(analysis)


def _failures(analysis: StepAnalysis) -> Iterator[Finding]:
    if analysis.outcome != "failed":
        return
    if not analysis.recording.end:
        yield Finding("failed", "The job failed, and nothing tells why.")
        return
    cause = analysis.recording.end.get("cause")
    severity = SEVERITY_BY_CAUSE.get(cause, "failed")
    stands = tuple(standstill_sentence(s) for s in analysis.standstills if s.is_final)
    details = (*stands, *stack_sentences(analysis)) if cause == "hang" else ()
    yield Finding(severity, first_line(analysis.recording.end), details)


def _standstills(analysis: StepAnalysis) -> Iterator[Finding]:
    is_failure = analysis.outcome == "failed" and analysis.recording.end.get("cause") == "hang"
    stands = [s for s in analysis.standstills if not (is_failure and s.is_final)]
    if not stands:
        return
    longest = max(stands, key=lambda s: (s.is_now, s.seconds))
    total = sum(s.seconds for s in stands)
    share = _share(total, analysis)
    if not longest.is_now and share is not None and share < MIN_SHARE:
        return
    begin = "The job hangs" if longest.is_now else "The job stood still"
    details = [_standing_words(longest, share)]
    if len(stands) > 1:
        details.append(f"It stood still {len(stands)} times, {duration(total)} in all.")
    sentence = f"{begin} for {duration(longest.seconds)}: {longest.words}."
    yield Finding("hung", sentence, (*details, *stack_sentences(analysis)))


def _uneven_end(analysis: StepAnalysis) -> Iterator[Finding]:
    """Ranks that wait, or waited when they were ended, for ranks that have finished."""
    uneven = find_uneven_end(analysis.recording.steps.members)
    if uneven is not None and analysis.outcome in {"running", "unknown"}:
        stands = "stands" if analysis.outcome == "running" else "stood at its end"
        yield Finding("hung", f"The job {stands}: {uneven.words}.")


def _standing_words(standstill: Standstill, share: float | None) -> str:
    lasted = "has not moved yet" if standstill.is_now else "did not move again"
    end = f"It {lasted if standstill.is_final else 'moved again'}"
    return f"{end}." if share is None else f"{end}; {percent(share)} of the run was lost so."


def _share(seconds: float, analysis: StepAnalysis) -> float | None:
    stood = sum(s.seconds for s in analysis.standstills)
    run = stood + analysis.scores.covered_seconds
    return seconds / run if run > 0 else None


def _not_finite(analysis: StepAnalysis) -> Iterator[Finding]:
    losses = analysis.not_finite
    if losses is None or (losses.share < MIN_SHARE and not losses.at_end):
        return
    until = "to the end" if losses.at_end else f"to step {losses.last_step}"
    ranks = "" if losses.ranks is None else f" on {rank_words(losses.ranks)}"
    yield Finding(
        "not_finite",
        f"The loss is not finite from step {losses.first_step} {until}{ranks}: "
        f"{plural(losses.count, 'step')}, {percent(losses.share)} of the run.",
    )


def _resumed(analysis: StepAnalysis) -> Iterator[Finding]:
    """An attempt that went on from an older checkpoint than there was, or than was asked for."""
    resume = analysis.resume
    if resume is None:
        return
    parts = [f"Resumed from an older checkpoint, step {resume.step}"]
    if resume.passed_over:
        parts.append(f"{plural(resume.passed_over, 'newer one')} could not be used")
    if resume.steps_lost:
        parts.append(f"{plural(resume.steps_lost, 'step')} were done again")
    yield Finding("resumed", "; ".join(parts) + ".")


def _slow(analysis: StepAnalysis) -> Iterator[Finding]:
    costliest = analysis.costliest_episode
    if costliest is None:
        verdict = analysis.verdict
        if verdict.ranks and verdict.kind not in {"planned", "rare"}:
            ranks = rank_words(verdict.ranks)
            if verdict.cause in _HANG_CAUSES:
                sentence = f"The job hung: {ranks} held it up."
                yield Finding("hung", sentence, verdict.evidence[:1])
                return
            verb = "was" if len(verdict.ranks) == 1 else "were"
            effect = "held up the job" if verdict.cause else f"{verb} slow"
            yield Finding("slow", f"{ranks[:1].upper()}{ranks[1:]} {effect}.")
        elif verdict.kind == "workload":
            yield Finding("slow", "The workload was slow, no rank.")
        return
    lost = analysis.slow_lost_ratio
    # An episode that the verdict passes over, as noise of a busy host makes such, names nobody.
    is_named = analysis.verdict.kind in {"rank", "group"}
    if is_named and (lost is None or lost >= MIN_SHARE):
        own, others = (0.0, ()) if lost is None else _own_share(analysis, costliest)
        lost = own if own >= MIN_SHARE else lost
        share = "" if lost is None else f": {percent(lost)} of the run ({loss_word(lost)})"
        was = f"was slow{_name_phase(costliest.phase)}"
        if costliest.cause is not None:
            often = " again and again" if costliest.start_step < costliest.end_step else ""
            was = f"was slow, for {sentences.OWNER_OF_CAUSE[costliest.cause].of_it}{often}"
        where = _name_nodes(analysis, costliest)
        if analysis.steps.is_independent and lost is not None:
            share = f": {percent(lost)} of the job's updates are lost, and no other rank waited"
        yield Finding("slow", f"{slow_name(costliest)} {was}{where}{share}.", others, lost or 0.0)


def _own_share(analysis: StepAnalysis, costliest: Episode) -> tuple[float, tuple[str, ...]]:
    """Share of the run that the ranks of an episode cost, and a sentence on others that cost it."""
    covered, lost = analysis.scores.covered_seconds, dict[str, float]()
    for episode in analysis.episodes:
        name = slow_name(episode)
        lost[name] = lost.get(name, 0.0) + episode.lost_seconds / covered
    own = lost.pop(slow_name(costliest))
    most = sorted((name for name in lost if lost[name] >= MIN_SHARE), key=lambda name: -lost[name])
    words = [f"{name[:1].lower()}{name[1:]} ({percent(lost[name])})" for name in most[:_MOST_NAMED]]
    return own, (f"Slow too: {', '.join(words)}.",) if words else ()


def loss_word(lost_ratio: float) -> str:
    """Slight, moderate or severe: how bad a lost share of a run is."""
    if lost_ratio >= _SEVERE_RATIO:
        return "severe"
    return "moderate" if lost_ratio >= _MODERATE_RATIO else "slight"


def _lost_without_a_slow_rank(analysis: StepAnalysis) -> Iterator[Finding]:
    """What all waited for again and again, where no episode of a slow rank says it."""
    for loss in analysis.losses:
        if sentences.is_news(loss) and loss.kind != "busy_host":
            sentence = sentences.loss_sentence(loss, len(analysis.steps.members))
            yield Finding("slow", sentence, lost_ratio=loss.lost_ratio)


def _name_nodes(analysis: StepAnalysis, episode: Episode) -> str:
    """Where the slow ranks run, unless it is unknown or they are named by it."""
    is_known = all(member.node for member in analysis.steps.members)
    if not is_known or episode.group:
        return ""
    return f" on {_nodes_of(analysis.steps, episode.ranks)}"


def _nodes_of(steps: Steps, ranks: Sequence[int]) -> str:
    """The nodes of some ranks, in words."""
    nodes = list(dict.fromkeys(m.node for m in steps.members if m.rank in ranks))
    if len(nodes) > _MOST_NAMED:
        return plural(len(nodes), "node")
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(nodes)}"


_SEVERITY_OF_LAUNCHES: dict[str, Severity] = {"hang": "hung", "moving": "nobody"}
_HANG_CAUSES = frozenset({"hang", "deadlock", "mismatched collectives"})


def _name_phase(phase: str | None) -> str:
    if phase is None:
        return ""
    return " outside the marked phases" if phase == "other" else f" in {phase}"


def _who_was_slow(analysis: StepAnalysis) -> Finding:
    if analysis.verdict.cause == "busy_host":
        return _busy_host(analysis)
    costliest = analysis.costliest_episode
    if costliest is not None:
        remark = (
            f"{slow_name(costliest)} was late{_name_phase(costliest.phase)} from step "
            f"{costliest.start_step} to {costliest.end_step}: "
            f"{duration(analysis.slow_lost_seconds)} lost, "
            f"{percent(analysis.slow_lost_ratio)} of the run."
        )
        is_little = (analysis.slow_lost_ratio or 0.0) < MIN_SHARE
        beyond = " by more than 1 % of the run" if is_little else " beyond what a busy host makes"
        return Finding("nobody", f"{_nobody(analysis.steps)} was slow{beyond}.", (remark,))
    if not len(analysis.steps.numbers) and analysis.outcome != "running" and analysis.recording.end:
        return Finding("unknown", "No step was completed.")
    evidence = analysis.verdict.evidence[:1]
    if analysis.verdict.kind == "nobody":
        return Finding("nobody", f"{_nobody(analysis.steps)} was slow.", evidence)
    if analysis.verdict.cause == "hang":
        return Finding("hung", "The job hangs; which rank holds it up is not recorded.", evidence)
    why = _NO_PHASE if sees_no_phase(analysis) else "Cannot tell who was slow."
    return Finding("unknown", why, evidence)


def _nobody(steps: Steps) -> str:
    if not steps.missing_ranks:
        return "Nobody"
    return f"Nobody of the {len(steps.members):,} ranks of {steps.world_size:,} that were read"


def sees_no_phase(analysis: StepAnalysis) -> bool:
    """Whether the ranks recorded steps and in them no phase, as a loop without hooks does."""
    phases = analysis.steps.phases
    is_of_ranks = analysis.recording.source_kind == "pages"
    return is_of_ranks and not any(np.nansum(phases[p]) for p in phases if p != "other")


def _busy_host(analysis: StepAnalysis) -> Finding:
    busy, evidence = analysis.losses[:1], analysis.verdict.evidence[:1]
    if not busy or busy[0].kind != "busy_host":
        return Finding("nobody", "Nobody was slow: the hosts were busy with other work.", evidence)
    nodes = _nodes_of(analysis.steps, busy[0].ranks)
    why = f"{nodes} {'were' if nodes.startswith('nodes') else 'was'} busy with other work"
    cost = f"which cost {percent(busy[0].lost_ratio)} of the run"
    return Finding("nobody", f"Nobody was slow: {why}, {cost}.", evidence)


def stack_sentences(analysis: StepAnalysis) -> tuple[str, ...]:
    """Where the stacks of the ranks lie, and which rank left none."""
    stacks = analysis.recording.stacks
    if not stacks or not analysis.standstills:
        return ()
    left = [rank for rank, _ in stacks]
    members = [member for member in analysis.steps.members if member.rank not in left]
    without = [member.rank for member in members]
    none = f"; {rank_words(without)} left none" if without else ""
    if without and all(member.phase == "done" for member in members):
        none += ": it has finished" if len(without) == 1 else ": they have finished"
    return (f"Stacks of {rank_words(left)}: {stacks[0][1].parent}/*.stacks{none}.",)
