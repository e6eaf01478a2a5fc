"""What lateness cost, and where the ranks' time went: a goodput statement that adds up."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_catalogue.vocabulary import STATE_BY_PHASE, GoodputState
from lockstep_reports import nan_stats
from lockstep_reports.recording.steps import Steps
from lockstep_reports.score import Scores
from lockstep_reports.verdict.verdict import Episode

_SECONDS_PER_HOUR = 3600.0
STATES: tuple[GoodputState, ...] = (
    "productive",
    "startup",
    "straggler_wait",
    "communication",
    "data_wait",
    "checkpoint",
    "evaluation",
    "other",
    "unknown",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What the episodes cost.

    Attributes:
        lost_seconds: wall time that the job lost.
        lost_ratio: the same as a share of the covered time; None when none is covered.
        lost_gpu_seconds: lost wall time x world size, for every rank pays.
        lost_money: in the currency of the price; None without a price.
    """

    lost_seconds: float
    lost_ratio: float | None
    lost_gpu_seconds: float
    lost_money: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """Where the time of all ranks went between their first and last recorded step.

    Attributes:
        seconds: by state, summed over the ranks; the states exclude each other.
        covered_seconds: sum of the states.
        ratio: productive share of it; None when nothing is covered.
    """

    seconds: dict[str, float]
    covered_seconds: float
    ratio: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """GPU time that one state took, as a share of all covered time, and in money with a price."""

    cause: str
    gpu_hours: float
    ratio: float
    money: float | None


def cost(
    steps: Steps,
    scores: Scores,
    episodes: Sequence[Episode],
    price_per_gpu_hour: float | None = None,
) -> Cost:
    """What the episodes cost the whole job."""
    lost = sum(episode.lost_seconds for episode in episodes)
    covered = float(np.nansum(steps.over_all(scores.step_seconds)))
    gpu_seconds = lost * steps.world_size
    money = None if price_per_gpu_hour is None else gpu_seconds * price_per_gpu_hour
    return Cost(
        lost_seconds=lost,
        lost_ratio=lost / covered if covered > 0 else None,
        lost_gpu_seconds=gpu_seconds,
        lost_money=None if money is None else money / _SECONDS_PER_HOUR,
    )


def goodput(steps: Steps, episodes: Sequence[Episode]) -> Goodput:
    """Seconds of all ranks by state.

    In an episode every other rank waits out its cost, and that wait is part of their
    communication; it is taken out of that as straggler_wait. The culprit's own longer work stays in
    the state of its phase. Time between rows, and time that no phase claims, is unknown.
    Start-up runs from the birth of each rank's page to its first recorded step.
    """
    seconds: dict[str, float] = dict.fromkeys(STATES, 0.0)
    for phase in STEP_PHASES:
        spent = float(np.nansum(steps.over_all(steps.phases[phase])))
        seconds[STATE_BY_PHASE[phase]] += spent
    wait = sum(
        episode.lost_seconds * (len(steps.members) - len(episode.ranks)) for episode in episodes
    )
    seconds["straggler_wait"] = min(wait, seconds["communication"])
    seconds["communication"] -= seconds["straggler_wait"]
    seconds["unknown"] = max(0.0, _between_first_and_last(steps) - sum(seconds.values()))
    seconds["startup"] = _startup(steps)
    covered = sum(seconds.values())
    return Goodput(
        seconds=seconds,
        covered_seconds=covered,
        ratio=seconds["productive"] / covered if covered > 0 else None,
    )


def causes(statement: Goodput, price_per_gpu_hour: float | None) -> tuple[Cause, ...]:
    """What each state but the productive one cost, dearest first; those without cost left out."""
    told = ((state, seconds) for state, seconds in statement.seconds.items() if seconds > 0)
    return tuple(
        Cause(
            cause=state,
            gpu_hours=seconds / _SECONDS_PER_HOUR,
            ratio=seconds / statement.covered_seconds,
            money=None
            if price_per_gpu_hour is None
            else seconds / _SECONDS_PER_HOUR * price_per_gpu_hour,
        )
        for state, seconds in sorted(told, key=lambda line: -line[1])
        if state != "productive"
    )


def _startup(steps: Steps) -> float:
    first = nan_stats.lowest(steps.start, axis=1)
    born = np.array([member.born_seconds or np.nan for member in steps.members])
    took = first - born
    # A window or a ring that has wrapped does not begin with the first step.
    whole = len(steps.numbers) > 0 and steps.numbers[0] <= 1
    return float(np.nansum(np.maximum(took, 0.0))) if whole else 0.0


def _between_first_and_last(steps: Steps) -> float:
    begin = nan_stats.lowest(steps.start, axis=1)
    end = nan_stats.highest(steps.start + steps.over_all(steps.seconds), axis=1)
    return float(np.nansum(end - begin))
