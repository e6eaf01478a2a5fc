"""The RDMA ports of the node, every ten seconds: identity, state, packets, errors, congestion."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.ports.counters import SLOW, CounterFile
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.rdma import RdmaPort, RdmaPorts, counter_files
from lockstep_agent.sources.rdma_state import (
    ACTIVE,
    interface_of,
    link_layer,
    pci_address,
    read_state,
    tells_its_state,
)
from lockstep_catalogue import fabric_ports as metrics
from lockstep_catalogue.fabric_labels import PHYSICAL_STATE, PORT_STATE

_MOST_LETTERS = 128


class InfinibandErrors:
    """Reads all that need not be read each second.

    Args:
        sysfs: where /sys is.
        detail: tells the rare counters too.
    """

    name = "infiniband_errors"
    tier = Tier.TEN_SECONDS

    def __init__(self, sysfs: str, *, detail: bool = False) -> None:
        self._ports = RdmaPorts(sysfs)
        self._files = OpenFiles()
        self._wanted = tuple(at for at in SLOW if detail or not at.rare)

    def collect(self) -> Iterator[Reading]:
        """What each port tells; what a file does not tell is left out."""
        for port in self._ports.list():
            self._files.is_present(port.adapter)  # lets go of the files of one that was replaced
            yield self._identity(port)
            yield from self._state(port)
            yield from self._counters(port)

    def _identity(self, port: RdmaPort) -> Reading:
        told = [self._files.text(f"{port.adapter}/{file}") for file in ("hca_type", "fw_ver")]
        board = self._files.text(f"{port.adapter}/board_id")
        labels = (
            *port.labels,
            link_layer(self._files, port),
            *(_label(text) for text in (*told, board)),
            interface_of(self._files, port),
            pci_address(port),
        )
        return Reading(metrics.PORT_INFO, labels, 1)

    def _state(self, port: RdmaPort) -> Iterator[Reading]:
        labels, told = port.labels, read_state(self._files, port)
        if told.state is not None:
            if tells_its_state(port):
                yield Reading(metrics.PORT_UP, labels, 1 if told.state == ACTIVE else 0)
            if told.physical is not None:
                pair = (PORT_STATE.values[told.state], PHYSICAL_STATE.values[told.physical])
                yield Reading(metrics.PORT_STATE_INFO, (*labels, *pair), 1)
        if told.rate is not None:
            yield Reading(metrics.PORT_RATE, labels, told.rate)
        if told.lanes is not None:
            yield Reading(metrics.PORT_LANES, labels, told.lanes)

    def _counters(self, port: RdmaPort) -> Iterator[Reading]:
        there = counter_files(port)
        told: set[tuple[str, tuple[str, ...]]] = set()
        narrow = saturated = 0
        for at in self._wanted:
            key = (at.metric.name, at.more)
            if at.path not in there or key in told:
                continue
            value = self._files.count(f"{port.folder}/{at.path}")
            if value is None:
                continue
            told.add(key)
            labels = (*port.labels, *at.more)
            yield Reading(at.metric, labels, value * at.factor)
            narrow += at.ceiling is not None
            if _is_saturated(at, value):
                saturated += 1
                yield Reading(metrics.PORT_SATURATED, labels, 1)
        if narrow:
            yield Reading(metrics.PORT_SATURATED_COUNTERS, port.labels, saturated)


def _is_saturated(at: CounterFile, value: int) -> bool:
    """Whether it stands at its ceiling; one that is beyond has more bits than the standard says."""
    return at.ceiling is not None and value == at.ceiling


def _label(text: str | None) -> str:
    return text if text and text.isprintable() and len(text) <= _MOST_LETTERS else ""
