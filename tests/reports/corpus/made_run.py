"""Runs whose truth is known: what each rank spends by owner, and what the others wait for it."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import STEP_PHASES

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
_SHARES = {"data": 0.1, "forward": 0.25, "backward": 0.45, "optimizer": 0.08, "other": 0.02}
"""Of the usual step, by phase; the rest is the transfer."""
_BEFORE_SYNC, _AFTER_SYNC = (
    ("data", "forward", "backward"),
    ("optimizer", "checkpoint", "eval", "other"),
)
_CORE, _IDLE, _QUEUED, _STOPPED, _COLLECTED = "core", "idle", "queued", "stopped", "collector"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What some ranks spend on top of their usual step.

    Attributes:
        owner: of the time that others then wait, in the truth.
        hits: the rank or ranks that each stroke hits: ``all``, ``others`` than rank 0, ``turns``
            (one after the other), ``random`` (any), or ``each`` rank at steps of its own.
        phase: in which it is spent.
        seconds: of a stroke; less than 0 for ranks that are quicker.
        spread: of the seconds, as the deviation of their logarithm.
        state: of the process meanwhile: ``core``, ``idle``, ``queued``, ``stopped``, or
            ``collector``: on a core for Python's garbage collector.
        every: steps from one stroke to the next.
        first, until: steps of the run in which it strikes.
        growth: seconds by which a stroke is longer after each step.
    """

    owner: str = "rank"
    hits: int | list[int] | str = 1
    phase: str = "backward"
    seconds: float = 0.03
    spread: float = 0.0
    state: str = _CORE
    every: int = 1
    first: int = 0
    until: int = 1 << 40
    growth: float = 0.0

    def spent(self, ranks: int, steps: int, draw: np.random.Generator) -> Array:
        """Seconds [ranks, steps]."""
        numbers = np.arange(steps)
        is_inside = (numbers >= self.first) & (numbers < self.until)
        lengths = self.seconds + self.growth * np.maximum(0, numbers - self.first)
        spread = draw.lognormal(0, self.spread, (ranks, steps)) if self.spread else 1.0
        struck = self._struck(ranks, numbers, draw) & is_inside
        spent: Array = np.where(struck, lengths * spread, 0.0)
        return spent

    def _struck(self, ranks: int, numbers: NDArray[np.int64], draw: np.random.Generator) -> Mask:
        rows = np.arange(ranks)[:, None]
        strokes = np.maximum(0, numbers - self.first) // self.every
        is_stroke = (numbers - self.first) % self.every == 0
        if self.hits == "each":
            # Each at a step of its own, and never in the same as another by design.
            offsets = draw.integers(0, self.every, (ranks, 1 + len(numbers) // self.every))
            own: Mask = (numbers % self.every) == offsets[rows, numbers // self.every]
            return own
        if self.hits == "turns":
            chosen: Mask = rows == strokes % ranks
        elif self.hits == "random":
            chosen = rows == draw.integers(0, ranks, len(numbers))[strokes]
        elif self.hits in ("all", "others"):
            chosen = rows >= (self.hits == "others")
        else:
            chosen = np.isin(rows, self.hits)
        struck: Mask = is_stroke & chosen
        return struck


class Spent(NamedTuple):
    """Time of a run.

    Attributes:
        start: seconds from the begin of the run at which each step began [ranks, steps].
        phases: seconds by phase [ranks, steps].
        arrival: at the step's collective, as ``start``; NaN where none is recorded.
        states: seconds of own work by state of the process [ranks, steps].
    """

    start: Array
    phases: dict[str, Array]
    arrival: Array
    states: dict[str, Array]

    @property
    def seconds(self) -> Array:
        """Length of each step [ranks, steps]."""
        seconds: Array = np.sum(list(self.phases.values()), axis=0)
        return seconds

    @property
    def run_seconds(self) -> float:
        """From the first begin to the last end."""
        return float((self.start + self.seconds).max() - self.start.min())


@dataclass(frozen=True, kw_only=True)
class MadeRun:
    """A run of some ranks.

    Attributes:
        step_seconds: of a usual step.
        kind: how ranks wait for each other: ``step`` (an all-reduce after each backward),
            ``hidden`` (the same, inside ``hidden_in`` and not recorded), ``rounds`` (each
            ``round_steps`` steps), ``server`` (for no other rank), ``stages`` of a pipeline.
        noise: of forward and backward: ``uniform``, ``normal``, ``lognormal``,
            ``exponential`` or ``dragging``, which goes on over about ten steps.
        jitter: its size as a share of the step.
        levels: deviation of the ranks' usual work, as a share.
        workload: deviation of the logarithm of what all ranks take longer in a step.
        uneven: the same for each rank by itself, as sequences of uneven lengths.
        drift: share by which all steps of the run are longer at its end.
        warm_up: steps at the begin, the first of which takes ten times as long.
        nodes: that the ranks are spread over.
        ended_after: steps after which a rank has finished while the others go on, by rank.
        costs: what is planted.
        is_bare: whether its pages have phases, and neither cores nor totals.
        levelled: owners whose costs no rank has more of than the rank that has least.
    """

    ranks: int = 4
    steps: int = 300
    step_seconds: float = 0.1
    kind: str = "step"
    hidden_in: str = "optimizer"
    round_steps: int = 10
    noise: str = "normal"
    jitter: float = 0.02
    levels: float = 0.005
    workload: float = 0.0
    uneven: float = 0.0
    drift: float = 0.0
    warm_up: int = 3
    nodes: int = 1
    ended_after: dict[int, int] = field(default_factory=dict)
    seed: int = 0
    costs: tuple[Cost, ...] = ()
    is_bare: bool = False
    levelled: frozenset[str] = frozenset()

    def spent(self) -> Spent:
        """Where the time of each rank and step went."""
        phases, states = self._own_work()
        before: Array = np.sum([phases[name] for name in _BEFORE_SYNC], axis=0)
        after: Array = np.sum([phases[name] for name in _AFTER_SYNC], axis=0)
        start, waited, arrival = self._meet(before, after)
        if self.kind == "hidden":
            phases[self.hidden_in] = phases[self.hidden_in] + waited
            states[_IDLE] = states[_IDLE] + waited
            arrival = np.full_like(arrival, np.nan)
        else:
            phases["sync"] = waited
        return Spent(start, phases, arrival, states)

    def lost_shares(self) -> dict[str, float]:
        """Share of the run that others waited, by owner; ``total`` of all, ``noise`` without any.

        What every rank spends in a step nobody waits for: an owner's share is what the run would
        be shorter if each rank spent as little as the one that spends least.
        """
        run_seconds = self.spent().run_seconds
        owners = frozenset(cost.owner for cost in self.costs)
        shares = {owner: self._lost_seconds({owner}) / run_seconds for owner in sorted(owners)}
        healthy = replace(self, costs=()).spent()
        waits = healthy.phases["sync"] - healthy.phases["sync"].min(axis=0)
        noise = float(waits.mean(axis=0).sum())
        shares |= {"total": self._lost_seconds(owners) / run_seconds, "noise": noise / run_seconds}
        return {owner: max(0.0, share) for owner, share in shares.items()}

    def causes(self) -> dict[str, str]:
        """What a report calls the cause of each owner's time; of several costs the last counts."""
        held = (_STOPPED, _QUEUED, _COLLECTED)
        return {cost.owner: cost.state if cost.state in held else cost.phase for cost in self.costs}

    def _lost_seconds(self, owners: AbstractSet[str]) -> float:
        levelled = replace(self, levelled=frozenset(owners))
        return self.spent().run_seconds - levelled.spent().run_seconds

    def _own_work(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Seconds by phase, and by state of the process [ranks, steps]."""
        shape = (self.ranks, self.steps)
        # Each planted cost draws by itself, so that a run without it is otherwise the same.
        draw = np.random.default_rng([self.seed, 0])
        scale = self.step_seconds * self._scale(draw)
        phases = {name: scale * _SHARES.get(name, 0.0) for name in STEP_PHASES}
        noise = self.step_seconds * self.jitter * self._noise(draw)
        phases["forward"] = phases["forward"] + noise / 3
        phases["backward"] = phases["backward"] + noise * 2 / 3
        states = {name: np.zeros(shape) for name in (_IDLE, _QUEUED, _STOPPED, _COLLECTED)}
        for number, cost in enumerate(self.costs):
            spent = cost.spent(*shape, np.random.default_rng([self.seed, 1, number]))
            # Who was quicker keeps nobody waiting.
            if cost.owner in self.levelled and cost.seconds >= 0:
                spent = np.broadcast_to(spent.min(axis=0), shape)
            phases[cost.phase] = np.maximum(phases[cost.phase] + spent, 0.0)
            if cost.state != _CORE:
                states[cost.state] += spent
        return phases, states

    def _scale(self, draw: np.random.Generator) -> Array:
        shape = (self.ranks, self.steps)
        scale = 1 + draw.normal(0, self.levels, (self.ranks, 1)) + np.zeros(shape)
        scale *= draw.lognormal(0, self.workload, self.steps)
        scale *= draw.lognormal(0, self.uneven, shape)
        scale *= np.linspace(1, 1 + self.drift, self.steps)
        scale[:, : self.warm_up] *= np.linspace(10, 1, self.warm_up + 1)[:-1]
        return scale

    def _noise(self, draw: np.random.Generator) -> Array:
        shape = (self.ranks, self.steps)
        if self.noise == "lognormal":
            return draw.lognormal(0, 1, shape)
        if self.noise == "uniform":
            return draw.uniform(0, 1, shape)
        if self.noise == "exponential":
            return draw.exponential(1, shape)
        noise = draw.normal(0, 1, shape)
        if self.noise == "dragging":
            for step in range(1, self.steps):
                noise[:, step] = 0.9 * noise[:, step - 1] + (1 - 0.9**2) ** 0.5 * noise[:, step]
        return np.abs(noise)

    def _meet(self, before: Array, after: Array) -> tuple[Array, Array, Array]:
        """Begin of each step, waiting with transfer, and arrival [ranks, steps]."""
        transfer = 0.1 * self.step_seconds
        clock = np.zeros(self.ranks)
        start, waited, arrival = (np.zeros_like(before) for _ in range(3))
        for step in range(self.steps):
            start[:, step] = clock
            arrived = clock + before[:, step]
            meets = self.kind != "rounds" or (step + 1) % self.round_steps == 0
            if self.kind == "server" or not meets:
                left = arrived + (transfer if self.kind == "server" else 0.0)
            elif self.kind == "stages":
                own = before[:, step]
                # Of so many micro-batches as stages each stage does its part in turn.
                left = clock.max() + own.sum() / self.ranks + own.max() * (1 - 1 / self.ranks)
                left = np.full(self.ranks, left + transfer)
            else:
                left = np.full(self.ranks, arrived.max() + transfer)
            waited[:, step] = left - arrived
            arrival[:, step] = arrived if meets else np.nan
            clock = left + after[:, step]
        return start, waited, arrival


def made_run(fields: dict[str, Any]) -> MadeRun:
    """The run that fields of the corpus describe; ``costs`` are those of ``Cost``."""
    costs = tuple(Cost(**cost) for cost in fields.get("costs", ()))
    return MadeRun(**{**fields, "costs": costs})
