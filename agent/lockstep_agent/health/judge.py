"""From the readings of a tick to verdicts: signs, held until they last, each with its reason."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from lockstep_agent.collector import AnyReading, Part, Reading, Tier
from lockstep_agent.health.signs import (
    Expectations,
    Facts,
    Labels,
    Limits,
    LinksSeen,
    Sign,
    gpu_signs,
    node_signs,
    part_signs,
    port_signs,
)
from lockstep_agent.health.verdicts import VERDICT_NAMES, kind_of, verdicts_in
from lockstep_catalogue import Metric, gpu, incidents


@dataclass(frozen=True, slots=True)
class Held:
    """History of a sign.

    Attributes:
        since_seconds: when it appeared.
        last_seconds: when it was last present.
        is_reported: whether it has lasted long enough to be a verdict.
    """

    since_seconds: float
    last_seconds: float
    is_reported: bool


def hold(
    signs: Iterable[Sign], before: Mapping[Sign, Held], now_seconds: float
) -> dict[Sign, Held]:
    """The signs that are held from now on.

    A sign is reported once it has lasted for its hold time, and forgotten once it has been absent
    for as long, so that a flickering one makes no flickering verdict.
    """
    present = set(signs)
    after: dict[Sign, Held] = {}
    for sign in present | set(before):
        held = before.get(sign)
        if sign in present:
            since = held.since_seconds if held else now_seconds
            lasts = now_seconds - since >= sign.hold_seconds
            after[sign] = Held(since, now_seconds, lasts or bool(held and held.is_reported))
        elif held and held.is_reported and now_seconds - held.last_seconds < sign.hold_seconds:
            after[sign] = held
    return after


class Judge:
    """Keeps the memory between ticks."""

    def __init__(self, expected: Expectations | None = None, limits: Limits | None = None) -> None:
        self._expected, self._limits = expected or Expectations(), limits or Limits()
        self._links, self._most_gpus = LinksSeen(), 0.0
        self._held: dict[Sign, Held] = {}

    def judge(self, readings: Sequence[AnyReading], now_seconds: float) -> tuple[Reading, ...]:
        """The verdicts on every part and on the node, as readings.

        Args:
            readings: of one tick; verdicts among them, of collectors that judge for themselves,
                count for the node.
            now_seconds: on a monotonic clock.
        """
        facts, expected = Facts(readings), self._expected
        # The driver no longer counts a GPU that fell off the bus, so the most is remembered.
        self._most_gpus = max(self._most_gpus, facts.value(gpu.GPU_COUNT, "nvml") or 0)
        signs = [
            *gpu_signs(facts, self._links, self._limits),
            *port_signs(facts, expected.ports),
            *node_signs(facts, expected.gpus, self._most_gpus),
        ]
        self._held = hold(signs, self._held, now_seconds)
        reported = [sign for sign, held in self._held.items() if held.is_reported]
        parts = (*_verdicts(incidents.GPU_HEALTH, facts.of(gpu.GPU_UP), reported),)
        ports = [(port.device,) for port in expected.ports]
        parts += (*_verdicts(incidents.EXPECTED_PORT_HEALTH, ports, reported),)
        verdicts = verdicts_in((*facts.readings(VERDICT_NAMES), *parts))
        part_verdicts = [(kind_of(verdict.metric), verdict.verdict) for verdict in verdicts]
        node = [sign for sign in reported if sign.metric is incidents.NODE_HEALTH]
        node += part_signs(part_verdicts)
        count = expected.gpus
        expected_count = () if count is None else (Reading(gpu.GPU_COUNT, ("expected",), count),)
        return (*parts, *_verdicts(incidents.NODE_HEALTH, ((),), node), *expected_count)


def _verdicts(metric: Metric, parts: Iterable[Labels], signs: Iterable[Sign]) -> Iterator[Reading]:
    """One reading for each reason of each part, or one that says ok."""
    reasons: dict[Labels, set[tuple[str, str]]] = {part: set() for part in parts}
    for sign in signs:
        if sign.metric is metric and sign.part in reasons:
            reasons[sign.part].add((sign.verdict, sign.reason))
    for part, part_reasons in sorted(reasons.items()):
        for verdict, reason in sorted(part_reasons) or [(incidents.OK, incidents.NO_REASON)]:
            yield Reading(metric, (*part, verdict, reason), 1)


class Verdicts:
    """The judge as a collector, so that the same guard contains its failures."""

    name = "health"
    tier = Tier.EVERY_TICK

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._parts: Sequence[Part] = ()

    def ingest(self, parts: Sequence[Part]) -> None:
        """Takes in what the next run judges."""
        self._parts = parts

    def collect(self) -> Iterable[Reading]:
        """The verdicts."""
        readings, self._parts = tuple(chain.from_iterable(self._parts)), ()
        return self._judge.judge(readings, time.monotonic())
