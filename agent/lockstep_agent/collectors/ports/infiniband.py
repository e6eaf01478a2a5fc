"""RDMA ports: state, rate and traffic, and the counters of errors."""

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep_agent.collector import Reading, Tier, present
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
from lockstep_catalogue.labels import PHYSICAL_STATE, PORT_STATE, QP_ERROR

_WORD_BYTES = 4  # the data counters of InfiniBand count words of four bytes; those of EFA bytes


@dataclass(frozen=True, slots=True)
class CounterFile:
    """One file of a port.

    Attributes:
        path: path below the folder of the port.
        extra_labels: label values after device and port.
        factor: from the file's unit to the metric's.
        ceiling: value at which the counter stops; None for one that wraps or has 64 bits.
        is_rare: exported only with ``detail``, to keep the series of a node within their budget.
    """

    path: str
    metric: Metric
    extra_labels: tuple[str, ...]
    factor: int = 1
    ceiling: int | None = None
    is_rare: bool = False


def _error(file: str, error: str, bits: int, *, is_rare: bool = False) -> CounterFile:
    ceiling = 2**bits - 1
    return CounterFile(f"counters/{file}", metrics.PORT_ERRORS, (error,), 1, ceiling, is_rare)


def _hw(
    metric: Metric, rare_values: frozenset[str] = frozenset(), **values: str
) -> tuple[CounterFile, ...]:
    """Files of ``hw_counters`` by label value; a value has several, one for each driver's name."""
    return tuple(
        CounterFile(f"hw_counters/{file}", metric, (value,), is_rare=value in rare_values)
        for value, files in values.items()
        for file in files.split()
    )


_RARE_LOSSES = frozenset(
    {"implied_nak", "duplicate_request", "adaptive_retransmission_timeout", "slow_restart"}
)
_RARE_QP_ERRORS = frozenset(QP_ERROR.values) - {"requester_completion", "responder_completion"}


TRAFFIC = (
    CounterFile("counters/port_rcv_data", metrics.PORT_BYTES, ("receive",), _WORD_BYTES),
    CounterFile("counters/port_xmit_data", metrics.PORT_BYTES, ("transmit",), _WORD_BYTES),
    *_hw(metrics.PORT_BYTES, receive="rx_bytes", transmit="tx_bytes"),
    CounterFile("counters/port_xmit_wait", metrics.PORT_WAIT, ()),
)

