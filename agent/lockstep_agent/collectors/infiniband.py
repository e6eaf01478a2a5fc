"""The RDMA ports of the node, each tick: state and traffic."""

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.port_counters import TRAFFIC
from lockstep_agent.sources.due import Due
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.rdma import RdmaPort, RdmaPorts
from lockstep_agent.sources.rdma_state import ACTIVE, PortState, read_state, tells_its_state
from lockstep_catalogue import Metric
from lockstep_catalogue import fabric_ports as metrics
from lockstep_catalogue.fabric_labels import PHYSICAL_STATE, PORT_STATE

_LIST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Known:
    port: RdmaPort
    tells_its_state: bool
    counters: tuple[tuple[str, Metric, tuple[str, ...], int], ...]


class Infiniband:
    """Reads what changes fast; a read of a counter can cost a command to the adapter's firmware.

    Args:
        sysfs: where /sys is.
    """

    name = "infiniband"
    tier = Tier.EVERY_TICK

    def __init__(self, sysfs: str) -> None:
        self._ports, self._files, self._list = (
            RdmaPorts(sysfs, aloud=True),
            OpenFiles(),
            Due(_LIST_SECONDS),
        )
        self._known: tuple[_Known, ...] = ()

    def collect(self) -> Iterator[Reading]:
        """State, rate and traffic of each port; what a file does not tell is left out."""
        if self._list.is_due():
            self._known = tuple(_know(port) for port in self._ports.list())
        for known in self._known:
            if self._files.is_there(known.port.folder):
                yield from _state(known, read_state(self._files, known.port))
                yield from self._traffic(known)

    def _traffic(self, known: _Known) -> Iterator[Reading]:
        count = self._files.count
        for path, metric, labels, factor in known.counters:
            value = count(path)
            if value is not None:
                yield Reading(metric, labels, value * factor)


def _know(port: RdmaPort) -> _Known:
    counters = tuple(
        (f"{port.folder}/{at.path}", at.metric, (*port.labels, *at.more), at.factor)
        for at in TRAFFIC
    )
    return _Known(port, tells_its_state(port), counters)


def _state(known: _Known, told: PortState) -> Iterator[Reading]:
    labels = known.port.labels
    if told.state is not None:
        if known.tells_its_state:
            yield Reading(metrics.PORT_UP, labels, 1 if told.state == ACTIVE else 0)
        if told.physical is not None:
            pair = (PORT_STATE.values[told.state], PHYSICAL_STATE.values[told.physical])
            yield Reading(metrics.PORT_STATE_INFO, (*labels, *pair), 1)
    if told.rate is not None:
        yield Reading(metrics.PORT_RATE, labels, told.rate)
    if told.lanes is not None:
        yield Reading(metrics.PORT_LANES, labels, told.lanes)
