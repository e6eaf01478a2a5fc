"""The verdict on a recording, and the episodes that it rests on."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep_catalogue.vocabulary import Verdict as VerdictKind
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.late import Stretch
from lockstep_reports.wording import plural

# A bound on chance covers no wrong assumption, so no verdict is surer than this.
MAX_CONFIDENCE = 0.999
# What cost less of the run is a remark: it names nobody in the first line.
MIN_SHARE = 0.01


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EpisodeRecord:
    """A stretch of steps in which some ranks kept all others waiting.

    Attributes:
        start_step: first late step, as the job counts; ``end_step`` is the last.
        ongoing: still late at the last recorded step.
        late_seconds: by how much the ranks came after all others, median over the steps.
        last_share: share of the steps in which no other rank came later.
        confidence: one minus the bound of the probability of such an episode in a healthy run.
        group: a node or another group whose ranks were all late together; else null.
        phase: phase of own work that was longer; null when none explains the lateness.
        phase_seconds: how much longer than the others' median, median over the steps.
        cause: why the host held the process, where that is what the episode is of; else null.
    """

    start_step: int
    end_step: int
    ongoing: bool
    ranks: tuple[int, ...]
    late_seconds: float
    last_share: float
    confidence: float
    evidence: tuple[str, ...] = ()
    group: str | None = None
    phase: str | None = None
    phase_seconds: float | None = None
    cause: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Episode(EpisodeRecord):
    """The same with its place in the matrices of ``Steps``.

    Attributes:
        columns: its steps.
        lost_by_step: wall time that the job lost in each step: seconds, [columns].
        group_is_node: whether ``group`` is the name of a node.
    """

    columns: slice
    lost_by_step: Matrix
    group_is_node: bool = True

    @property
    def lost_seconds(self) -> float:
        """Wall time that the job lost over all the steps."""
        return float(self.lost_by_step.sum())


def span_of(steps: Steps, columns: slice) -> dict[str, Any]:
    """The fields of an episode that say when it was."""
    first, last = columns.start, columns.stop - 1
    return {
        "columns": columns,
        "start_step": int(steps.numbers[first]),
        "end_step": int(steps.numbers[last]),
        "ongoing": last >= len(steps.numbers) - 2,
    }


def rank_by_cost(episode: Episode) -> float:
    """Key that sorts episodes, the costliest first."""
    return -episode.lost_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Who was slow. ``ranks`` are the slow ones, costliest first; empty for nobody and unknown."""

    kind: VerdictKind
    ranks: tuple[int, ...] = ()
    group: str | None = None
    phase: str | None = None
    cause: str | None = None
    confidence: float | None = None
    evidence: tuple[str, ...] = ()


def unknown(*evidence: str, cause: str | None = None) -> Verdict:
    """Nobody can tell, and why."""
    return Verdict(kind="unknown", cause=cause, evidence=evidence)


def slow_workload(
    steps: Steps, stretch: Stretch, cause: str | None, sentence: str, *doubts: str
) -> Verdict:
    """The workload was slow in a stretch, as a sentence that begins with a small letter says."""
    start, end = int(steps.numbers[stretch.first]), int(steps.numbers[stretch.last])
    return Verdict(
        kind="workload",
        cause=cause,
        confidence=min(MAX_CONFIDENCE, 1 - stretch.chance),
        evidence=(f"From step {start} to {end}: {sentence}", *doubts),
    )


def slow_name(episode: Episode) -> str:
    """The slow ranks of an episode, to begin a sentence with."""
    if episode.group is None:
        name = "Rank " + ", ".join(map(str, episode.ranks))
    else:
        group = f"Node {episode.group}" if episode.group_is_node else episode.group.capitalize()
        name = f"{group} ({plural(len(episode.ranks), 'rank')})"
    return name


def saved_by_repair(seconds: Matrix, repaired: Matrix) -> Matrix:
    """Each rank's part of what the repair of all saves: seconds, [ranks, steps].

    The time above the slowest rank after the repair is cut into layers, and all ranks that reach
    into a layer hold it up together, so they share it: the Shapley value of the game in which
    repaired ranks save time together (the airport game of Littlechild and Owen, 1973). Times are as
    recorded, and with those of slow ranks as they should be: [ranks, steps]; NaN where unknown.
    """
    if len(seconds) == 0:
        return np.zeros_like(seconds)
    slowest_after = np.nan_to_num(repaired, nan=-np.inf).max(axis=0)
    above = np.maximum(np.nan_to_num(seconds, nan=-np.inf) - slowest_after, 0.0)
    above[~np.isfinite(above)] = 0.0
    order = np.argsort(-above, axis=0, kind="stable")
    heights = np.take_along_axis(above, order, axis=0)
    layers = heights - np.vstack([heights[1:], np.zeros_like(heights[:1])])
    sharers = np.arange(1, len(seconds) + 1)[:, None]
    # A rank takes part in its own layer and in all lower ones.
    parts = np.cumsum((layers / sharers)[::-1], axis=0)[::-1]
    saved: Matrix = np.empty_like(above)
    np.put_along_axis(saved, order, parts, axis=0)
    return saved
