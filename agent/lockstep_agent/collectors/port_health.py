"""The verdict on each port of the node, from what it did in the last ten minutes."""

import time
from collections import deque
from collections.abc import Callable, Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.collectors.pcie import link_ratio
from lockstep_agent.ports.counters import ERRORS, RETRIES
from lockstep_agent.ports.verdicts import PortFacts, PortLimits, best_rates, judge_port
from lockstep_agent.sources.interfaces import Interface, list_interfaces
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.pci_tree import Endpoints
from lockstep_agent.sources.rdma import RdmaPort, RdmaPorts
from lockstep_agent.sources.rdma_state import (
    ACTIVE,
    interface_of,
    link_layer,
    pci_address,
    read_state,
    tells_its_state,
)
from lockstep_agent.sources.sysfs import link_target_name
from lockstep_catalogue import fabric_ports as metrics

_WINDOW_FACTS = 60  # ten minutes, one every ten seconds
_LINK_DOWNED = "counters/link_downed"
_OF_THE_LINK = frozenset({"symbol", "link_error_recovery", "receive", "local_link_integrity"})
_BYTES_PER_SECOND_OF_ONE_MEGABIT = 125_000
_FASTEST_MEGABITS = 10_000_000
_NO_PORT = ""


class PortHealth:
    """Judges RDMA ports, and the network interfaces that belong to none.

    Args:
        sysfs: where /sys is.
        limits: where judging begins.
        clock: monotonic, in seconds.
    """

    name = "port_health"
    tier = Tier.TEN_SECONDS

    def __init__(
        self,
        sysfs: str,
        limits: PortLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sysfs, self._limits, self._clock = sysfs, limits, clock
        self._ports, self._files = RdmaPorts(sysfs), OpenFiles(max_open=0)
        self._endpoints = Endpoints(sysfs)
        self._histories: dict[tuple[str, str], deque[PortFacts]] = {}
        self._best: dict[str, float] = {}

    def collect(self) -> Iterator[Reading]:
        """Verdict and expected rate of each port."""
        facts = list(self._facts())
        self._best = best_rates(facts, self._best)
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
            told = [rate for rate in (self._best.get(port.kind), port.told_rate) if rate]
            expected = max(told, default=None)
            if expected and port.labels[1]:
                yield Reading(metrics.PORT_RATE_EXPECTED, port.labels, expected)
            verdict = judge_port(list(history), expected, lanes[port.kind], self._limits)
            if verdict is not None:
                labels = (*port.labels, verdict.verdict, verdict.reason)
                yield Reading(metrics.PORT_HEALTH, labels, 1)

    def _facts(self) -> Iterator[PortFacts]:
        adapters = [at for at in self._endpoints.list() if at.kind == "nic"]
        ratios = {at.address: link_ratio(at, self._files) for at in adapters}
        interfaces = {at.name: at for at in list_interfaces(self._sysfs, self._files)}
        for port in self._ports.list():
            interface = interfaces.pop(interface_of(self._files, port), None)
            yield self._of_port(port, interface, ratios.get(pci_address(port)))
        for interface in interfaces.values():
            if not interface.is_shadow and not interface.is_virtual:
                address = link_target_name(f"{interface.folder}/device")
                yield self._of_interface(interface, ratios.get(address))

    def _of_port(
        self, port: RdmaPort, interface: Interface | None, ratio: float | None
    ) -> PortFacts:
        told = read_state(self._files, port)
        counts = {at: self._files.count(f"{port.folder}/{at.path}") for at in (*ERRORS, *RETRIES)}
        errors = [counts[at] for at in ERRORS if at.more[0] in _OF_THE_LINK]
        downs = next(counts[at] for at in ERRORS if at.path == _LINK_DOWNED)
        carrier_downs = self._interface_count(interface, "carrier_down_count")
        tells = tells_its_state(port) and told.state is not None
        return PortFacts(
            labels=port.labels,
            kind=f"{self._files.text(f'{port.adapter}/board_id')} {link_layer(self._files, port)}",
            at_seconds=self._clock(),
            is_up=told.state == ACTIVE if tells else None,
            was_up=bool(downs) or bool(self._interface_count(interface, "carrier_up_count")),
            rate=told.rate,
            told_rate=self._interface_rate(interface) if told.state == ACTIVE else None,
            lanes=told.lanes,
            downs=downs,
            carrier_downs=carrier_downs,
            errors=_sum(errors),
            broken=_sum([counts[at] for at in RETRIES]),
            saturated=any(at.ceiling is not None and counts[at] == at.ceiling for at in ERRORS),
            pcie_ratio=ratio,
        )

    def _of_interface(self, interface: Interface, ratio: float | None) -> PortFacts:
        state = self._files.text(f"{interface.folder}/operstate")
        is_up = state == "up" if state in {"up", "down", "lowerlayerdown", "dormant"} else None
        return PortFacts(
            labels=(interface.name, _NO_PORT),
            kind=interface.name,
            at_seconds=self._clock(),
            is_up=is_up,
            was_up=bool(self._interface_count(interface, "carrier_up_count")),
            rate=self._interface_rate(interface),
            carrier_downs=self._interface_count(interface, "carrier_down_count"),
            pcie_ratio=ratio,
        )

    def _interface_count(self, interface: Interface | None, file: str) -> int | None:
        return self._files.count(f"{interface.folder}/{file}") if interface else None

    def _interface_rate(self, interface: Interface | None) -> float | None:
        megabits = self._interface_count(interface, "speed")
        known = megabits is not None and 0 < megabits <= _FASTEST_MEGABITS
        return megabits * _BYTES_PER_SECOND_OF_ONE_MEGABIT if known and megabits else None


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
