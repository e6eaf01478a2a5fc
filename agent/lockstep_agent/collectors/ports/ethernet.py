"""Ethernet ports: the kernel's counters of each interface, and the driver's by ethtool."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.sources.interfaces import (
    BYTES_PER_MEGABIT,
    Interface,
    link_rate,
    list_bonds,
    list_interfaces,
    open_ethtool,
)
from lockstep_agent.sources.sysfs import Due, OpenFiles
from lockstep_catalogue import Metric, fabric

SECONDS_PER_DURATION = 1e-6
_LIST_SECONDS = 10.0
_DIRECTIONS = {"receive": "rx", "transmit": "tx"}
_STATISTICS = {
    fabric.NET_BYTES: "bytes",
    fabric.NET_PACKETS: "packets",
    fabric.NET_ERRORS: "errors",
    fabric.NET_DROPPED: "dropped",
}
_Counters = tuple[tuple[str, Metric, tuple[str, ...]], ...]
_ALL = "all"


@dataclass(frozen=True, slots=True)
class NamedCounter:
    """One counter of an interface.

    Attributes:
        extra_labels: label values after the device.
        names: the drivers' names for it.
    """

    metric: Metric
    extra_labels: tuple[str, ...]
    names: tuple[str, ...]


def _split(**names: str) -> dict[str, tuple[str, ...]]:
    return {value: tuple(text.split()) for value, text in names.items()}


def _named(metric: Metric, **values: str) -> tuple[NamedCounter, ...]:
    return tuple(NamedCounter(metric, (value,), names) for value, names in _split(**values).items())


def _each_priority(**names: str) -> dict[str, dict[str, tuple[str, ...]]]:
    return {
        direction: _split(**{priority: text.replace("{p}", priority) for priority in "01234567"})
        for direction, text in names.items()
    }


PLAIN = (
    *_named(
        fabric.NET_PAUSE_STORMS,
        warning="tx_pause_storm_warning_events",
        error="tx_pause_storm_error_events",
    ),
    NamedCounter(fabric.NET_ECN_MARKED, (), ("rx_ecn_mark",)),
    *_named(
        fabric.NET_DISCARDS,
        receive_port="rx_discards_phy rx_dropped.nic rx_stat_discard",
        transmit_port="tx_discards_phy tx_dropped_link_down.nic tx_stat_discard",
        receive_no_buffer="rx_out_of_buffer rx_no_buffer",
        receive_driver="rx_drops",
        transmit_driver="tx_drops",
        bandwidth_in_allowance="bw_in_allowance_exceeded",
        bandwidth_out_allowance="bw_out_allowance_exceeded",
        packet_allowance="pps_allowance_exceeded",
        connection_allowance="conntrack_allowance_exceeded",
    ),
    *_named(
        fabric.NET_PHY_ERRORS,
        symbol="rx_symbol_err_phy",
        corrected_bits="rx_corrected_bits_phy rx_corrected_bits",
        pcs_symbol="rx_pcs_symbol_err_phy rx_pcs_symbol_err",
        crc="rx_crc_errors_phy rx_crc_errors.nic rx_fcs_err_frames",
        local_fault="mac_local_faults.nic",
        remote_fault="mac_remote_faults.nic",
    ),
    *_named(
        fabric.NET_RDMA_BYTES,
        receive="rx_vport_rdma_unicast_bytes",
        transmit="tx_vport_rdma_unicast_bytes",
    ),
)

PAUSES = _each_priority(
    receive="rx_prio{p}_pause rx_priority_{p}_xoff.nic rx_pfc_ena_frames_pri{p}",
    transmit="tx_prio{p}_pause tx_priority_{p}_xoff.nic tx_pfc_ena_frames_pri{p}",
)
GLOBAL_PAUSES = _split(
    receive="rx_global_pause link_xoff_rx.nic rx_pause_frames rx_pause",
    transmit="tx_global_pause link_xoff_tx.nic tx_pause_frames tx_pause",
)
DURATIONS = _each_priority(
    receive="rx_prio{p}_pause_duration pfc_pri{p}_rx_duration_us",
    transmit="tx_prio{p}_pause_duration pfc_pri{p}_tx_duration_us",
)
GLOBAL_DURATIONS = _split(receive="rx_global_pause_duration", transmit="tx_global_pause_duration")


def first_value(counters: dict[str, int], names: tuple[str, ...]) -> int | None:
    """The value of the first of these names among the driver's counters; None without any."""
    return next((counters[name] for name in names if name in counters), None)


@dataclass(frozen=True, slots=True)
class _Port:
    """One port: its folder, its traffic counters, and the readings of its link."""

    folder: str
    counters: _Counters
    link: tuple[Reading, ...]


