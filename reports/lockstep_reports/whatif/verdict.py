"""Draws the conclusion from a replay: some ranks, a stage, the workload, nobody, or unknown.

The limits on slowdown, simulation error and correlation are those of Lin et al., OSDI 2025: they
explain slowdowns from 1.03 on, discard replays that are 5 % off or more, and call a correlation of
0.9 between forward and backward an imbalance of sequence lengths.
"""

from dataclasses import dataclass

import numpy as np

from lockstep_reports.arrays import Flags, Matrix
from lockstep_reports.recording.operations import BACKWARD, FORWARD, OperationTrace
from lockstep_reports.search.chance import tail_bound
from lockstep_reports.verdict.verdict import MAX_CONFIDENCE, Episode, Verdict
from lockstep_reports.whatif.analysis import Explanation, WhatIf, explain
from lockstep_reports.whatif.culprits import worst_ranks
from lockstep_reports.wording import duration, percent, plural

_MAX_NAMED_RANKS = 8
# Share of the typical loss of a step (median of the upper half) from which on a step counts as hit.
_LATE_SHARE = 0.5
_SCATTERED = "Neither the worst ranks nor any stage explain half of it."
_AMBIGUOUS = "With one rank a stage, a slow rank and a heavy stage look alike."


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When a replay names somebody.

    Attributes:
        slowdown: ratio to the ideal step; below it nobody slowed the job.
        explained: share of the slowdown that a culprit must explain.
        simulation_error: from this ratio on the replay is not trusted.
        correlation: from it on long micro-batches are long forward and backward.
        batch_spread: by how much micro-batches must differ for that to matter, as a ratio.
        stage_share: share of a stage's ranks that must be slow for the stage to be the culprit.
    """

    slowdown: float = 1.03
    explained: float = 0.5
    simulation_error: float = 0.05
    correlation: float = 0.9
    batch_spread: float = 0.05
    stage_share: float = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class _Culprit:
    kind: str
    group: str | None
    is_node: bool
    cause: str | None
    explanation: Explanation
    mask: Flags
    doubts: tuple[str, ...] = ()


def conclude(
    trace: OperationTrace, what_if: WhatIf, limits: Limits | None = None
) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict, and the stretch of steps that it rests on if it names somebody."""
    limits = limits or Limits()
    error = what_if.simulation_error_ratio
    if error >= limits.simulation_error:
        why = (
            f"The replay is {percent(error)} off the recorded steps; from "
            f"{percent(limits.simulation_error)} on it is not trusted, for what slowed the job is "
            "not among the recorded operations."
        )
        return Verdict(kind="unknown", evidence=(why,)), ()
    summary = _slowdown_sentence(what_if)
    if what_if.slowdown < limits.slowdown:
        return Verdict(kind="nobody", evidence=(summary,)), ()
    culprit = _worker_culprit(trace, what_if, limits) or _stage_culprit(what_if, limits)
    if culprit is not None:
        return _name_culprit(what_if, culprit, summary)
    if _uneven_batches(what_if, limits):
        return _workload(what_if, summary), ()
    return Verdict(kind="nobody", evidence=(summary, _SCATTERED)), ()


def _slowdown_sentence(what_if: WhatIf) -> str:
    mean, ideal = what_if.seconds.mean(), what_if.ideal_seconds.mean()
    return (
        f"A step takes {duration(mean)}; with every operation ideal it would take "
        f"{duration(ideal)}: slowdown {what_if.slowdown:.3f}, {percent(what_if.waste_ratio)} of "
        "the time wasted."
    )


