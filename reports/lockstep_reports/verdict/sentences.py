"""The sentences of a verdict: the words for each owner of lost time, and what a verdict rests on.

"Nobody" needs evidence: a late rank shows only where somebody's waiting for it was recorded, or its
own work apart from that of the others. Else the verdict is unknown.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lockstep_catalogue.limits import MAX_OTHER_RATIO, MIN_WAIT_RATIO
from lockstep_outcomes.progress.missing import rank_words
from lockstep_records.files.operations import NAMES
from lockstep_records.page.replicas import UNSEEN
from lockstep_reports import nan_stats
from lockstep_reports.chance import tail_bound
from lockstep_reports.recording.account import MAY_WAIT, PLANNED_PHASES, Account
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.candidates import Candidate
from lockstep_reports.search.late import FALSE_ALARM_PROBABILITY
from lockstep_reports.search.score import MIN_EFFECT_RATIO, Scores, last_share
from lockstep_reports.verdict.losses import Loss
from lockstep_reports.verdict.verdict import MIN_SHARE, Episode, Verdict, slow_name
from lockstep_reports.wording import duration, list_ranks, percent, plural

_MIN_WRITTEN_CHANCE, _MAX_WRITTEN_CHANCE = 1e-12, 0.05
# Rows of one rank that are missing among the others', before they may hide an episode.
_MAX_MISSING_RATIO, _MIN_MISSING_ROWS = 0.1, 3
_MAX_HIDDEN = 2.0
"""Of what makes a rank late, that one which nobody saw may be late by, where nobody is to blame."""
_MIN_SHARE_OF_LATENESS, _MAX_OPERATIONS = 0.5, 4
"""Of the lateness, from which on the operations of an episode differ, and how many are named."""
_LIKELY_SHARE = 0.7  # of the likeliest phase that hides waits


class Owner(NamedTuple):
    """Words for what makes ranks late.

    Attributes:
        doing: what such ranks did.
        cause: as a verdict states it; None for a phase of own work.
        subject: what one of them did, to begin a sentence with; of what the host took.
        of_it: the same after its name.
        share: the same as a part of the run.
    """

    doing: str
    cause: str | None = None
    subject: str = ""
    of_it: str = ""
    share: str = ""


OWNERS = {
    "stopped": Owner("stood still with their processes", "process_stopped",
                     "The process of rank {} stood still", "its process stood still",
                     "processes that stood still"),
    "collector": Owner("paused to collect garbage", "garbage_collection",
                       "Rank {} paused to collect garbage", "it paused to collect garbage",
                       "collecting garbage"),
    "queued": Owner("waited for cores that other processes had", "busy_host",
                    share="waiting for cores that other processes had"),
    "data": Owner("loaded data", "loader"),
    "other": Owner("worked outside the marked phases"),
    "checkpoint": Owner("checkpoints", "checkpoint"),
    "eval": Owner("evaluations", "eval"),
    None: Owner("came late, and no phase says why"),
}  # fmt: skip
OWNER_OF_CAUSE = {owner.cause: owner for owner in OWNERS.values() if owner.cause is not None}


def owner_of(name: str | None) -> Owner:
    """The words for an owner of time."""
    return OWNERS.get(name) or Owner(f"worked in {name}")


def loss_words(loss: Loss, world_size: int) -> str:
    """What the others waited for."""
    ranks, doing = rank_words(loss.ranks), owner_of(loss.cause).doing
    if len(loss.ranks) > 1 and loss.kind in {"in_turns", "busy_host"}:
        is_all = len(loss.ranks) == world_size
        # What all plan at one time is not in turn, and one of them takes longest.
        in_turn = "" if loss.cause in PLANNED_PHASES else " in turn"
        ranks = f"{'all ranks' if is_all else f'ranks {list_ranks(loss.ranks)}'}{in_turn}"
    if loss.cause in PLANNED_PHASES:
        often = f", every {loss.period_steps:,} steps" if loss.period_steps else ""
        return f"{doing} of {ranks}{often}"
    if loss.kind == "slow":
        where = "" if loss.cause is None else f", which {doing}"
        return f"{ranks}{where.replace('their processes', 'its process')}"
    steps = f", in {plural(loss.count, 'step')}" if loss.kind == "rare" else ""
    return f"ranks that {doing} ({ranks}{steps})"


def is_news(loss: Loss) -> bool:
    """Whether a loss without a slow rank is worth a verdict; chance makes all ranks alike late."""
    least = MIN_SHARE if loss.kind in {"planned", "busy_host"} else MIN_EFFECT_RATIO
    return loss.kind != "slow" and loss.lost_ratio >= least


def loss_sentence(loss: Loss, world_size: int) -> str:
    """What the run lost to an owner."""
    steps = "steps" if loss.count <= len(loss.steps) else "costliest steps"
    where = f" The {steps}: {', '.join(map(str, loss.steps))}." if loss.kind == "rare" else ""
    words = loss_words(loss, world_size)
    return f"All waited for {words}: {percent(loss.lost_ratio)} of the run.{where}"


def judge_losses(steps: Steps, scores: Scores, verdict: Verdict, losses: Sequence[Loss]) -> Verdict:
    """The verdict, or where it names nobody that on the costliest loss that is news."""
    news = [loss for loss in losses if is_news(loss)]
    if not news and scores.is_crowded and verdict.kind == "nobody":
        waits = (
            f"Ranks waited for a core in {percent(scores.account.queued_ratio)} of their time, "
            "because other processes had them; little was lost beside that."
        )
        return replace(verdict, cause="busy_host", evidence=(waits, *verdict.evidence))
    if not news or verdict.kind == "unknown":
        return verdict
    words = [loss_sentence(loss, len(steps.members)) for loss in news]
    worst = news[0]
    if verdict.kind != "nobody":
        return replace(verdict, evidence=(*verdict.evidence, *words))
    # The first sentence, that nobody kept the others waiting, is not true beside them.
    verdict = replace(verdict, evidence=(*words, *verdict.evidence[1:]))
    cause = owner_of(worst.cause).cause
    if worst.kind == "busy_host" or worst.kind == "slow":  # noqa: PLR1714  # mypy narrows by these
        return replace(verdict, cause="busy_host")
    return replace(
        verdict,
        kind=worst.kind,
        ranks=() if worst.kind == "in_turns" else worst.ranks,
        phase=worst.cause if cause in {None, "loader"} else None,
        cause=cause,
    )


def why_episode(steps: Steps, episode: Episode, candidate: Candidate) -> Iterator[str]:
    """Why an episode is one."""
    stretch, num_units = candidate.stretch, max(2, len(candidate.units.names))
    num_last, num_known = int(np.count_nonzero(candidate.margin > 0)), stretch.num_known
    # Null hypothesis: each of the units comes last with the same probability in every step. No
    # correction for the search: the sentence is about this stretch, the verdict's confidence is
    # corrected.
    chance, subject = tail_bound(num_last, num_known, 1 / num_units), slow_name(episode)
    # A process that is stopped now and then comes last no more often than by chance.
    if chance <= _MAX_WRITTEN_CHANCE:
        least = _MIN_WRITTEN_CHANCE
        bound = f"under {least:.0e}" if chance < least else f"at most {chance:.1g}"
        yield (
            f"{subject} came last in {num_last} of {num_known} steps; chance gives "
            f"{percent(1 / num_units)} (probability of so many or more {bound})."
        )
        subject = "It"
    yield (
        f"{subject} kept all others waiting {duration(episode.late_seconds)} a step (median of "
        f"the late ones); from {duration(stretch.threshold)} on it counts."
    )
    if episode.phase or not steps.has_phases:
        work = "work outside the marked phases" if episode.phase == "other" else episode.phase
        work = work or "own work"
        longer = duration(episode.phase_seconds or 0)
        yield f"Its {work} took {longer} longer than the median of the other ranks."
    else:
        yield "No phase of its own work explains it."
    yield from _compare_operations(steps, episode)
    end = ", the last one recorded." if episode.ongoing else "."
    intermittent = "" if stretch.is_steady else " It comes and goes: it is intermittent."
    if episode.start_step == episode.end_step:
        yield f"It was so in step {episode.start_step} alone."
        return
    yield (
        f"It was so in {stretch.num_late} of {num_known} steps, from step {episode.start_step} to "
        f"{episode.end_step}{end}{intermittent}"
    )


def _compare_operations(steps: Steps, episode: Episode) -> Iterator[str]:
    """The operations in which its ranks differ most from the others, who wait in one of them."""
    rows = steps.operations
    if rows is None:
        return
    inside = (rows.step >= episode.start_step) & (rows.step <= episode.end_step)
    is_slow, medians = np.isin(rows.rank, episode.ranks), dict[str, tuple[float, float]]()
    for code in np.unique(rows.code[inside]).tolist():
        chosen = inside & (rows.code == code)
        own, others = (rows.seconds[chosen & side] for side in (is_slow, ~is_slow))
        if len(own) and len(others):
            medians[NAMES[code]] = (float(np.median(own)), float(np.median(others)))
    least = _MIN_SHARE_OF_LATENESS * episode.late_seconds
    words = [
        f"{duration(own)} in {name}, the others {duration(others)}"
        for name, (own, others) in sorted(medians.items(), key=lambda item: -item[1][0])
        if abs(own - others) >= least
    ]
    if words:
        count = plural(len(np.unique(rows.step[inside])), "sampled step")
        yield f"In {count} it spent (median) {'; '.join(words[:_MAX_OPERATIONS])}."


def why_unknown(steps: Steps, scores: Scores, min_steps: int) -> str | None:
    """Why the recording is too little to judge; None when it is enough."""
    if len(steps.members) <= 1:
        return "Only one rank was read; lateness needs another rank to compare with."
    num_ranks_in_sync = np.count_nonzero(~np.isnan(scores.waits), axis=0)
    num_steps = int(np.count_nonzero(num_ranks_in_sync > 1))
    if num_steps >= min_steps:
        return None
    return (
        f"{plural(num_steps, 'step')} with a synchronisation of two ranks or more "
        f"{'is' if num_steps == 1 else 'are'} recorded; {min_steps} are needed."
    )


def why_nobody(steps: Steps, scores: Scores, late_seconds: float) -> Iterator[str]:
    """Why nobody is named, where episodes of late ranks lost so little of the run."""
    if late_seconds:
        yield (
            f"Ranks that were late lost {duration(late_seconds)}, under {percent(MIN_SHARE)} of "
            "the run; so little names nobody."
        )
    else:
        yield (
            f"No rank kept all others waiting by more than {duration(scores.threshold)} "
            f"({percent(MIN_EFFECT_RATIO)} of the median step) more often than chance explains."
        )
    share = np.nan_to_num(last_share(scores.rank_margin))
    row = int(np.argmax(share))
    yield (
        f"Last most often: rank {steps.ranks[row]}, in {percent(float(share[row]))} of the steps; "
        f"by chance {percent(1 / len(steps.members))}."
    )
    yield (
        "Thresholds aim at naming somebody, where nobody is slow, in at most one run in "
        f"{1 / FALSE_ALARM_PROBABILITY:,.0f}."
    )


def _hidden_seconds(steps: Steps) -> float:
    """What a rank that was not seen may be late in a step: what all that were seen waited at least.

    NaN where no wait is known.
    """
    shortest = nan_stats.number(nan_stats.median(nan_stats.lowest(steps.sync, axis=0)))
    return math.nan if shortest is None else shortest


def missing_ranks(steps: Steps, doubt: str = "") -> tuple[str, ...]:
    """A sentence on the ranks without a page, with what follows from that; empty without any."""
    missing = steps.missing_ranks
    hidden = _hidden_seconds(steps) if missing else math.nan
    bound = f", and held up the others by {duration(hidden)} a step at most"
    doubt = doubt or f"what they did is not judged{'' if math.isnan(hidden) else bound}"
    sentence = (
        f"{plural(len(missing), 'rank')} of {steps.world_size} left no readable page "
        f"({list_ranks(missing)}); {doubt}."
    )
    return (sentence,) if missing else ()


def why_blind(steps: Steps, scores: Scores) -> Iterator[str]:
    """A sentence for each reason why a slow rank might not show; empty where it would."""
    median, account = scores.median_step_seconds, scores.account
    longest = nan_stats.number(nan_stats.highest(nan_stats.median(steps.sync, axis=1), axis=0))
    if longest is not None and longest < MIN_WAIT_RATIO * median:
        yield (
            f"No rank waited for the others for more than {duration(longest)} a step, so the "
            f"waiting of this loop is not recorded or hidden in {_name_hiding_phase(account)}, and "
            'a late rank would not show. Put `with monitor.phase("sync"):` around what waits in '
            "there."
        )
    other = nan_stats.median_number(steps.phases["other"]) or 0.0
    if steps.has_phases and median and other / median > MAX_OTHER_RATIO:
        yield (
            f"{percent(other / median)} of a step lies in no marked phase; waiting in there is "
            'taken for work. Put `with monitor.phase("sync"):` around what waits for other ranks '
            "there."
        )
    has_device = np.array([bool(member.gpu_uuid) for member in steps.members])
    if steps.by_device is not None:
        by_host = int((has_device & (nan_stats.median(steps.by_device, axis=1) < 1)).sum())
        if by_host:
            yield (
                f"{plural(by_host, 'rank')} with a GPU recorded times of the host, which runs "
                "ahead of the device: a slow GPU need not show in them."
            )
    if any(str(UNSEEN["device"]) in member.unseen for member in steps.members):
        yield f"{UNSEEN['device'].sentence[0].upper()}{UNSEEN['device'].sentence[1:]}."
    if not _hidden_seconds(steps) <= _MAX_HIDDEN * scores.threshold:
        yield from missing_ranks(steps, "any of them may be the slow one")
    yield from _missing_rows(steps)


def _name_hiding_phase(account: Account) -> str:
    """The phase that is shorter on the ranks that have more other work to do, as waits are.

    Of two ranks either may wait for the other's work, and of noise alone too: both are named.
    """
    values = {name: account.own[name] for name in MAY_WAIT}
    values["other"] = values["other"] + account.unknown
    busy = account.own_work + account.unknown
    hidden = {}
    for name, seconds in values.items():
        own, rest = (v - nan_stats.median(v, axis=0) for v in (seconds, busy - seconds))
        hidden[name] = float(np.nansum(np.maximum(-own, 0) * np.maximum(rest, 0)))
    likely = [name for name in hidden if hidden[name] >= _LIKELY_SHARE * max(hidden.values())]
    return " or ".join(likely).replace("other", "the work outside the marked phases")


def _missing_rows(steps: Steps) -> Iterator[str]:
    # A rank that has ended its loop while others go on, as with uneven inputs, misses no step.
    ends = [m.last_step if m.phase == "done" else None for m in steps.members]
    has_ended = [steps.numbers > (np.inf if end is None else end) for end in ends]
    num_missing = (np.isnan(steps.seconds) & ~np.array(has_ended)).sum(axis=1)
    few = max(_MIN_MISSING_ROWS, _MAX_MISSING_RATIO * len(steps.numbers))
    worst, count = int(np.argmax(num_missing)), int(np.count_nonzero(num_missing > few))
    if count:
        yield (
            f"{plural(count, 'rank')} left no row of many steps (rank {steps.ranks[worst]}: "
            f"{num_missing[worst]:,} of {len(steps.numbers):,} are missing)."
        )
