"""Makes an episode of a suspect: when, who, in which phase, and what it cost."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.hiccups import drop_hiccups
from lockstep_reports.search.score import Scores, last_share, slow_phase
from lockstep_reports.search.strikes import split_strikes
from lockstep_reports.search.suspects import Suspect, find_stopped
from lockstep_reports.search.usual import beyond_usual
from lockstep_reports.verdict import evidence
from lockstep_reports.verdict.fetched_ahead import with_fetched_ahead
from lockstep_reports.verdict.stood_still import stood_still_seconds
from lockstep_reports.verdict.verdict import MAX_CONFIDENCE, Episode

# What knows of a little more such time than a stop's episode has steps that are late without it.
# Less of what an episode lost is another fault besides.
_MOST_KNOWN, _MIN_KNOWN_SHARE = 4 / 3, 0.8
_LEAST_SECONDS = 1e-9


def episode_of(steps: Steps, suspect: Suspect, *, is_found_stopped: bool = False) -> Episode:
    """The episode of a suspect, perhaps found by time in which its process stood still."""
    stretch, rows = suspect.stretch, list(suspect.rows)
    late_seconds = float(nan_stats.median(suspect.margin[suspect.late]))
    late_columns = np.arange(stretch.first, stretch.last + 1)[suspect.late]
    phase, phase_seconds = slow_phase(steps, rows, late_columns, late_seconds)
    stood_still = stood_still_seconds(steps, suspect, is_found_by_it=is_found_stopped)
    if stood_still is not None:
        phase = phase_seconds = None
    has_group = suspect.units.kind not in {"rank", "ranks"}
    episode = Episode(
        start_step=int(steps.numbers[stretch.first]),
        end_step=int(steps.numbers[stretch.last]),
        columns=stretch.columns,
        ongoing=stretch.last >= len(steps.numbers) - 2,
        ranks=tuple(steps.ranks[row] for row in rows),
        group=suspect.units.names[stretch.unit] if has_group else None,
        phase=phase,
        phase_seconds=phase_seconds,
        late_seconds=late_seconds,
        lost_by_step=np.nan_to_num(suspect.cost),
        last_share=float(last_share(suspect.margin[None])[0]),
        confidence=min(MAX_CONFIDENCE, 1 - stretch.chance),
        evidence=(),
        group_is_node=suspect.units.kind == "node",
        stood_still_seconds=stood_still,
    )
    num_units = max(2, len(suspect.units.names))
    episode = replace(episode, evidence=evidence.why_episode(episode, stretch, num_units))
    return with_fetched_ahead(steps, episode)


def stopped_episodes(steps: Steps, scores: Scores, window_steps: int) -> list[Episode]:
    """Those of ranks whose processes stood still again and again, in no one phase."""
    found = drop_hiccups(steps, scores, find_stopped(steps, scores, window_steps), window_steps)
    episodes = [episode_of(steps, suspect, is_found_stopped=True) for suspect in found]
    return [episode for episode in episodes if episode.stood_still_seconds is not None]


def drop_known_stops(stopped: Sequence[Episode], episodes: Sequence[Episode]) -> list[Episode]:
    """The stops of which other episodes of the same ranks do not know more such time.

    A process that stands still in each step is late in each, and no stop of it is unusual.
    """
    still_of_rank: Counter[int] = Counter()
    for episode in episodes:
        still = episode.stood_still_seconds or 0.0
        if still >= _MIN_KNOWN_SHARE * episode.lost_seconds:
            still_of_rank.update(dict.fromkeys(episode.ranks, still))
    return [
        each
        for each in stopped
        if still_of_rank[each.ranks[0]] < _MOST_KNOWN * (each.stood_still_seconds or 0.0)
    ]


def remove_stops(steps: Steps, scores: Scores, stopped: Sequence[Episode]) -> Steps:
    """The same steps as if these processes had not stood still, outside of waits for loaders."""
    if steps.blocked is None or not stopped:
        return steps
    seconds, blocked = np.zeros_like(steps.blocked), steps.blocked.copy()
    beyond_loader = np.maximum(steps.blocked - steps.phases["data"], 0.0)
    longer = np.nan_to_num(np.maximum(beyond_usual(scores.own_work), 0.0))
    for episode in stopped:
        row, columns = steps.ranks.index(episode.ranks[0]), episode.columns
        still = beyond_loader[row, columns]
        for part in split_strikes(steps, still > scores.threshold):
            cells = row, part + columns.start
            # Steps that are read together share what lengthened one of them.
            share = float(still[part].sum()) / max(float(longer[cells].sum()), _LEAST_SECONDS)
            seconds[cells], blocked[cells] = longer[cells] * min(1.0, share), 0.0
    return replace(steps.with_less_work(seconds), blocked=blocked)
