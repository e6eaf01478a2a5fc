"""Draws the conclusion from a replay: some ranks, a stage, the workload, nobody, or unknown.

The limits on slowdown, simulation error and correlation are those of Lin et al., OSDI 2025: they
explain slowdowns from 1.03 on, discard replays that are 5 % off or more, and call a correlation of
0.9 between forward and backward an imbalance of sequence lengths.
"""

from dataclasses import dataclass, replace

import numpy as np

from lockstep_reports.arrays import Flags, Matrix
from lockstep_reports.recording.operations import BACKWARD, FORWARD, OperationTrace
from lockstep_reports.search.align import Alignment
from lockstep_reports.search.chance import tail_bound
from lockstep_reports.verdict.verdict import MAX_CONFIDENCE, Episode, Verdict, unknown
from lockstep_reports.whatif import suspects
from lockstep_reports.whatif.analysis import WhatIf, ask_what_if
from lockstep_reports.whatif.grid import NoReplayError
from lockstep_reports.wording import duration, list_ranks, percent, plural

# Share of the typical loss of a step (median of the upper half) from which on a step counts as hit.
_LATE_SHARE = 0.5
_MIN_SLOWDOWN, _MAX_SIMULATION_ERROR = 1.03, 0.05
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
    if what_if.slowdown < _MIN_SLOWDOWN:
        return Verdict(kind="nobody", evidence=(summary,)), ()
    if suspects.has_uneven_batches(what_if):
        return _workload(what_if, summary), ()
    if culprit := suspects.find_culprit(trace, what_if):
        return _name_culprit(what_if, culprit, summary)
    return _judge_without_culprit(what_if, summary), ()


def _judge_without_culprit(what_if: WhatIf, summary: str) -> Verdict:
    factors = what_if.factors
    if (factors.ranks or 0.0) >= suspects.MIN_EXPLAINED and not np.any(factors.slow_ranks):
        return _rotating(what_if, summary)
    if suspects.are_uneven(what_if):
        return _several_causes(what_if, summary)
    return Verdict(kind="nobody", evidence=(summary, _SCATTERED))


def _slowdown_sentence(what_if: WhatIf) -> str:
    mean, ideal = what_if.seconds.mean(), what_if.ideal_seconds.mean()
    return (
        f"A step takes {duration(mean)}; with every operation ideal it would take "
        f"{duration(ideal)}: slowdown {what_if.slowdown:.3f}, {percent(what_if.waste_ratio)} of "
        "the time wasted."
    )


def _name_culprit(
    what_if: WhatIf, culprit: suspects.Culprit, summary: str
) -> tuple[Verdict, tuple[Episode, ...]]:
    explanation = culprit.explanation
    phase, phase_seconds, ratio = _phase(what_if, explanation.mask)
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
    episode = _episode(what_if, culprit, verdict, stretch, hits)
    return verdict, (replace(episode, phase_seconds=phase_seconds),)


def _episode(
    what_if: WhatIf, culprit: suspects.Culprit, verdict: Verdict, stretch: slice, hits: int
) -> Episode:
    """The stretch from the first hit step to the last, as columns of the replayed steps."""
    steps, lost = what_if.model.grid.steps, culprit.explanation.lost_by_step[stretch]
    return Episode(
        start_step=int(steps[stretch.start]),
        end_step=int(steps[stretch.stop - 1]),
        columns=stretch,
        ongoing=stretch.stop == len(steps),
        ranks=verdict.ranks,
        group=verdict.group,
        phase=verdict.phase,
        phase_seconds=None,
        late_seconds=float(np.median(lost)),
        lost_by_step=lost,
        last_share=hits / len(lost),
        confidence=verdict.confidence or 0.0,
        evidence=verdict.evidence,
        group_is_node=culprit.is_node,
    )


def _culprit_name(culprit: suspects.Culprit) -> str:
    if culprit.group is not None:
        return culprit.group
    ranks = culprit.explanation.ranks
    return f"rank{'s' * (len(ranks) > 1)} {list_ranks(ranks)}"


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
    ops = np.flatnonzero(model.grid.select_type(name))
    flat = mask.reshape(-1, mask.shape[2])
    total: Matrix = np.zeros((*flat.shape, model.recorded.shape[2]))
    np.add.at(total, model.workers[ops], model.recorded[ops])
    own, others = total[flat], total[~flat]
    return float(np.median(own)), float(np.median(others)) if len(others) else 0.0


def _workload(what_if: WhatIf, summary: str) -> Verdict:
    factors = what_if.factors
    evidence = (
        summary,
        (
            f"Within a rank and a step, micro-batches differ by {percent(factors.spread)} and are "
            f"long forward and backward alike (correlation {factors.correlation:.2f}): uneven "
            "sequences."
        ),
        f"Micro-batches of equal length would remove {percent(factors.batches)} of the slowdown.",
    )
    return Verdict(
        kind="workload",
        phase="forward",
        cause="sequence_lengths",
        confidence=min(MAX_CONFIDENCE, factors.correlation or 0.0),
        evidence=evidence,
    )


def _rotating(what_if: WhatIf, summary: str) -> Verdict:
    sentence = (
        "Ranks take turns in being slow: equally fast ranks would remove "
        f"{percent(what_if.factors.ranks)} of the slowdown, but no few ranks cause half of it."
    )
    return Verdict(kind="workload", cause="rotating", evidence=(summary, sentence))


def _several_causes(what_if: WhatIf, summary: str) -> Verdict:
    factors = what_if.factors
    sentence = (
        f"Several causes together: even micro-batches would remove {percent(factors.batches)} of "
        f"the slowdown, level stages {percent(max(0.0, factors.stages or 0.0))}, equally fast "
        f"ranks {percent(factors.ranks)}; none of them is enough to blame."
    )
    return unknown(summary, sentence)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Replayed:
    """The result of a replay.

    Attributes:
        what_if: the answers; None when the trace cannot be replayed.
        why_not: a sentence why it cannot; None when it can.
    """

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
