"""The verdict on each port of the node, from its facts of the last ten minutes."""

import time
from collections import deque
from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.collectors.node.pcie import link_ratio
from lockstep_agent.ports.counters import ERRORS, RETRIES
from lockstep_agent.ports.verdicts import PortFacts, best_rates, judge_port
from lockstep_agent.sources import rdma_state
from lockstep_agent.sources.interfaces import Interface, link_rate, list_interfaces
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.pci_tree import Endpoints
from lockstep_agent.sources.rdma import RdmaPort, RdmaPorts
from lockstep_agent.sources.sysfs import link_target_name
from lockstep_catalogue import fabric as metrics

_WINDOW_FACTS = 60  # ten minutes, one every ten seconds
_LINK_DOWNED = "counters/link_downed"
# discards and constraint errors come from congestion and configuration, not from the cable
_LINK_ERRORS = frozenset({"symbol", "link_error_recovery", "receive", "local_link_integrity"})
_NO_PORT = ""


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
            interface = interfaces.pop(rdma_state.interface_of(self._files, port), None)
            yield self._port_facts(port, interface, ratios.get(rdma_state.pci_address(port)))
        for interface in interfaces.values():
            if not interface.is_shadow and not interface.is_virtual:
                address = link_target_name(f"{interface.folder}/device")
                yield self._interface_facts(interface, ratios.get(address))

    def _port_facts(
        self, port: RdmaPort, interface: Interface | None, pcie_ratio: float | None
    ) -> PortFacts:
        port_state = rdma_state.read_state(self._files, port)
        board = self._files.text(f"{port.adapter}/board_id")
        counts = {
            counter: self._files.count(f"{port.folder}/{counter.path}")
            for counter in (*ERRORS, *RETRIES)
        }
        errors = [counts[counter] for counter in ERRORS if counter.extra_labels[0] in _LINK_ERRORS]
        link_downs = next(counts[counter] for counter in ERRORS if counter.path == _LINK_DOWNED)
        is_active = port_state.state == rdma_state.ACTIVE
        has_state = rdma_state.has_true_state(port) and port_state.state is not None
        return PortFacts(
            labels=port.labels,
            kind=f"{board} {rdma_state.link_layer(self._files, port)}",
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
