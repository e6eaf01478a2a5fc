"""What a report says of a recording: the verdict, and the episodes it rests on."""

from dataclasses import dataclass

from lockstep_catalogue.vocabulary import Verdict as VerdictKind
from lockstep_reports.arrays import Matrix
from lockstep_reports.wording import plural

# A bound on chance covers no wrong assumption, so no verdict is surer than this.
MAX_CONFIDENCE = 0.999


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Episode:
    """A stretch of steps in which some ranks kept all others waiting.

    Attributes:
        start_step: first late step, as the job counts; ``end_step`` is the last.
        columns: the same steps as columns of the matrices of ``Steps``.
        ongoing: still late at the last recorded step.
        group: the node when all its ranks were late together, or another group's name; else None.
        phase: phase of own work that was longer; None when none explains the lateness.
        phase_seconds: how much longer than the others' median, median over the steps.
        late_seconds: by how much the ranks came after all others, median over the steps.
        lost_by_step: wall time that the job lost in each step: seconds, [columns].
        last_share: share of the steps in which no other rank came later.
        confidence: one minus the bound of the probability of such an episode in a healthy run.
        group_is_node: whether ``group`` is the name of a node.
        busy_host: the ranks waited for cores that other processes had, and are not accused.
        stood_still_seconds: for which the process was stopped, where that is what the episode is
            of; else None.
    """

    start_step: int
    end_step: int
    columns: slice
    ongoing: bool
    ranks: tuple[int, ...]
    group: str | None
    phase: str | None
    phase_seconds: float | None
    late_seconds: float
    lost_by_step: Matrix
    last_share: float
    confidence: float
    evidence: tuple[str, ...]
    group_is_node: bool = True
    busy_host: bool = False
    stood_still_seconds: float | None = None

    @property
    def lost_seconds(self) -> float:
        """Wall time that the job lost over all the steps."""
        return float(self.lost_by_step.sum())


def rank_by_cost(episode: Episode) -> float:
    """Key that sorts episodes from the costliest to the cheapest."""
    return -episode.lost_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Who was slow. ``ranks`` are the culprits, costliest first; empty for nobody and unknown."""

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


def culprits(episode: Episode) -> str:
    """The culprits of an episode, to begin a sentence with."""
    if episode.group is None:
        name = "Rank " + ", ".join(map(str, episode.ranks))
    else:
        group = f"Node {episode.group}" if episode.group_is_node else episode.group.capitalize()
        name = f"{group} ({plural(len(episode.ranks), 'rank')})"
    return f"{name}, host busy" if episode.busy_host else name