class Net:
    """Reads the traffic of the ports each tick, their state and bonds every ten seconds."""

    name = "net"
    tier = Tier.EVERY_TICK

    def __init__(self, sysfs: str) -> None:
        self._sysfs, self._files, self._port_list = sysfs, OpenFiles(), Due(_LIST_SECONDS)
        self._ports: tuple[_Port, ...] = ()
        self._bonds: tuple[Reading, ...] = ()

    def collect(self) -> Iterator[Reading]:
        """State, rate and traffic of each port, members of each bond, without unreadable files."""
        if self._port_list.is_due():
            files = OpenFiles(max_open=0)  # read too seldom to stay open
            self._ports = tuple(
                _Port(port.folder, _counters(port), tuple(_link(port, files)))
                for port in list_interfaces(self._sysfs, files)
            )
            self._bonds = tuple(_members(list_bonds(self._sysfs, files), files))
        for port in self._ports:
            if self._files.is_present(port.folder):
                yield from port.link
                for path, metric, labels in port.counters:
                    yield from present(metric, labels, self._files.count(path))
        yield from self._bonds


def _link(port: Interface, files: OpenFiles) -> Iterator[Reading]:
    labels = (port.name,)
    state = files.text(f"{port.folder}/operstate")
    if state and state != "unknown" and not port.is_shadow:
        yield Reading(fabric.NET_UP, labels, 1 if state == "up" else 0)
    # in the folder itself, not among the statistics
    changes = files.count(f"{port.folder}/carrier_changes")
    yield from present(fabric.NET_CARRIER_CHANGES, labels, changes)
    if not port.is_shadow:
        yield from present(fabric.NET_SPEED, labels, link_rate(port, files))


def _members(bonds: dict[str, tuple[str, ...]], files: OpenFiles) -> Iterator[Reading]:
    for bond, members in bonds.items():
        states = [files.text(f"{member}/operstate") for member in members]
        yield Reading(fabric.BOND_MEMBERS, (bond,), len(members))
        yield Reading(fabric.BOND_MEMBERS_UP, (bond,), states.count("up"))


def _counters(port: Interface) -> _Counters:
    if port.is_shadow:
        return ()
    return tuple(
        (f"{port.folder}/statistics/{prefix}_{statistic}", metric, (port.name, direction))
        for metric, statistic in _STATISTICS.items()
        for direction, prefix in _DIRECTIONS.items()
    )


class Ethernet:
    """Queries the driver of each port, or the recording below ``sysfs``."""

    name = "ethernet"
    tier = Tier.TEN_SECONDS

    def __init__(self, sysfs: str) -> None:
        self._sysfs, self._files = sysfs, OpenFiles(max_open=0)
        self._ethtool = open_ethtool(Path(sysfs))
        self._paused: set[tuple[str, str, str]] = set()

    def collect(self) -> Iterator[Reading]:
        """Speed and counters of each port; a counter that a driver lacks is left out."""
        for port in list_interfaces(self._sysfs, self._files):
            if port.is_shadow or port.is_virtual:
                continue
            megabits = self._ethtool.fastest_megabits(port.name) or None
            yield from present(fabric.NET_SPEED_MAX, (port.name,), megabits, BYTES_PER_MEGABIT)
            counters = self._ethtool.counters(port.name)
            for counter in PLAIN:
                value = first_value(counters, counter.names)
                labels = (port.name, *counter.extra_labels)
                yield from present(counter.metric, labels, value)
            yield from self._pauses(port.name, counters)
            yield from _durations(port.name, counters)

    def _pauses(self, device: str, counters: dict[str, int]) -> Iterator[Reading]:
        for direction, names_by_priority in PAUSES.items():
            by_priority = {
                priority: first_value(counters, names)
                for priority, names in names_by_priority.items()
            }
            of_all = first_value(counters, GLOBAL_PAUSES[direction])
            counts = [count for count in (of_all, *by_priority.values()) if count is not None]
            if counts:
                yield Reading(fabric.NET_PAUSES, (device, direction, _ALL), sum(counts))
            # only priorities that were ever paused, seldom two of eight, so that series stay few
            for priority, count in by_priority.items():
                labels = (device, direction, priority)
                if count is not None and (count or labels in self._paused):
                    self._paused.add(labels)
                    yield Reading(fabric.NET_PAUSES, labels, count)


def _durations(device: str, counters: dict[str, int]) -> Iterator[Reading]:
    for direction, names_by_priority in DURATIONS.items():
        all_names = (*names_by_priority.values(), GLOBAL_DURATIONS[direction])
        values = [first_value(counters, names) for names in all_names]
        durations = [duration for duration in values if duration is not None]
        if durations:
            seconds = sum(durations) * SECONDS_PER_DURATION
            yield Reading(fabric.NET_PAUSE_SECONDS, (device, direction), seconds)
