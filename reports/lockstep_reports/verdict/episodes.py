"""Makes an episode of a suspect: when, who, in which phase, and what it cost."""

from dataclasses import replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import last_share, slow_phase
from lockstep_reports.search.suspects import Suspect
from lockstep_reports.verdict import evidence
from lockstep_reports.verdict.fetched_ahead import with_fetched_ahead
from lockstep_reports.verdict.verdict import MAX_CONFIDENCE, Episode


def episode_of(steps: Steps, suspect: Suspect) -> Episode:
    """The episode of a suspect."""
    stretch, rows = suspect.stretch, list(suspect.rows)
    late_seconds = float(nan_stats.median(suspect.margin[suspect.late]))
    late_columns = np.arange(stretch.first, stretch.last + 1)[suspect.late]
    phase, phase_seconds = slow_phase(steps, rows, late_columns, late_seconds)
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
    )
    num_units = max(2, len(suspect.units.names))
    episode = replace(episode, evidence=evidence.why_episode(episode, stretch, num_units))
    return with_fetched_ahead(steps, episode)
