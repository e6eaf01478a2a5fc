"""Replays a trace and judges it, or says why it cannot."""

from dataclasses import dataclass, replace

import numpy as np

from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.search.align import Alignment
from lockstep_reports.verdict.verdict import Episode, Verdict
from lockstep_reports.whatif.analysis import WhatIf, ask_what_if
from lockstep_reports.whatif.grid import NoReplayError
from lockstep_reports.whatif.verdict import conclude


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
        verdict = Verdict(kind="unknown", evidence=(why,))
        return Replayed(what_if=None, why_not=why, verdict=verdict, episodes=())
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
