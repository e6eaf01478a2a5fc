"""From the readings of a tick to verdicts: signs, held until they last, told with their reason."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from lockstep_agent.collector import AnyReading, Part, Reading, Tier
from lockstep_agent.health.expected import Expectations
from lockstep_agent.health.facts import Facts, Labels
from lockstep_agent.health.gpu_signs import LinksSeen, gpu_signs
from lockstep_agent.health.limits import Limits
from lockstep_agent.health.node_signs import node_signs, of_the_parts
from lockstep_agent.health.parts import VERDICT_NAMES, kind_of, verdicts_in
from lockstep_agent.health.port_signs import port_signs
from lockstep_agent.health.signs import Sign
from lockstep_catalogue import Metric, gpu
from lockstep_catalogue.verdicts import EXPECTED_PORT_HEALTH, GPU_HEALTH, NO_REASON, NODE_HEALTH, OK


@dataclass(frozen=True, slots=True)
class Held:
    """Since when a sign has been there, when it was last, and whether it was told."""

    since_seconds: float
    last_seconds: float
    told: bool


@dataclass(slots=True)
class Memory:
    """What a judge knows from the ticks before."""

    links: LinksSeen = field(default_factory=LinksSeen)
    most_gpus: float = 0.0
    held: dict[Sign, Held] = field(default_factory=dict)


def hold(
    signs: Iterable[Sign], before: Mapping[Sign, Held], now_seconds: float
) -> dict[Sign, Held]:
    """What is held after these signs: told once it lasts, forgotten once it is gone as long."""
    there = set(signs)
    after: dict[Sign, Held] = {}
    for sign in there | set(before):
        known = before.get(sign)
        if sign in there:
            since = known.since_seconds if known else now_seconds
            told = bool(known and known.told) or now_seconds - since >= sign.hold_seconds
            after[sign] = Held(since, now_seconds, told)
        elif known and known.told and now_seconds - known.last_seconds < sign.hold_seconds:
            after[sign] = known
    return after


class Judge:
    """Keeps the memory between ticks.

    Args:
        expected: what the node must have.
        limits: from when on a sign counts.
    """

    def __init__(self, expected: Expectations | None = None, limits: Limits | None = None) -> None:
        self._expected, self._limits = expected or Expectations(), limits or Limits()
        self._memory = Memory()

    def judge(self, readings: Sequence[AnyReading], now_seconds: float) -> tuple[Reading, ...]:
        """The verdicts on every part and on the node, as readings.

        Args:
            readings: of one tick; verdicts among them, of collectors that judge for themselves,
                count for the node.
            now_seconds: on a monotonic clock.
        """
        facts, memory, expected = Facts(readings), self._memory, self._expected
        memory.most_gpus = max(memory.most_gpus, facts.value(gpu.GPU_COUNT, "nvml") or 0)
        signs = [
            *gpu_signs(facts, memory.links, self._limits),
            *port_signs(facts, expected.ports),
            *node_signs(facts, expected.gpus, memory.most_gpus),
        ]
        memory.held = hold(signs, memory.held, now_seconds)
        told = [sign for sign, held in memory.held.items() if held.told]
        parts = (*_verdicts(GPU_HEALTH, facts.of(gpu.GPU_UP), told),)
        ports = [(port.device,) for port in expected.ports]
        parts += (*_verdicts(EXPECTED_PORT_HEALTH, ports, told),)
        verdicts = verdicts_in((*facts.readings(VERDICT_NAMES), *parts))
        judged = [(kind_of(one.metric), one.verdict) for one in verdicts]
        node = [sign for sign in told if sign.metric is NODE_HEALTH]
        node += of_the_parts(judged)
        count = expected.gpus
        more = () if count is None else (Reading(gpu.GPU_COUNT, ("expected",), count),)
        return (*parts, *_verdicts(NODE_HEALTH, ((),), node), *more)


def _verdicts(metric: Metric, parts: Iterable[Labels], signs: Iterable[Sign]) -> Iterator[Reading]:
    """One reading for each reason of each part, or that it is ok."""
    reasons: dict[Labels, set[tuple[str, str]]] = {part: set() for part in parts}
    for sign in signs:
        if sign.metric is metric and sign.part in reasons:
            reasons[sign.part].add((sign.verdict, sign.reason))
    for part, found in sorted(reasons.items()):
        for verdict, reason in sorted(found) or [(OK, NO_REASON)]:
            yield Reading(metric, (*part, verdict, reason), 1)


class Verdicts:
    """The judge as a collector, so that the guard around it is everybody's."""

    name = "health"
    tier = Tier.EVERY_TICK

    def __init__(self, judge: Judge, clock: Callable[[], float] = time.monotonic) -> None:
        self._judge, self._clock = judge, clock
        self._heard: Sequence[Part] = ()

    def hear(self, parts: Sequence[Part]) -> None:
        """What the next run judges."""
        self._heard = parts

    def collect(self) -> Iterable[Reading]:
        """The verdicts."""
        heard, self._heard = tuple(chain.from_iterable(self._heard)), ()
        return self._judge.judge(heard, self._clock())
