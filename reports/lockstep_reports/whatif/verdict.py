"""Draws the conclusion from a replay: some ranks, a stage, the workload, nobody, or unknown.

The limits on slowdown, simulation error and correlation are those of Lin et al., OSDI 2025: they
explain slowdowns from 1.03 on, discard replays that are 5 % off or more, and call a correlation of
0.9 between forward and backward an imbalance of sequence lengths.
"""

from dataclasses import dataclass, replace

import numpy as np

from lockstep_reports.arrays import Flags, Matrix
from lockstep_reports.chance import tail_bound
from lockstep_reports.recording.align import Alignment
from lockstep_reports.recording.operations import BACKWARD, FORWARD, OperationTrace
from lockstep_reports.verdict.verdict import MAX_CONFIDENCE, Episode, Verdict, unknown
from lockstep_reports.whatif.analysis import WORST_SHARE, Explanation, WhatIf, ask_what_if, explain
from lockstep_reports.whatif.graph import NoReplayError
from lockstep_reports.whatif.scenarios import step_seconds_of_one
from lockstep_reports.wording import duration, list_ranks, percent, plural

_AMBIGUOUS = "With one rank a stage, a slow rank and a heavy stage look alike."
_MAX_SHARE_OF_RANKS = 0.5  # more ranks than that are no exception
_MAX_REPLAYED = 512  # each costs a replay of all steps
_MIN_SHARE_OF_WORST = 0.5
_MIN_SLOWDOWN = 0.01
MIN_EXPLAINED = 0.5
"""Share of the slowdown that a slow part must explain."""
# From this correlation on long micro-batches are long forward and backward (Lin et al.), and that
# matters where they differ by so much.
_MIN_CORRELATION, _MIN_BATCH_SPREAD = 0.9, 0.05
# Shares of the slowdown that levelling must remove to be the cause; equally fast ranks only where
# batches are uneven too.
_MIN_EVEN_BATCHES, _MIN_EVEN_STAGES, _MIN_EVEN_RANKS = 0.5, 0.25, 0.25
_MIN_SHARE_OF_STAGE = 0.8  # of its ranks that are slow, for the stage to be slow itself