_PACKETS = tuple(
    CounterFile(path, metrics.PORT_PACKETS, (direction, cast), is_rare=cast != "all")
    for path, direction, cast in (
        ("counters/port_rcv_packets", "receive", "all"),
        ("counters/port_xmit_packets", "transmit", "all"),
        ("counters/unicast_rcv_packets", "receive", "unicast"),
        ("counters/unicast_xmit_packets", "transmit", "unicast"),
        ("counters/multicast_rcv_packets", "receive", "multicast"),
        ("counters/multicast_xmit_packets", "transmit", "multicast"),
        ("hw_counters/rx_pkts", "receive", "all"),
        ("hw_counters/tx_pkts", "transmit", "all"),
    )
)
_EXTENDED_BYTES = tuple(
    CounterFile(f"counters_ext/{file}", metrics.PORT_EXTENDED_BYTES, (direction,), _WORD_BYTES)
    for file, direction in (("port_rcv_data_64", "receive"), ("port_xmit_data_64", "transmit"))
)
_EXTENDED_PACKETS = tuple(
    CounterFile(f"counters_ext/{file}", metrics.PORT_EXTENDED_PACKETS, (direction, cast))
    for file, direction, cast in (
        ("port_rcv_packets_64", "receive", "all"),
        ("port_xmit_packets_64", "transmit", "all"),
        ("port_unicast_rcv_packets", "receive", "unicast"),
        ("port_unicast_xmit_packets", "transmit", "unicast"),
        ("port_multicast_rcv_packets", "receive", "multicast"),
        ("port_multicast_xmit_packets", "transmit", "multicast"),
    )
)
# widths: drivers/infiniband/core/sysfs.c. These counters stop at their ceiling and never wrap: a
# port that went down 255 times shows a flat line. port_rcv_discards is not in the standard
ERRORS = (
    _error("symbol_error", "symbol", 16),
    _error("link_error_recovery", "link_error_recovery", 8),
    _error("link_downed", "link_downed", 8),
    _error("port_rcv_errors", "receive", 16),
    _error("port_rcv_remote_physical_errors", "receive_remote_physical", 16, is_rare=True),
    _error("port_rcv_switch_relay_errors", "receive_switch_relay", 16, is_rare=True),
    _error("port_rcv_constraint_errors", "receive_constraint", 8, is_rare=True),
    CounterFile("counters/port_rcv_discards", metrics.PORT_ERRORS, ("receive_discards",)),
    _error("port_xmit_constraint_errors", "transmit_constraint", 8, is_rare=True),
    _error("port_xmit_discards", "transmit_discards", 16),
    _error("local_link_integrity_errors", "local_link_integrity", 4),
    _error("excessive_buffer_overrun_errors", "excessive_buffer_overrun", 4),
    _error("VL15_dropped", "vl15_dropped", 16, is_rare=True),
)
# a connection whose retries are used up goes to the error state, and the job with it; in mainline
# since 2024 (commit b339e0a39dc3). rnr_nak_retry_err is not such a sign: its retries succeeded
RETRIES = _hw(
    metrics.RDMA_RETRIES_EXCEEDED,
    transport="req_transport_retries_exceeded max_retry_exceeded",
    rnr="req_rnr_retries_exceeded rnr_naks_rcvd_exceeded",
)
# mlx5's Q counters have 32 bits and wrap, its congestion counters have 64; both are cached for
# ``lifespan`` milliseconds, by default 10
_HARDWARE = (
    *RETRIES,
    *_hw(
        metrics.RDMA_CONGESTION,
        frozenset({"cnp_ignored"}),
        ecn_marked="np_ecn_marked_roce_packets RxECNMrkd rx_ecn_marked_pkts",
        cnp_sent="np_cnp_sent cnpSent tx_cnp_pkts tx_cnp",
        cnp_handled="rp_cnp_handled cnpHandled rx_cnp_pkts rx_cnp",
        cnp_ignored="rp_cnp_ignored cnpIgnored",
    ),
    *_hw(
        metrics.RDMA_LOSSES,
        _RARE_LOSSES,
        out_of_sequence="out_of_sequence rx_out_of_sequence oos_drop_count",
        sequence_error="packet_seq_err seq_err_naks_rcvd",
        implied_nak="implied_nak_seq_err",
        ack_timeout="local_ack_timeout_err",
        duplicate_request="duplicate_request dup_req",
        receiver_not_ready="rnr_nak_retry_err rnr_naks_rcvd",
        out_of_buffer="out_of_buffer",
        dropped="rx_drops ip4InDiscards rx_roce_discards",
        retransmitted="retrans_pkts tcpRetransSegs to_retransmits",
        retransmit_timeout="retrans_timeout_events",
        adaptive_retransmission="roce_adp_retrans",
        adaptive_retransmission_timeout="roce_adp_retrans_to",
        slow_restart="roce_slow_restart",
        peer_impaired="impaired_remote_conn_events",
        peer_unresponsive="unresponsive_remote_events",
    ),
    *_hw(
        metrics.RDMA_QP_ERRORS,
        _RARE_QP_ERRORS,
        requester_completion="req_cqe_error",
        requester_flush="req_cqe_flush_error",
        requester_remote_access="req_remote_access_errors remote_access_err",
        requester_remote_invalid="req_remote_invalid_request remote_invalid_req_err",
        responder_completion="resp_cqe_error",
        responder_flush="resp_cqe_flush_error",
        responder_local_length="resp_local_length_error",
        responder_remote_access="resp_remote_access_errors",
    ),
    *_hw(
        metrics.RDMA_BYTES,
        transmit="rdma_tx_bytes",
        receive="rdma_rx_bytes",
        send="send_bytes",
        receive_work="recv_bytes",
        read="rdma_read_bytes",
        read_response="rdma_read_resp_bytes",
        write="rdma_write_bytes",
        write_receive="rdma_write_recv_bytes",
    ),
)
SLOW = (*_PACKETS, *_EXTENDED_BYTES, *_EXTENDED_PACKETS, *ERRORS, *_HARDWARE)


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
