"""From the readings of a tick to verdicts: signs, held until they last, each with its reason."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from lockstep_agent.collector import AnyReading, Part, Reading, Tier
from lockstep_agent.exposition.text import Exposition
from lockstep_catalogue import METRICS, Metric, agent, fabric, gpu, incidents
from lockstep_catalogue.incidents import (
    DEGRADED,
    EXPECTED_PORT_HEALTH,
    FAILED,
    GPU_HEALTH,
    NO_REASON,
    NODE_HEALTH,
    OK,
)
from lockstep_catalogue.labels import DEVICE, GPU, UUID, VERDICT

_GIGABIT_BYTES = 125_000_000
_PORT = re.compile(r"(?P<device>[^\s:/]{1,64})(:(?P<rate>[0-9]{1,5}(\.[0-9]{1,3})?))?")


@dataclass(frozen=True, slots=True)
class ExpectedPort:
    """A port that must be up, at this rate or better where one is given.

    Attributes:
        rate: bytes a second in each direction; None for any.
    """

    device: str
    rate: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectations:
    """What the node must have; None and empty mean what was seen since the start."""

    gpus: int | None = None
    ports: tuple[ExpectedPort, ...] = ()


def read_port(text: str) -> ExpectedPort:
    """The port in ``DEVICE`` or ``DEVICE:GIGABITS``; ValueError where it is neither."""
    parts = _PORT.fullmatch(text)
    if parts is None or not text.isprintable():
        raise ValueError(f"{text!r} is not DEVICE or DEVICE:GIGABITS, such as eth0 or mlx5_0:200")
    rate = parts["rate"]
    return ExpectedPort(parts["device"], float(rate) * _GIGABIT_BYTES if rate else None)


Labels = tuple[str, ...]
# Recovery actions of the driver that can wait until the job has ended; the others cannot.
_CAN_WAIT = frozenset({"drain_p2p", "recover_imex"})
_FLAGS = (
    (gpu.GPU_REMAP_FAILED, (), FAILED, "remap_failed"),
    (gpu.GPU_REMAP_PENDING, (), DEGRADED, "remap_pending"),
    (gpu.GPU_RETIRED_PENDING, (), DEGRADED, "retirement_pending"),
    (gpu.GPU_SRAM_THRESHOLD_EXCEEDED, (), FAILED, "sram_threshold"),
    # Volatile counts begin with the driver; aggregate ones hold errors that were repaired long ago.
    (gpu.GPU_ECC_ERRORS, ("uncorrected", "volatile"), DEGRADED, "uncorrected_ecc"),
)
_UP = (fabric.PORT_UP, fabric.NET_UP)
_RATE = (fabric.PORT_RATE, fabric.NET_SPEED)
_PRESENT = (fabric.PORT_INFO, *_UP, *_RATE)


class Facts:
    """Finds values by metric and labels; what no collector read is absent.

    Args:
        readings: of all collectors, in one tick; the first reading of a series counts.
    """

    def __init__(self, readings: Iterable[AnyReading]) -> None:
        self._readings: dict[str, list[AnyReading]] = {}
        self._values: dict[str, dict[Labels, float]] = {}
        for reading in readings:
            self._readings.setdefault(reading.metric.name, []).append(reading)

    def of(self, metric: Metric) -> Mapping[Labels, float]:
        """Every value of a metric by its label values."""
        values = self._values.get(metric.name)
        if values is None:  # built on demand: most metrics are never asked for
            values = self._values[metric.name] = {}
            for reading in self._readings.get(metric.name, ()):
                if isinstance(reading, Reading):
                    values.setdefault(reading.labels, reading.value)
        return values

    def readings(self, names: Iterable[str]) -> Iterator[AnyReading]:
        """The readings of the metrics of these names."""
        return (reading for name in names for reading in self._readings.get(name, ()))

    def value(self, metric: Metric, *labels: str) -> float | None:
        """One value, None when it is unknown."""
        return self.of(metric).get(labels)

    def is_set(self, metric: Metric, *labels: str) -> bool:
        """Whether a value is known and above 0."""
        return (self.value(metric, *labels) or 0) > 0


@dataclass(frozen=True, slots=True)
class Sign:
    """One fault of one part.

    Attributes:
        part: label values of the part, those before verdict and reason.
        hold_seconds: how long it must last to be reported.
    """

    metric: Metric
    part: Labels
    verdict: str
    reason: str
    hold_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """From which value and duration on a sign counts.

    Attributes:
        busy_ratio: utilization from which on a GPU is under load; an idle link may sleep.
        link_hold_seconds: how long a link must be slow to be reported, and well to be cleared.
        throttle_hold_seconds: the same for clocks that are held back.
    """

    busy_ratio: float = 0.5
    link_hold_seconds: float = 30.0
    throttle_hold_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class LinksSeen:
    """Most links and highest rate of each GPU model on this node since the start.

    The datasheet's number would not do: with bridges between pairs of GPUs every GPU has fewer
    links than its chip, and none is missing.
    """

    links: dict[str, float] = field(default_factory=dict)
    rate: dict[str, float] = field(default_factory=dict)

    def learn(self, facts: Facts, models: Mapping[Labels, str]) -> None:
        """Takes in the links that the GPUs have now."""
        for part, model in models.items():
            links = facts.value(gpu.NVLINK_LINKS, *part, "active")
            rate = facts.value(gpu.NVLINK_SPEED_MIN, *part)
            self.links[model] = max(self.links.get(model, 0), links or 0)
            self.rate[model] = max(self.rate.get(model, 0), rate or 0)


def gpu_signs(facts: Facts, seen: LinksSeen, limits: Limits) -> Iterator[Sign]:
    """Everything wrong with any GPU."""
    models = {labels[:2]: labels[2] for labels in facts.of(gpu.GPU_INFO)}
    seen.learn(facts, models)
    for labels in facts.of(gpu.GPU_STATE_INFO):
        if labels[2] != "ok":
            yield Sign(GPU_HEALTH, labels[:2], FAILED, labels[2])
    for labels in facts.of(gpu.GPU_RECOVERY_ACTION):
        if labels[2] != "none":
            verdict = DEGRADED if labels[2] in _CAN_WAIT else FAILED
            yield Sign(GPU_HEALTH, labels[:2], verdict, "recovery_action")
    for part in facts.of(gpu.GPU_UP):
        for metric, extra_labels, verdict, reason in _FLAGS:
            if facts.is_set(metric, *part, *extra_labels):
                yield Sign(GPU_HEALTH, part, verdict, reason)
        yield from _pcie(facts, part, limits)
        yield from _nvlink(facts, part, models.get(part, ""), seen, limits)
        yield from _clocks(facts, part, limits)


def _pcie(facts: Facts, part: Labels, limits: Limits) -> Iterator[Sign]:
    """A link below what GPU and slot can do together, under load: an idle link may sleep."""
    # Unknown utilization counts as idle: then the speed of the link says nothing.
    if (facts.value(gpu.GPU_UTILIZATION, *part) or 0) < limits.busy_ratio:
        return
    pairs = (
        (gpu.GPU_PCIE_GENERATION, gpu.GPU_PCIE_GENERATION_MAX),
        (gpu.GPU_PCIE_WIDTH, gpu.GPU_PCIE_WIDTH_MAX),
    )
    values = [(facts.value(now, *part), facts.value(highest, *part)) for now, highest in pairs]
    if any(now is not None and highest is not None and now < highest for now, highest in values):
        yield Sign(GPU_HEALTH, part, DEGRADED, "pcie_below_max", limits.link_hold_seconds)


def _nvlink(
    facts: Facts, part: Labels, model: str, seen: LinksSeen, limits: Limits
) -> Iterator[Sign]:
    links = facts.value(gpu.NVLINK_LINKS, *part, "active")
    if links is not None and links < seen.links.get(model, 0):
        yield Sign(GPU_HEALTH, part, DEGRADED, "nvlink_down")
    rate = facts.value(gpu.NVLINK_SPEED_MIN, *part)
    if rate is not None and rate < seen.rate.get(model, 0):
        yield Sign(GPU_HEALTH, part, DEGRADED, "nvlink_slow", limits.link_hold_seconds)
    if facts.is_set(gpu.NVLINK_FABRIC_STATE, *part, "failed"):
        yield Sign(GPU_HEALTH, part, FAILED, "fabric_failed")
    checks = facts.of(gpu.NVLINK_FABRIC_UNHEALTHY)
    if any(value > 0 for labels, value in checks.items() if labels[:2] == part):
        yield Sign(GPU_HEALTH, part, DEGRADED, "fabric_unhealthy")


def _clocks(facts: Facts, part: Labels, limits: Limits) -> Iterator[Sign]:
    """Clocks held back for longer than a change of load takes.

    A GPU at its default power limit is at work: the cap counts only when somebody lowered it.
    """
    reasons = ("sw_thermal", "hw_thermal", "hw_power_brake", "sw_power_cap", "hw_slowdown")
    held = {reason for reason in reasons if facts.is_set(gpu.GPU_THROTTLE_ACTIVE, *part, reason)}
    enforced, default = (
        facts.value(gpu.GPU_POWER_LIMIT, *part, kind) for kind in ("enforced", "default")
    )
    lowered = enforced is not None and default is not None and enforced < default
    thermal = bool(held & {"sw_thermal", "hw_thermal"})
    power = "hw_power_brake" in held or (lowered and "sw_power_cap" in held)
    hold_seconds = limits.throttle_hold_seconds
    if thermal:
        yield Sign(GPU_HEALTH, part, DEGRADED, "thermal", hold_seconds)
    if power:
        yield Sign(GPU_HEALTH, part, DEGRADED, "power_capped", hold_seconds)
    if "hw_slowdown" in held and not thermal and not power:
        yield Sign(GPU_HEALTH, part, DEGRADED, "slowdown", hold_seconds)


def node_signs(facts: Facts, expected_gpus: int | None, most_seen: float) -> Iterator[Sign]:
    """Every fault of the node itself; none of its GPUs while the driver is released.

    Args:
        facts: of one tick.
        expected_gpus: number that there must be; None takes what was seen and what is on the bus.
        most_seen: most GPUs that the driver has reported since the start.
    """
    # A driver that hangs reports no GPUs: a verdict on their number would be a second, wrong one.
    if facts.is_set(agent.WORKER_STALLED, "driver"):
        yield Sign(NODE_HEALTH, (), FAILED, "driver_hung")
        return
    if facts.is_set(agent.DRIVER_RELEASED):
        return
    by_driver = facts.value(gpu.GPU_COUNT, "nvml")
    on_bus = facts.value(gpu.GPU_COUNT, "pci") or 0
    required = expected_gpus if expected_gpus is not None else max(most_seen, on_bus)
    if by_driver is None and expected_gpus is None and not most_seen:
        if on_bus:
            yield Sign(NODE_HEALTH, (), DEGRADED, "driver_absent")
        return
    if (by_driver or 0) < required:
        yield Sign(NODE_HEALTH, (), FAILED, "gpu_count_short")


def part_signs(parts: Iterable[tuple[str, str]]) -> Iterator[Sign]:
    """The node is as bad as its worst GPU and its worst port.

    Args:
        parts: kind, ``gpu`` or ``port``, and verdict of each.
    """
    for kind, verdict in sorted(set(parts)):
        if verdict in {DEGRADED, FAILED}:
            yield Sign(NODE_HEALTH, (), verdict, f"{kind}_{verdict}")


def port_signs(facts: Facts, expected: Iterable[ExpectedPort]) -> Iterator[Sign]:
    """Every fault of expected ports, by device or interface; of several ports the worst counts."""
    for port in expected:
        part = (port.device,)
        values = {
            metric: [value for labels, value in facts.of(metric).items() if labels[:1] == part]
            for metric in _PRESENT
        }
        up = [value for metric in _UP for value in values[metric]]
        rates = [value for metric in _RATE for value in values[metric]]
        if not any(values.values()):
            yield Sign(EXPECTED_PORT_HEALTH, part, FAILED, "missing")
        if not all(up):
            yield Sign(EXPECTED_PORT_HEALTH, part, FAILED, "not_up")
        if port.rate is not None and rates and min(rates) < port.rate:
            yield Sign(EXPECTED_PORT_HEALTH, part, DEGRADED, "rate_below_expected")


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


VERDICT_NAMES = frozenset(metric.name for metric in METRICS if VERDICT in metric.labels)
"""Names of the metrics that are verdicts."""
_SEVERITIES = VERDICT.values


@dataclass(frozen=True, slots=True)
class Verdict:
    """One verdict with one reason.

    Attributes:
        labels: name and value of each label that identifies the part.
        verdict: a value of the label ``verdict``.
        reason: ``none`` where the verdict is ok.
    """

    metric: Metric
    labels: tuple[tuple[str, str], ...]
    verdict: str
    reason: str

    @property
    def name(self) -> str:
        """Short name of the part: index of a GPU, device and port; empty for the node."""
        names = [value for name, value in self.labels if value and name != UUID.name]
        return "/".join(names)


def verdicts_in(readings: Iterable[AnyReading]) -> Iterator[Verdict]:
    """Every verdict among readings; its reason is the label that comes last."""
    for reading in readings:
        if isinstance(reading, Reading) and reading.metric.name in VERDICT_NAMES:
            pairs = tuple(zip(reading.metric.label_names, reading.labels, strict=True))
            verdict = dict(pairs)[VERDICT.name]
            part = tuple(pair for pair in pairs[:-1] if pair[0] != VERDICT.name)
            yield Verdict(reading.metric, part, verdict, reading.labels[-1])


def kind_of(metric: Metric) -> str:
    """Whether a verdict is on a ``gpu``, a ``port`` or the ``node``."""
    if GPU.name in metric.label_names:
        return "gpu"
    return "port" if DEVICE.name in metric.label_names else "node"


def health_of(exposition: Exposition, node: str) -> dict[str, Any]:
    """The node's verdict, and each part with its verdict and reasons."""
    parts: dict[tuple[str, str], dict[str, Any]] = {}
    node_health: dict[str, Any] = {"verdict": OK, "reasons": []}
    for verdict in verdicts_in(exposition.readings):
        kind = kind_of(verdict.metric)
        new_part: dict[str, Any] = {"kind": kind, "name": verdict.name, **dict(verdict.labels)}
        new_part |= {"verdict": OK, "reasons": []}
        is_node = kind == "node"
        part = node_health if is_node else parts.setdefault((kind, verdict.name), new_part)
        part["verdict"] = max(part["verdict"], verdict.verdict, key=_SEVERITIES.index)
        if verdict.reason != NO_REASON:
            part["reasons"].append(verdict.reason)
    return {
        "node": node,
        **node_health,
        "at_seconds": exposition.rendered_seconds,
        "parts": list(parts.values()),
    }