def _worker_culprit(trace: OperationTrace, what_if: WhatIf, limits: Limits) -> _Culprit | None:
    """Few ranks that explain the slowdown, unless they are all of a stage."""
    rank = what_if.model.grid.rank
    mask = worst_ranks(what_if)
    if mask is None:
        return None
    in_stage = mask.mean(axis=(1, 2))
    stage = int(np.argmax(in_stage))
    if (
        rank.shape[0] > 1
        and in_stage[stage] >= limits.stage_share
        and mask.sum() == mask[stage].sum()
    ):
        return None
    explanation = explain(what_if.model, mask, what_if.seconds, what_if.ideal_seconds)
    if (explanation.removed or 0.0) < limits.explained:
        return None
    group = _group_of(trace, explanation.ranks)
    return _Culprit(
        kind="rank" if group is None else "group",
        group=group,
        is_node=bool(trace.nodes),
        cause=None,
        explanation=explanation,
        mask=mask,
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


def _stage_culprit(what_if: WhatIf, limits: Limits) -> _Culprit | None:
    stages = what_if.stages
    if len(stages) <= 1:
        return None
    stage = int(np.argmax([explanation.removed or 0.0 for explanation in stages]))
    if (stages[stage].removed or 0.0) < limits.explained:
        return None
    mask = np.zeros(what_if.model.grid.rank.shape, bool)
    mask[stage] = True
    has_one_rank = mask[stage].size == 1
    return _Culprit(
        kind="stage",
        group=f"stage {stage}",
        is_node=False,
        cause=None if has_one_rank else "stage_imbalance",
        doubts=(_AMBIGUOUS,) if has_one_rank else (),
        explanation=stages[stage],
        mask=mask,
    )


def _name_culprit(
    what_if: WhatIf, culprit: _Culprit, summary: str
) -> tuple[Verdict, tuple[Episode, ...]]:
    explanation = culprit.explanation
    phase, phase_seconds, ratio = _phase(what_if, culprit.mask)
    lost = explanation.lost_by_step
    late = lost > _LATE_SHARE * np.median(lost[lost >= np.quantile(lost, 0.5)])
    columns = np.flatnonzero(late)
    stretch = slice(int(columns[0]), int(columns[-1]) + 1)
    hits = int(late[stretch].sum())
    is_stage = culprit.kind == "stage"
    units = len(what_if.stages) if is_stage else what_if.model.grid.rank.size
    # Null hypothesis: in each step any unit may cost most, with equal probability, independently of
    # other steps; durations may be distributed in any way. Multiplied by the number of units, any
    # of which could have been named.
    chance = min(1.0, units * tail_bound(hits, stretch.stop - stretch.start, 1 / max(2, units)))
    confidence = min(MAX_CONFIDENCE, 1 - chance)
    evidence = (
        summary,
        (
            f"Were {_culprit_name(culprit)} ideal, a step would take "
            f"{duration(explanation.without_seconds)}: "
            f"{percent(explanation.removed)} of the slowdown gone."
        ),
        f"Its {phase} takes {ratio:.2f} times the median of the others.",
        f"It cost time in {hits} of {plural(len(lost), 'step')}.",
        *culprit.doubts,
    )
    verdict = Verdict(
        kind="rank" if culprit.kind == "rank" else "group",
        ranks=explanation.ranks,
        group=culprit.group,
        phase=phase,
        cause=culprit.cause,
        confidence=confidence,
        evidence=evidence,
    )
    episode = _episode(what_if, culprit, verdict, stretch, hits=hits, phase_seconds=phase_seconds)
    return verdict, (episode,)


def _episode(
    what_if: WhatIf,
    culprit: _Culprit,
    verdict: Verdict,
    stretch: slice,
    *,
    hits: int,
    phase_seconds: float,
) -> Episode:
    """The steps in which the culprit cost time, as columns of the replayed steps.

    Args:
        what_if: the replay.
        culprit: who it is.
        verdict: that names it.
        stretch: columns from the first hit step to the last.
        hits: number of hit steps.
        phase_seconds: how much longer its phase was than the others', in seconds.
    """
    steps, lost = what_if.model.grid.steps, culprit.explanation.lost_by_step[stretch]
    return Episode(
        start_step=int(steps[stretch.start]),
        end_step=int(steps[stretch.stop - 1]),
        columns=stretch,
        ongoing=stretch.stop == len(steps),
        ranks=verdict.ranks,
        group=verdict.group,
        phase=verdict.phase,
        phase_seconds=phase_seconds,
        late_seconds=float(np.median(lost)),
        lost_by_step=lost,
        last_share=hits / len(lost),
        confidence=verdict.confidence or 0.0,
        evidence=verdict.evidence,
        group_is_node=culprit.is_node,
    )


def _culprit_name(culprit: _Culprit) -> str:
    if culprit.group is not None:
        return culprit.group
    ranks = culprit.explanation.ranks
    more = ", ..." if len(ranks) > _MAX_NAMED_RANKS else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:_MAX_NAMED_RANKS]))}{more}"


def _phase(what_if: WhatIf, mask: Flags) -> tuple[str, float, float]:
    """The slowest computation compared with the others': phase, seconds beyond, and ratio."""
    beyond = {}
    for name, phase in ((FORWARD, "forward"), (BACKWARD, "backward")):
        own, others = _medians(what_if, name, mask)
        beyond[phase] = (own - others, own / others if others else 1.0)
    phase = max(beyond, key=lambda name: beyond[name][0])
    return phase, *beyond[phase]


def _medians(what_if: WhatIf, name: str, mask: Flags) -> tuple[float, float]:
    """Median seconds of a type in a step: of the culprits, and of all others.

    The mask is [stages, shards, replicas].
    """
    model = what_if.model
    ops = np.flatnonzero(model.grid.of_type(name))
    flat = mask.reshape(-1, mask.shape[2])
    total: Matrix = np.zeros((*flat.shape, model.recorded.shape[2]))
    np.add.at(total, model.workers[ops], model.recorded[ops])
    own, others = total[flat], total[~flat]
    return float(np.median(own)), float(np.median(others)) if len(others) else 0.0


def _uneven_batches(what_if: WhatIf, limits: Limits) -> bool:
    correlation, spread = what_if.batch_correlation, what_if.batch_spread
    if correlation is None or spread is None:
        return False
    return correlation >= limits.correlation and spread >= limits.batch_spread


def _workload(what_if: WhatIf, summary: str) -> Verdict:
    evidence = (
        summary,
        (
            f"Micro-batches differ by {percent(what_if.batch_spread)} and are long forward and "
            f"backward alike (correlation {what_if.batch_correlation:.2f}): uneven sequences."
        ),
        _SCATTERED,
    )
    return Verdict(
        kind="workload",
        phase="forward",
        cause="sequence_lengths",
        confidence=min(MAX_CONFIDENCE, what_if.batch_correlation or 0.0),
        evidence=evidence,
    )
