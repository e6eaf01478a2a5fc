"""What drivers call their ethtool counters, in one table: mlx5, mlx4, ice, bnxt and ena.

A counter is told once: of several names that a driver knows for it, the first in the table counts.
``{p}`` stands for a priority from 0 to 7.
"""

from dataclasses import dataclass

from lockstep_catalogue import Metric, fabric

_MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class NamedCounter:
    """One counter of an interface.

    Attributes:
        metric: where it goes.
        more: label values after the device.
        names: what drivers call it.
        factor: from the driver's unit to the metric's.
    """

    metric: Metric
    more: tuple[str, ...]
    names: tuple[str, ...]
    factor: float = 1


def _of(metric: Metric, **values: str) -> tuple[NamedCounter, ...]:
    return tuple(
        NamedCounter(metric, (value,), tuple(names.split())) for value, names in values.items()
    )


PLAIN = (
    *_of(
        fabric.NET_PAUSE_STORMS,
        warning="tx_pause_storm_warning_events",
        error="tx_pause_storm_error_events",
    ),
    NamedCounter(fabric.NET_ECN_MARKED, (), ("rx_ecn_mark",)),
    *_of(
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
    *_of(
        fabric.NET_PHY_ERRORS,
        symbol="rx_symbol_err_phy",
        corrected_bits="rx_corrected_bits_phy rx_corrected_bits",
        pcs_symbol="rx_pcs_symbol_err_phy rx_pcs_symbol_err",
        crc="rx_crc_errors_phy rx_crc_errors.nic rx_fcs_err_frames",
        local_fault="mac_local_faults.nic",
        remote_fault="mac_remote_faults.nic",
    ),
    *_of(
        fabric.NET_RDMA_BYTES,
        receive="rx_vport_rdma_unicast_bytes",
        transmit="tx_vport_rdma_unicast_bytes",
    ),
)

_PAUSES = {
    "receive": "rx_prio{p}_pause rx_priority_{p}_xoff.nic rx_pfc_ena_frames_pri{p}",
    "transmit": "tx_prio{p}_pause tx_priority_{p}_xoff.nic tx_pfc_ena_frames_pri{p}",
}
_GLOBAL_PAUSES = {
    "receive": "rx_global_pause link_xoff_rx.nic rx_pause_frames rx_pause",
    "transmit": "tx_global_pause link_xoff_tx.nic tx_pause_frames tx_pause",
}
_DURATIONS = {
    "receive": "rx_prio{p}_pause_duration pfc_pri{p}_rx_duration_us",
    "transmit": "tx_prio{p}_pause_duration pfc_pri{p}_tx_duration_us",
}
_GLOBAL_DURATIONS = {
    "receive": "rx_global_pause_duration",
    "transmit": "tx_global_pause_duration",
}
PRIORITIES = tuple(map(str, range(8)))


def _each_priority(names: str) -> dict[str, tuple[str, ...]]:
    return {p: tuple(names.replace("{p}", p).split()) for p in PRIORITIES}


PAUSES = {way: _each_priority(names) for way, names in _PAUSES.items()}
GLOBAL_PAUSES = {way: tuple(names.split()) for way, names in _GLOBAL_PAUSES.items()}
DURATIONS = {way: _each_priority(names) for way, names in _DURATIONS.items()}
GLOBAL_DURATIONS = {way: tuple(names.split()) for way, names in _GLOBAL_DURATIONS.items()}
SECONDS_OF_ONE_DURATION = _MICRO


def first(counters: dict[str, int], names: tuple[str, ...]) -> int | None:
    """The value of the first name that the driver knows."""
    return next((counters[name] for name in names if name in counters), None)
