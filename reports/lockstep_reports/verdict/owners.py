"""The verdict on what no rank alone cost, and the words for each owner of lost time."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lockstep_outcomes.progress.missing import rank_words
from lockstep_reports.recording.account import PLANNED_PHASES, Account
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import MIN_EFFECT_RATIO, Scores
from lockstep_reports.verdict.losses import Loss
from lockstep_reports.verdict.verdict import MIN_SHARE, Verdict
from lockstep_reports.wording import duration, list_ranks, percent, plural

_DOINGS = {
    "collector": "paused to collect garbage",
    "stopped": "stood still with their processes",
    "queued": "waited for cores that other processes had",
    "data": "loaded data",
    "other": "worked outside the marked phases",
    None: "came late, and no phase says why",
}
_MAX_NAMED_NODES = 4
_PLANNED = {"checkpoint": "checkpoints", "eval": "evaluations"}
_CAUSES = {
    "collector": "garbage_collection",
    "stopped": "process_stopped",
    "queued": "busy_host",
    "data": "loader",
}
"""Causes of a verdict, by the owner that took the time."""


def cause_of(owner: str | None) -> str | None:
    """The cause that a verdict states for an owner of time; None for a phase of own work."""
    return _CAUSES.get(owner or "", owner if owner in PLANNED_PHASES else None)


def loss_words(loss: Loss, world_size: int) -> str:
    """What the others waited for."""
    ranks = rank_words(loss.ranks)
    if len(loss.ranks) > 1:
        is_all = len(loss.ranks) == world_size
        if loss.kind in {"in_turns", "busy_host"}:
            ranks = f"{'all ranks' if is_all else f'ranks {list_ranks(loss.ranks)}'} in turn"
    if loss.cause in _PLANNED:
        often = f", every {loss.period_steps:,} steps" if loss.period_steps else ""
        return f"{_PLANNED[loss.cause]} of {ranks}{often}"
    doing = _DOINGS.get(loss.cause, f"worked in {loss.cause}")
    if loss.kind == "slow":
        where = "" if loss.cause is None else f", which {doing}"
        return f"{ranks}{where.replace('their processes', 'its process')}"
    steps = f", in {plural(loss.count, 'step')}" if loss.kind == "rare" else ""
    return f"ranks that {doing} ({ranks}{steps})"


def is_news(loss: Loss) -> bool:
    """Whether a loss without a slow rank is worth a verdict.

    What some ranks plan, or other processes take, is from a share of the run on; what hits all
    ranks alike, or is rare, must cost as much as a step must lose to be late, for chance does the
    same.
    """
    least = MIN_SHARE if loss.kind in {"planned", "busy_host"} else MIN_EFFECT_RATIO
    return loss.kind != "slow" and loss.lost_ratio >= least


def loss_sentence(loss: Loss, world_size: int) -> str:
    """What the run lost to an owner."""
    where = ""
    if loss.kind == "rare":
        where = f" The steps: {', '.join(map(str, loss.steps))}."
    words = loss_words(loss, world_size)
    return f"All waited for {words}: {percent(loss.lost_ratio)} of the run.{where}"


def judge_losses(steps: Steps, scores: Scores, verdict: Verdict, losses: Sequence[Loss]) -> Verdict:
    """The verdict, or where it names nobody that on the costliest loss that is news."""
    news = [loss for loss in losses if is_news(loss)]
    sentences = tuple(
        busy_sentence(steps, scores.account, loss)
        if loss.kind == "busy_host"
        else loss_sentence(loss, len(steps.members))
        for loss in news
    )
    if not news and scores.is_crowded and verdict == replace(verdict, kind="nobody", cause=None):
        evidence = (_write_waits(scores.account), *verdict.evidence)
        return replace(verdict, cause="busy_host", evidence=evidence)
    if not news or verdict.kind == "unknown":
        return verdict
    worst = news[0]
    if verdict.kind != "nobody":
        return replace(verdict, evidence=(*verdict.evidence, *sentences))
    if worst.kind == "busy_host":
        evidence = (*sentences, *verdict.evidence)
        return replace(verdict, cause="busy_host", evidence=evidence)
    is_turn = worst.kind == "in_turns"
    cause = cause_of(worst.cause)
    return Verdict(
        kind="in_turns" if is_turn else "planned" if worst.kind == "planned" else "rare",
        ranks=() if is_turn else worst.ranks,
        phase=worst.cause if cause in {None, "loader"} else None,
        cause=cause,
        evidence=(*sentences, *verdict.evidence),
    )


def busy_sentence(steps: Steps, account: Account, loss: Loss) -> str:
    """Who had to wait for a core, where, how long and at what cost."""
    rows = np.isin(steps.ranks, loss.ranks)
    waited = float(np.nansum(account.host["queued"][rows]))
    return (
        f"From step {loss.first_step} to {loss.last_step} other processes had the cores of "
        f"{rank_words(loss.ranks)} on {busy_nodes(steps, loss.ranks)}: they waited "
        f"{duration(waited)} for one. That cost {duration(loss.lost_seconds)}."
    )


def busy_nodes(steps: Steps, ranks: Sequence[int]) -> str:
    """The nodes of some ranks, in words."""
    nodes = list(dict.fromkeys(m.node for m in steps.members if m.rank in ranks))
    if len(nodes) > _MAX_NAMED_NODES:
        return plural(len(nodes), "node")
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(nodes)}"


def _write_waits(account: Account) -> str:
    """What share of all recorded time ranks waited for cores."""
    return (
        f"Ranks waited for a core in {percent(account.queued_ratio)} of their time, because other "
        "processes had them; little was lost beside that."
    )
