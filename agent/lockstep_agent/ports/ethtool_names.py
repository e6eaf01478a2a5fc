"""Names of ethtool counters by driver, in one table: mlx5, mlx4, ice, bnxt and ena.

Of several names that a driver has for one counter, the first in the table is read.
``{p}`` is a priority from 0 to 7.
"""

from dataclasses import dataclass

from lockstep_catalogue import Metric, fabric

SECONDS_PER_DURATION = 1e-6


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
