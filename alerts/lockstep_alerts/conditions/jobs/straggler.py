"""A rank, or all ranks of a node, are later than their group by more than a share of the step."""

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep_alerts.conditions.condition import LIVE_WINDOW, Case, Condition
from lockstep_alerts.conditions.joins import (
    NODE_LABELS,
    ON_NODE,
    ON_RANK,
    RANK_LABELS,
    explained_by_load,
    explained_by_own_work,
    has_several_clocks,
    has_stood,
    node_is_late,
    phase_of_most_excess,
    select_training_jobs,
)
from lockstep_alerts.conditions.synthetic import (
    BY_DEVICE,
    HEALTHY,
    JOB,
    ONE_NODE,
    STAGES,
    TWO_CLOCKS,
    TWO_NODES,
    TWO_REPLICAS,
    Placement,
    Samples,
    Stretch,
    Timing,
    healthy,
    loads,
    moving,
    present,
    ranks_late,
    stepping,
    training_job,
)
from lockstep_alerts.reading.quantities import Ratio
from lockstep_catalogue import recorded
from lockstep_catalogue.labels import PHASE
from lockstep_catalogue.promql import by, select
from lockstep_catalogue.windows import ScrapeWindows

_LATE_RANK = 2
_SLOW_NODE_RANKS = (2, 3)
_STANDSTILL_SECONDS = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class _Late(Condition):
    """Ranks that are late by more than ``above_ratio`` of the mean step.

    Attributes:
        above_ratio: lateness as a share of the mean step.
    """

    DETECTED_AFTER = LIVE_WINDOW

    above_ratio: Ratio

    @property
    def _above(self) -> Mapping[str, float]:
        return {"backward": _extra_seconds(1.05 * self.above_ratio)}

    @property
    def _below(self) -> Mapping[str, float]:
        return {"backward": _extra_seconds(0.8 * self.above_ratio)}


class Straggler(_Late):
    """A rank is late in its group, and not its whole node with it."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Lateness ratio of each late rank, with its node, stage and phase in the labels."""
        late = f"{select(recorded.LATENESS_RATIO)} > {self.above_ratio:g}"
        return f"""(
  {late}
  and {ON_RANK} ({explained_by_own_work(self.above_ratio, RANK_LABELS)})
  and {select_training_jobs()}
  unless {has_several_clocks()}
  unless {has_stood(windows)}
  unless {ON_NODE} ({node_is_late(self.above_ratio)})
  unless {explained_by_load()}
)
* {ON_RANK} group_left ({PHASE.name})
  {phase_of_most_excess(windows, recorded.EXCESS, *RANK_LABELS)}"""

    def cases(self, timing: Timing) -> list[Case]:
        culprit = {**JOB, "rank": str(_LATE_RANK), "phase": "backward"}
        pause = {"checkpoint": _extra_seconds(2 * self.above_ratio)}
        whole_node = dict.fromkeys(_SLOW_NODE_RANKS, self._above)
        late = {_LATE_RANK: self._above}

        def job(extra: _Extra, places: tuple[Placement, ...] = ONE_NODE) -> list[Samples]:
            return _straggling(timing, extra, places)

        on_n1 = {**culprit, "node": "n1"}
        series = job(late)
        longer = sum(self._above.values()) / sum(HEALTHY.values())
        seconds = timing.fires_by_seconds
        all_of_it, half = (
            [*series, *loads(1 + share * longer, seconds, rank=_LATE_RANK)] for share in (1, 0.5)
        )
        return [
            Case("one rank late", series, on_n1),
            Case(
                "one rank of a stage late",
                job(late, TWO_REPLICAS),
                {**culprit, "node": "n2", "pp": "0"},
            ),
            Case("less late than that", job({_LATE_RANK: self._below})),
            Case("one rank writes the checkpoint", job({_LATE_RANK: pause})),
            Case("all ranks of a node are late", job(whole_node, TWO_NODES)),
            Case("stages of one rank are uneven", job(late, STAGES)),
            Case("one rank late by devices", job(late, BY_DEVICE), on_n1),
            Case("late by another clock than the others", job(late, TWO_CLOCKS)),
            _standstill(timing),
            Case("it has more data", all_of_it, None, seconds),
            Case("more data explains half of it", half, on_n1, seconds),
        ]


class StragglerNode(_Late):
    """All ranks of a node are late in their groups."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Highest lateness ratio of each late node, with the phase in the labels."""
        latest = by("max", select(recorded.LATENESS_RATIO), *NODE_LABELS)
        return f"""(
  {latest} > {self.above_ratio:g}
  and {ON_NODE} ({node_is_late(self.above_ratio)})
  and {ON_NODE} ({explained_by_own_work(self.above_ratio, NODE_LABELS)})
  and {select_training_jobs()}
  unless {has_several_clocks()}
  unless {has_stood(windows)}
)
* {ON_NODE} group_left ({PHASE.name})
  {phase_of_most_excess(windows, recorded.EXCESS, *NODE_LABELS)}"""

    def cases(self, timing: Timing) -> list[Case]:
        culprit = {**JOB, "node": "n2", "phase": "backward"}
        whole_node = dict.fromkeys(_SLOW_NODE_RANKS, self._above)
        slightly = dict.fromkeys(_SLOW_NODE_RANKS, self._below)

        def job(extra: _Extra, places: tuple[Placement, ...] = TWO_NODES) -> list[Samples]:
            return _straggling(timing, extra, places)

        return [
            Case("all ranks of a node late", job(whole_node), culprit),
            Case("all stages of a node late", job(whole_node, TWO_REPLICAS), culprit),
            Case("less late than that", job(slightly)),
            Case("one of its ranks late", job({_LATE_RANK: self._above})),
            Case("all ranks are alike", job({})),
        ]


_Extra = Mapping[int, Mapping[str, float]]
"""Seconds a step by phase that each late rank takes more."""


def _extra_seconds(ratio: float) -> float:
    """Seconds a step of one rank that are this share of the step that they lengthen."""
    return sum(HEALTHY.values()) * ratio / (1 - ratio)


def _standstill(timing: Timing) -> Case:
    """One step of two minutes in which one rank stood and all others waited: no straggler."""
    seconds = timing.onset_seconds + _STANDSTILL_SECONDS + timing.fires_within_seconds
    stood = ranks_late(_STANDSTILL_SECONDS, {_LATE_RANK: {"data": float(_STANDSTILL_SECONDS)}})
    after = timing.fires_within_seconds
    # It catches up with the clock within a second.
    moves = (
        Stretch(timing.onset_seconds, 1),
        Stretch(_STANDSTILL_SECONDS, 0),
        Stretch(1, _STANDSTILL_SECONDS + 1),
        Stretch(after - 1, 1),
    )
    return Case(
        "one rank stood still for one step",
        [
            *present(seconds),
            *moving(*moves),
            *stepping(healthy(timing.onset_seconds), stood, healthy(after)),
        ],
        None,
        timing.onset_seconds + _STANDSTILL_SECONDS + 2 * timing.windows.scrape_seconds,
    )


def _straggling(timing: Timing, extra: _Extra, places: tuple[Placement, ...]) -> list[Samples]:
    """A job in which ranks spend ``extra`` seconds a step more from the onset on."""
    late = ranks_late(timing.fires_within_seconds, extra)
    return training_job(healthy(timing.onset_seconds), late, places=places)
