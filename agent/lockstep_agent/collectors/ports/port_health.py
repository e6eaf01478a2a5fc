"""Verdicts on RDMA ports, from what their counters grew by."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.collectors.node.pcie import link_ratio
from lockstep_agent.collectors.ports.infiniband import ERRORS, RETRIES
from lockstep_agent.sources.interfaces import Interface, link_rate, list_interfaces
from lockstep_agent.sources.pci_tree import Endpoints
from lockstep_agent.sources.rdma import (
    ACTIVE,
    RdmaPort,
    RdmaPorts,
    has_true_state,
    interface_of,
    link_layer,
    pci_address,
    read_state,
)
from lockstep_agent.sources.sysfs import OpenFiles, link_target_name
from lockstep_catalogue import fabric as metrics

_LINK_DOWNS = 3  # as gpud, which calls three cycles a flap
_ERRORS_PER_HOUR = 120.0  # NVSentinel's limit for symbol errors
_RATE_SLACK = 0.99  # rates are rounded to a tenth of a gigabit
_WINDOW_FACTS = 60  # ten minutes, one every ten seconds
_LINK_DOWNED = "counters/link_downed"
# discards and constraint errors come from congestion and configuration, not from the cable
_LINK_ERRORS = frozenset({"symbol", "link_error_recovery", "receive", "local_link_integrity"})
_NO_PORT = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PortFacts:
    """The state of a port at one moment; None for what is unknown.

    Attributes:
        labels: values of the labels ``device`` and ``port``.
        kind: ports of one kind are built alike and have the same rate.
        at_seconds: monotonic clock.
        is_up: whether the port carries traffic; None where its driver hard-codes the answer.
        was_up: whether it was ever up since boot; a port without a cable never is.
        bytes_per_second: rate of the link in one direction.
        interface_bytes_per_second: rate by the network interface of the same port.
        lanes: number of lanes that the link runs on.
        link_downs: losses of the link by the adapter, whose counter stops at 255.
        carrier_downs: losses of the link by the interface of the port.
        link_errors: errors of the link, all kinds added up.
        broken_connections: connections that broke because their retries were used up.
        is_saturated: whether a counter stands at its ceiling and hides further errors.
        pcie_ratio: bandwidth of the adapter's PCIe link, divided by what both ends support.
    """

    labels: tuple[str, str]
    kind: str
    at_seconds: float
    is_up: bool | None = None
    was_up: bool = False
    bytes_per_second: float | None = None
    interface_bytes_per_second: float | None = None
    lanes: int | None = None
    link_downs: int | None = None
    carrier_downs: int | None = None
    link_errors: int | None = None
    broken_connections: int | None = None
    is_saturated: bool = False
    pcie_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class PortVerdict:
    """A verdict and its reason, values of the labels ``verdict`` and ``port_reason``."""

    verdict: str
    reason: str


OK = PortVerdict("ok", "none")


def judge_port(
    history: Sequence[PortFacts],
    expected_bytes_per_second: float | None = None,
    expected_lanes: int | None = None,
) -> PortVerdict | None:
    """The verdict on a port; None for a port that was never up.

    Args:
        history: facts of the port over the window, oldest first.
        expected_bytes_per_second: rate of ports of its kind.
        expected_lanes: number of lanes of ports of its kind.
    """
    now = history[-1]
    is_down = now.is_up is False
    if is_down and not now.was_up and not any(facts.is_up for facts in history):
        return None
    is_slow = _is_below(now.bytes_per_second, expected_bytes_per_second)
    broke = _increase([facts.broken_connections for facts in history]) > 0
    # the worst first: the first that holds is the verdict
    signs = (
        (is_down, "failed", "down"),
        (_link_downs(history) >= _LINK_DOWNS, "failed", "flapping"),
        (broke, "degraded", "retries"),
        (is_slow, "degraded", "rate"),
        (_is_below(now.lanes, expected_lanes), "degraded", "lanes"),
        (_has_errors(history), "degraded", "errors"),
        (now.is_saturated, "degraded", "blind"),
        (_is_below(now.pcie_ratio, 1.0), "degraded", "pcie"),
    )
    return next((PortVerdict(verdict, reason) for holds, verdict, reason in signs if holds), OK)


def best_rates(ports: Iterable[PortFacts], earlier: dict[str, float]) -> dict[str, float]:
    """The highest rate of each kind of port in bytes per second, now and earlier."""
    best = dict(earlier)
    for facts in ports:
        if facts.bytes_per_second and facts.is_up is not False:
            best[facts.kind] = max(best.get(facts.kind, 0.0), facts.bytes_per_second)
    return best


def _is_below(value: float | None, expected: float | None) -> bool:
    return value is not None and expected is not None and value < expected * _RATE_SLACK


def _link_downs(history: Sequence[PortFacts]) -> int:
    # the larger of two counts: the adapter's stops at 255, and an InfiniBand port without IP has no
    # interface that counts
    by_adapter = _increase([facts.link_downs for facts in history])
    return max(by_adapter, _increase([facts.carrier_downs for facts in history]))


def _increase(counts: Sequence[int | None]) -> int:
    """Increase of a counter over the window; after a reset it counts from 0."""
    values = [count for count in counts if count is not None]
    return sum(after - before if after >= before else after for before, after in pairwise(values))


def _has_errors(history: Sequence[PortFacts]) -> bool:
    hours = (history[-1].at_seconds - history[0].at_seconds) / 3600
    increase = _increase([facts.link_errors for facts in history])
    # at least one minute's worth: over a short window a single error would mean many an hour
    return increase > max(_ERRORS_PER_HOUR * hours, _ERRORS_PER_HOUR / 60)


class PortHealth:
    """Judges RDMA ports, and the network interfaces that belong to none."""

    name = "port_health"
    tier = Tier.TEN_SECONDS

    def __init__(self, sysfs: str) -> None:
        self._sysfs = sysfs
        self._ports, self._files = RdmaPorts(sysfs), OpenFiles(max_open=0)
        self._endpoints = Endpoints(sysfs)
        self._histories: dict[tuple[str, str], deque[PortFacts]] = {}
        self._best_rates: dict[str, float] = {}

    def collect(self) -> Iterator[Reading]:
        """Verdict and expected rate of each port."""
        # a port is compared with the best of its kind, now and since the start: no table says what
        # rate it should have
        facts = list(self._facts())
        self._best_rates = best_rates(facts, self._best_rates)
        lanes: dict[str, int] = {}
        for port in facts:
            lanes[port.kind] = max(lanes.get(port.kind, 0), port.lanes or 0)
        self._histories = {
            port.labels: self._histories.get(port.labels, deque(maxlen=_WINDOW_FACTS))
            for port in facts
        }
        for port in facts:
            history = self._histories[port.labels]
            history.append(port)
            candidates = (self._best_rates.get(port.kind), port.interface_bytes_per_second)
            expected = max((rate for rate in candidates if rate), default=None)
            if expected and port.labels[1]:
                yield Reading(metrics.PORT_RATE_EXPECTED, port.labels, expected)
            verdict = judge_port(list(history), expected, lanes[port.kind])
            if verdict is not None:
                labels = (*port.labels, verdict.verdict, verdict.reason)
                yield Reading(metrics.PORT_HEALTH, labels, 1)

    def _facts(self) -> Iterator[PortFacts]:
        adapters = [device for device in self._endpoints.list() if device.kind == "nic"]
        ratios = {adapter.address: link_ratio(adapter, self._files) for adapter in adapters}
        interfaces = {
            interface.name: interface for interface in list_interfaces(self._sysfs, self._files)
        }
        for port in self._ports.list():
            interface = interfaces.pop(interface_of(self._files, port), None)
            yield self._port_facts(port, interface, ratios.get(pci_address(port)))
        for interface in interfaces.values():
            if not interface.is_shadow and not interface.is_virtual:
                address = link_target_name(f"{interface.folder}/device")
                yield self._interface_facts(interface, ratios.get(address))

    def _port_facts(
        self, port: RdmaPort, interface: Interface | None, pcie_ratio: float | None
    ) -> PortFacts:
        port_state = read_state(self._files, port)
        board = self._files.text(f"{port.adapter}/board_id")
        counts = {
            counter: self._files.count(f"{port.folder}/{counter.path}")
            for counter in (*ERRORS, *RETRIES)
        }
        errors = [counts[counter] for counter in ERRORS if counter.extra_labels[0] in _LINK_ERRORS]
        link_downs = next(counts[counter] for counter in ERRORS if counter.path == _LINK_DOWNED)
        is_active = port_state.state == ACTIVE
        has_state = has_true_state(port) and port_state.state is not None
        return PortFacts(
            labels=port.labels,
            kind=f"{board} {link_layer(self._files, port)}",
            at_seconds=time.monotonic(),
            is_up=is_active if has_state else None,
            was_up=bool(link_downs) or bool(self._interface_count(interface, "carrier_up_count")),
            bytes_per_second=port_state.bytes_per_second,
            interface_bytes_per_second=(
                link_rate(interface, self._files) if is_active and interface else None
            ),
            lanes=port_state.lanes,
            link_downs=link_downs,
            carrier_downs=self._interface_count(interface, "carrier_down_count"),
            link_errors=_sum(errors),
            broken_connections=_sum([counts[counter] for counter in RETRIES]),
            is_saturated=any(
                counter.ceiling is not None and counts[counter] == counter.ceiling
                for counter in ERRORS
            ),
            pcie_ratio=pcie_ratio,
        )

    def _interface_facts(self, interface: Interface, pcie_ratio: float | None) -> PortFacts:
        state = self._files.text(f"{interface.folder}/operstate")
        is_up = state == "up" if state in {"up", "down", "lowerlayerdown", "dormant"} else None
        return PortFacts(
            labels=(interface.name, _NO_PORT),
            kind=interface.name,
            at_seconds=time.monotonic(),
            is_up=is_up,
            was_up=bool(self._interface_count(interface, "carrier_up_count")),
            bytes_per_second=link_rate(interface, self._files),
            carrier_downs=self._interface_count(interface, "carrier_down_count"),
            pcie_ratio=pcie_ratio,
        )

    def _interface_count(self, interface: Interface | None, file: str) -> int | None:
        return self._files.count(f"{interface.folder}/{file}") if interface else None


def _sum(counts: list[int | None]) -> int | None:
    values = [count for count in counts if count is not None]
    return sum(values) if values else None
