"""RDMA ports: state, rate and traffic, and the counters of errors."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.collectors.ports.counters import SLOW, TRAFFIC
from lockstep_agent.sources.rdma import (
    ACTIVE,
    RdmaPort,
    RdmaPorts,
    counter_files,
    has_true_state,
    interface_of,
    link_layer,
    pci_address,
    read_state,
)
from lockstep_agent.sources.sysfs import Due, OpenFiles
from lockstep_catalogue import Metric
from lockstep_catalogue import fabric as metrics
from lockstep_catalogue.labels import PHYSICAL_STATE, PORT_STATE

_LIST_SECONDS = 10.0
_Counters = tuple[tuple[str, Metric, tuple[str, ...], int], ...]
"""The counters of one port, each as path, metric, label values and factor."""
_MAX_CHARACTERS = 128


class Infiniband:
    """Reads the counters that change fast."""

    name = "infiniband"
    # only traffic: each read of a counter can cost a command to the adapter's firmware
    tier = Tier.EVERY_TICK

    def __init__(self, sysfs: str) -> None:
        self._ports, self._files = RdmaPorts(sysfs, is_logging=True), OpenFiles()
        self._port_list = Due(_LIST_SECONDS)
        self._counters: dict[str, _Counters] = {}

    def collect(self) -> Iterator[Reading]:
        """Traffic of each port; an unreadable counter is left out."""
        if self._port_list.is_due():
            self._counters = {port.folder: _find_counters(port) for port in self._ports.list()}
        for folder, counters in self._counters.items():
            if self._files.is_present(folder):
                for path, metric, labels, factor in counters:
                    yield from present(metric, labels, self._files.count(path), factor)


def _find_counters(port: RdmaPort) -> _Counters:
    paths = counter_files(port)
    return tuple(
        (
            f"{port.folder}/{counter.path}",
            counter.metric,
            (*port.labels, *counter.extra_labels),
            counter.factor,
        )
        for counter in TRAFFIC
        if counter.path in paths
    )


class InfinibandErrors:
    """Reads all counters that need not be read each second."""

    name = "infiniband_errors"
    tier = Tier.TEN_SECONDS

    def __init__(self, sysfs: str, *, detail: bool = False) -> None:
        self._ports = RdmaPorts(sysfs)
        self._files = OpenFiles()
        self._counter_table = tuple(counter for counter in SLOW if detail or not counter.is_rare)

    def collect(self) -> Iterator[Reading]:
        """Identity, state and counters of each port; an unreadable file is left out."""
        for port in self._ports.list():
            self._files.is_present(port.adapter)  # closes the files of an adapter that was replaced
            yield self._identity(port)
            yield from self._state(port)
            yield from self._counters(port)

    def _identity(self, port: RdmaPort) -> Reading:
        files = ("hca_type", "fw_ver", "board_id")
        texts = [self._files.text(f"{port.adapter}/{file}") for file in files]
        labels = (
            *port.labels,
            link_layer(self._files, port),
            *map(_label, texts),
            interface_of(self._files, port),
            pci_address(port),
        )
        return Reading(metrics.PORT_INFO, labels, 1)

    def _state(self, port: RdmaPort) -> Iterator[Reading]:
        labels, port_state = port.labels, read_state(self._files, port)
        state, physical_state = port_state.state, port_state.physical_state
        if state is not None:
            if has_true_state(port):
                yield Reading(metrics.PORT_UP, labels, 1 if state == ACTIVE else 0)
            if physical_state is not None:
                names = (PORT_STATE.values[state], PHYSICAL_STATE.values[physical_state])
                yield Reading(metrics.PORT_STATE_INFO, (*labels, *names), 1)
        yield from present(metrics.PORT_RATE, labels, port_state.bytes_per_second)

    def _counters(self, port: RdmaPort) -> Iterator[Reading]:
        paths = counter_files(port)
        exported: set[tuple[str, tuple[str, ...]]] = set()
        for counter in self._counter_table:
            # a driver may have two names for one counter: the first in the table is exported
            key = (counter.metric.name, counter.extra_labels)
            if counter.path not in paths or key in exported:
                continue
            # each file by itself: some adapters refuse single counters, and node_exporter
            # lost all of them for one refusal (its issues 966, 2769 and 3265)
            value = self._files.count(f"{port.folder}/{counter.path}")
            if value is None:
                continue
            exported.add(key)
            labels = (*port.labels, *counter.extra_labels)
            yield Reading(counter.metric, labels, value * counter.factor)
            # equal, not above: a counter beyond its ceiling has more bits than the standard demands
            if value == counter.ceiling:
                yield Reading(metrics.PORT_SATURATED, labels, 1)


def _label(text: str | None) -> str:
    return text if text and text.isprintable() and len(text) <= _MAX_CHARACTERS else ""