def worst_ranks(what_if: WhatIf) -> Flags | None:
    """The ranks that slow the job by at least half as much as the worst one.

    A mask [stages, shards, replicas]; None when none slows it by 1 %, or when too many do.
    """
    rank, slowdown = what_if.model.grid.rank, what_if.worker_slowdown
    num_replayed = min(rank.size, _MAX_REPLAYED, max(8, int(WORST_SHARE * rank.size)))
    candidates = np.lexsort((rank.ravel(), -slowdown.ravel()))[:num_replayed]
    # One at a time, all others ideal.
    stage_shard, replica = np.divmod(candidates, rank.shape[2])
    workers = stage_shard[:, None] == np.arange(rank[..., 0].size)
    seconds = step_seconds_of_one(what_if.model, replica, workers)
    excess = seconds.mean(axis=1) / what_if.ideal_seconds.mean() - 1
    if excess.max() < _MIN_SLOWDOWN:
        return None
    is_slow = excess >= _MIN_SHARE_OF_WORST * excess.max()
    # Where all candidates are slow, more ranks may be that were not replayed.
    if is_slow.all() and num_replayed < rank.size:
        return None
    mask = np.zeros(rank.size, bool)
    mask[candidates[is_slow]] = True
    if mask.mean() > _MAX_SHARE_OF_RANKS:
        return None
    return mask.reshape(rank.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowPart:
    """Who slowed a job: a ``rank``, ``group`` or ``stage``, with doubts about it."""

    kind: str
    group: str | None
    is_node: bool
    cause: str | None
    explanation: Explanation
    doubts: tuple[str, ...] = ()


def find_slow_part(trace: OperationTrace, what_if: WhatIf) -> SlowPart | None:
    """The stage or the ranks that slowed the job; None for neither."""
    if stage := _uneven_stage(what_if):
        return stage
    if ranks := _slower_ranks(trace, what_if):
        return ranks
    # Ideal batches would take the unevenness with them, so idealising says nothing there.
    if are_uneven(what_if):
        return None
    return _slow_workers(trace, what_if) or _slow_stage(what_if)


def _slower_ranks(trace: OperationTrace, what_if: WhatIf) -> SlowPart | None:
    """The ranks slower than their stage and replica, where they explain more than all else."""
    uneven = are_uneven(what_if)
    batches, stages, removed = _levelled(what_if)
    others = max(batches if uneven else 0.0, stages)
    # Uneven batches always hold a share of the slowdown, so half of it would be too much to ask.
    if removed < (_MIN_EVEN_RANKS if uneven else MIN_EXPLAINED) or removed <= others:
        return None
    mask = what_if.factors.slow_ranks
    if mask is None or not mask.any() or mask.mean() > _MAX_SHARE_OF_RANKS:
        return None
    return _part_of_ranks(trace, what_if, mask)


def _slow_workers(trace: OperationTrace, what_if: WhatIf) -> SlowPart | None:
    """Few ranks that explain the slowdown, unless they are all of a stage."""
    mask = worst_ranks(what_if)
    if mask is None:
        return None
    in_stage = mask.mean(axis=(1, 2))
    is_of_one_stage = len(mask) > 1 and np.count_nonzero(in_stage) == 1
    if is_of_one_stage and in_stage.max() >= _MIN_SHARE_OF_STAGE:
        return None
    part = _part_of_ranks(trace, what_if, mask)
    return part if (part.explanation.removed or 0.0) >= MIN_EXPLAINED else None


def _part_of_ranks(trace: OperationTrace, what_if: WhatIf, mask: Flags) -> SlowPart:
    explanation = explain(what_if.model, mask, what_if.seconds, what_if.ideal_seconds)
    group = _group_of(trace, explanation.ranks)
    return SlowPart(
        kind="rank" if group is None else "group",
        group=group,
        is_node=bool(trace.nodes),
        cause=None,
        explanation=explanation,
    )


def _group_of(trace: OperationTrace, ranks: tuple[int, ...]) -> str | None:
    """The node that consists of just these ranks, or ranks in sequence of nodes without names."""
    if len(ranks) == 1:
        return None
    names = {trace.nodes.get(rank) for rank in ranks}
    if len(names) == 1 and None not in names:
        (name,) = names
        members = [rank for rank, node in trace.nodes.items() if node == name]
        return name if len(members) == len(ranks) else None
    is_sequence = ranks[-1] - ranks[0] == len(ranks) - 1
    return f"ranks {ranks[0]} to {ranks[-1]}" if is_sequence and not trace.nodes else None


def _uneven_stage(what_if: WhatIf) -> SlowPart | None:
    """The heaviest stage, where level stages would save more than even batches or ranks."""
    batches, removed, ranks = _levelled(what_if)
    if removed < _MIN_EVEN_STAGES or removed <= max(batches if are_uneven(what_if) else 0.0, ranks):
        return None
    return _part_of_stage(what_if, what_if.factors.heaviest_stage, removed)


def _slow_stage(what_if: WhatIf) -> SlowPart | None:
    stages = what_if.stages
    if len(stages) <= 1:
        return None
    stage = int(np.argmax([explanation.removed or 0.0 for explanation in stages]))
    if (stages[stage].removed or 0.0) < MIN_EXPLAINED:
        return None
    return _part_of_stage(what_if, stage, None)


def _part_of_stage(what_if: WhatIf, stage: int, levelled: float | None) -> SlowPart:
    explanation = what_if.stages[stage]
    has_one_rank = len(explanation.ranks) == 1
    doubts = (_AMBIGUOUS,) if has_one_rank else ()
    if levelled is not None:
        doubts = (f"Stages of equal length would remove {percent(levelled)} of it.", *doubts)
    return SlowPart(
        kind="stage",
        group=f"stage {stage}",
        is_node=False,
        cause=None if has_one_rank else "stage_imbalance",
        doubts=doubts,
        explanation=explanation,
    )


def are_uneven(what_if: WhatIf) -> bool:
    """Whether micro-batches are long forward and backward alike, and differ enough to matter."""
    factors = what_if.factors
    if factors.correlation is None or factors.spread is None:
        return False
    return factors.correlation >= _MIN_CORRELATION and factors.spread >= _MIN_BATCH_SPREAD


def has_uneven_batches(what_if: WhatIf) -> bool:
    """Whether even batches would remove at least half, and more than level stages or ranks."""
    removed, stages, ranks = _levelled(what_if)
    return are_uneven(what_if) and removed >= _MIN_EVEN_BATCHES and removed > max(stages, ranks)


def _levelled(what_if: WhatIf) -> tuple[float, float, float]:
    """Shares of the slowdown that level batches, stages and ranks remove; 0 where unknown."""
    factors = what_if.factors
    return factors.batches or 0.0, factors.stages or 0.0, factors.ranks or 0.0


# Share of the typical loss of a step (median of the upper half) from which on a step counts as hit.
_LATE_SHARE = 0.5
_MIN_JOB_SLOWDOWN, _MAX_SIMULATION_ERROR = 1.03, 0.05
_SCATTERED = "Neither the worst ranks nor any stage explain half of it."


def conclude(trace: OperationTrace, what_if: WhatIf) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict, and the stretch of steps that it rests on if it names somebody."""
    error = what_if.simulation_error_ratio
    if error >= _MAX_SIMULATION_ERROR:
        why = (
            f"The replay is {percent(error)} off the recorded steps; from "
            f"{percent(_MAX_SIMULATION_ERROR)} on it is not trusted, for what slowed the job is "
            "not among the recorded operations."
        )
        return unknown(why), ()
    summary = _slowdown_sentence(what_if)
    if what_if.slowdown < _MIN_JOB_SLOWDOWN:
        return Verdict(kind="nobody", evidence=(summary,)), ()
    if has_uneven_batches(what_if):
        return _workload(what_if, summary), ()
    if part := find_slow_part(trace, what_if):
        return _name_slow_part(what_if, part, summary)
    return _judge_without_slow_part(what_if, summary), ()


def _judge_without_slow_part(what_if: WhatIf, summary: str) -> Verdict:
    factors = what_if.factors
    if (factors.ranks or 0.0) >= MIN_EXPLAINED and not np.any(factors.slow_ranks):
        rotating = (
            "Ranks take turns in being slow: equally fast ranks would remove "
            f"{percent(factors.ranks)} of the slowdown, but no few ranks cause half of it."
        )
        return Verdict(kind="workload", cause="rotating", evidence=(summary, rotating))
    if are_uneven(what_if):
        several = (
            f"Several causes together: even micro-batches would remove {percent(factors.batches)} "
            f"of the slowdown, level stages {percent(max(0.0, factors.stages or 0.0))}, equally "
            f"fast ranks {percent(factors.ranks)}; none of them is enough to blame."
        )
        return unknown(summary, several)
    return Verdict(kind="nobody", evidence=(summary, _SCATTERED))


def _slowdown_sentence(what_if: WhatIf) -> str:
    mean, ideal = what_if.seconds.mean(), what_if.ideal_seconds.mean()
    return (
        f"A step takes {duration(mean)}; with every operation ideal it would take "
        f"{duration(ideal)}: slowdown {what_if.slowdown:.3f}, {percent(what_if.waste_ratio)} of "
        "the time wasted."
    )


def _name_slow_part(
    what_if: WhatIf, part: SlowPart, summary: str
) -> tuple[Verdict, tuple[Episode, ...]]:
    explanation = part.explanation
    phase, phase_seconds, ratio = _phase(what_if, explanation.mask)
    lost = explanation.lost_by_step
    late = lost > _LATE_SHARE * np.median(lost[lost >= np.quantile(lost, 0.5)])
    columns = np.flatnonzero(late)
    stretch = slice(int(columns[0]), int(columns[-1]) + 1)
    hits = int(late[stretch].sum())
    is_stage = part.kind == "stage"
    units = len(what_if.stages) if is_stage else what_if.model.grid.rank.size
    # Null hypothesis: in each step any unit may cost most, with equal probability, independently of
    # other steps; durations may be distributed in any way. Multiplied by the number of units, any
    # of which could have been named.
    chance = min(1.0, units * tail_bound(hits, stretch.stop - stretch.start, 1 / max(2, units)))
    confidence = min(MAX_CONFIDENCE, 1 - chance)
    evidence = (
        summary,
        (
            f"Were {_name_of(part)} ideal, a step would take "
            f"{duration(explanation.without_seconds)}: "
            f"{percent(explanation.removed)} of the slowdown gone."
        ),
        f"Its {phase} takes {ratio:.2f} times the median of the others.",
        f"It cost time in {hits} of {plural(len(lost), 'step')}.",
        *part.doubts,
    )
    verdict = Verdict(
        kind="rank" if part.kind == "rank" else "group",
        ranks=explanation.ranks,
        group=part.group,
        phase=phase,
        cause=part.cause,
        confidence=confidence,
        evidence=evidence,
    )
    episode = _episode(what_if, part, verdict, stretch, hits)
    return verdict, (replace(episode, phase_seconds=phase_seconds),)


def _episode(
    what_if: WhatIf, part: SlowPart, verdict: Verdict, stretch: slice, hits: int
) -> Episode:
    steps, lost = what_if.model.grid.steps, part.explanation.lost_by_step[stretch]
    return Episode(
        start_step=int(steps[stretch.start]),
        end_step=int(steps[stretch.stop - 1]),
        columns=stretch,
        ongoing=stretch.stop == len(steps),
        ranks=verdict.ranks,
        late_seconds=float(np.median(lost)),
        lost_by_step=lost,
        last_share=hits / len(lost),
        confidence=verdict.confidence or 0.0,
        evidence=verdict.evidence,
        group=verdict.group,
        group_is_node=part.is_node,
        phase=verdict.phase,
    )


def _name_of(part: SlowPart) -> str:
    if part.group is not None:
        return part.group
    ranks = part.explanation.ranks
    return f"rank{'s' * (len(ranks) > 1)} {list_ranks(ranks)}"


def _phase(what_if: WhatIf, mask: Flags) -> tuple[str, float, float]:
    beyond = {}
    for name, phase in ((FORWARD, "forward"), (BACKWARD, "backward")):
        own, others = _medians(what_if, name, mask)
        beyond[phase] = (own - others, own / others if others else 1.0)
    phase = max(beyond, key=lambda name: beyond[name][0])
    return phase, *beyond[phase]


def _medians(what_if: WhatIf, name: str, mask: Flags) -> tuple[float, float]:
    """Median seconds of a type in a step: of the slow ranks, and of all others.

    The mask is [stages, shards, replicas].
    """
    model = what_if.model
    ops = np.flatnonzero(model.grid.select_type(name))
    flat = mask.reshape(-1, mask.shape[2])
    total: Matrix = np.zeros((*flat.shape, model.recorded.shape[2]))
    np.add.at(total, model.workers[ops], model.recorded[ops])
    own, others = total[flat], total[~flat]
    return float(np.median(own)), float(np.median(others)) if len(others) else 0.0


def _workload(what_if: WhatIf, summary: str) -> Verdict:
    factors = what_if.factors
    differ = (
        f"Within a rank and a step, micro-batches differ by {percent(factors.spread)} and are long "
        f"forward and backward alike (correlation {factors.correlation:.2f}): uneven sequences."
    )
    even = f"Micro-batches of equal length would remove {percent(factors.batches)} of the slowdown."
    return Verdict(
        kind="workload",
        phase="forward",
        cause="sequence_lengths",
        confidence=min(MAX_CONFIDENCE, factors.correlation or 0.0),
        evidence=(summary, differ, even),
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Replayed:
    """The result of a replay: the answers, or the sentence why there are none."""

    what_if: WhatIf | None
    why_not: str | None
    verdict: Verdict
    episodes: tuple[Episode, ...]


def replay_trace(trace: OperationTrace) -> Replayed:
    """Replays and judges a trace."""
    try:
        what_if = ask_what_if(trace)
    except NoReplayError as error:
        why = f"The trace cannot be replayed: {error}."
        return Replayed(what_if=None, why_not=why, verdict=unknown(why), episodes=())
    verdict, episodes = conclude(trace, what_if)
    episodes = tuple(_map_to_all_steps(episode, trace, what_if) for episode in episodes)
    return Replayed(what_if=what_if, why_not=None, verdict=verdict, episodes=episodes)


def _map_to_all_steps(episode: Episode, trace: OperationTrace, what_if: WhatIf) -> Episode:
    """The episode by columns of all recorded steps; a step that was not replayed lost nothing."""
    numbers, replayed = np.unique(trace.step), what_if.model.grid.steps[episode.columns]
    columns = np.searchsorted(numbers, replayed)
    first, last = int(columns[0]), int(columns[-1])
    lost = np.zeros(last - first + 1)
    lost[columns - first] = episode.lost_by_step
    return replace(episode, columns=slice(first, last + 1), lost_by_step=lost)


def realign(alignment: Alignment, replayed: Replayed | None) -> Alignment:
    """The alignment with the clocks of a replayed trace, by rank where one was set back."""
    if replayed is None or replayed.what_if is None:
        return alignment
    what_if = replayed.what_if
    clocks, rank = what_if.clocks, what_if.model.grid.rank
    shifted = np.nonzero(clocks.offset_seconds)
    pairs = zip(rank[shifted].tolist(), clocks.offset_seconds[shifted].tolist(), strict=True)
    return replace(
        alignment,
        offsets={f"rank {number}": seconds for number, seconds in sorted(pairs)},
        residual_seconds=clocks.residual_seconds,
        residual_p95_seconds=clocks.residual_p95_seconds,
    )
