"""A trace replayed and judged; or why it could not be."""

from dataclasses import dataclass, replace

import numpy as np

from lockstep_reports.align import Alignment
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.verdict.verdict import Episode, Verdict
from lockstep_reports.whatif.analysis import WhatIf, analyse
from lockstep_reports.whatif.grid import NoReplayError
from lockstep_reports.whatif.verdict import conclude


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Replayed:
    """What a replay says.

    Attributes:
        what_if: the answers; None when the trace cannot be replayed.
        why_not: why it cannot; None when it can.
    """

    what_if: WhatIf | None
    why_not: str | None
    verdict: Verdict
    episodes: tuple[Episode, ...]


def replay_trace(trace: OperationTrace) -> Replayed:
    """Replays and judges a trace."""
    try:
        what_if = analyse(trace)
    except NoReplayError as error:
        why = f"The trace cannot be replayed: {error}."
        verdict = Verdict(kind="unknown", evidence=(why,))
        return Replayed(what_if=None, why_not=why, verdict=verdict, episodes=())
    verdict, episodes = conclude(trace, what_if)
    episodes = tuple(_on_all_steps(episode, trace, what_if) for episode in episodes)
    return Replayed(what_if=what_if, why_not=None, verdict=verdict, episodes=episodes)


def _on_all_steps(episode: Episode, trace: OperationTrace, what_if: WhatIf) -> Episode:
    """The episode by places among all recorded steps; what was not replayed lost nothing known."""
    numbers, replayed = np.unique(trace.step), what_if.model.grid.steps[episode.columns]
    places = np.searchsorted(numbers, replayed)
    lost = np.zeros(places[-1] - places[0] + 1)
    lost[places - places[0]] = episode.lost_by_step
    return replace(episode, columns=slice(int(places[0]), int(places[-1]) + 1), lost_by_step=lost)


def realigned(alignment: Alignment, replayed: Replayed | None) -> Alignment:
    """The clocks as a trace's collectives tell them, by rank where one was set back."""
    if replayed is None or replayed.what_if is None:
        return alignment
    what_if = replayed.what_if
    clocks, rank = what_if.clocks, what_if.model.grid.rank
    moved = np.nonzero(clocks.offset_seconds)
    pairs = zip(rank[moved].tolist(), clocks.offset_seconds[moved].tolist(), strict=True)
    return replace(
        alignment,
        offsets={f"rank {at}": seconds for at, seconds in sorted(pairs)},
        residual_seconds=clocks.residual_seconds,
        residual_p95_seconds=clocks.residual_p95_seconds,
    )
