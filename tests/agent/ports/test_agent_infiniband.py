"""RDMA ports: node_exporter's values for the same tree, and failures of single files."""

import logging
import shutil
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lockstep_agent.collectors.ports.infiniband import Infiniband, InfinibandErrors
from lockstep_catalogue import fabric as metrics
from lockstep_catalogue.labels import PHYSICAL_STATE, PORT_STATE
from lockstep_cli.gameday.fake_node import Tree, unpack, write

from ..fake_tree import FIXTURES
from ..values import Values, values_of

CAPTURES = FIXTURES / "sysfs-infiniband"
Series = tuple[str, tuple[tuple[str, str], ...]]

# what node_exporter calls our series: metric and label values after device and port
NAMES = {
    "rate_bytes_per_second": (metrics.PORT_RATE, ()),
    "port_transmit_wait_total": (metrics.PORT_WAIT, ()),
    "port_data_received_bytes_total": (metrics.PORT_BYTES, ("receive",)),
    "port_data_transmitted_bytes_total": (metrics.PORT_BYTES, ("transmit",)),
    "port_packets_received_total": (metrics.PORT_PACKETS, ("receive", "all")),
    "port_packets_transmitted_total": (metrics.PORT_PACKETS, ("transmit", "all")),
    "unicast_packets_received_total": (metrics.PORT_PACKETS, ("receive", "unicast")),
    "unicast_packets_transmitted_total": (metrics.PORT_PACKETS, ("transmit", "unicast")),
    "multicast_packets_received_total": (metrics.PORT_PACKETS, ("receive", "multicast")),
    "multicast_packets_transmitted_total": (metrics.PORT_PACKETS, ("transmit", "multicast")),
    "legacy_data_received_bytes_total": (metrics.PORT_EXTENDED_BYTES, ("receive",)),
    "legacy_data_transmitted_bytes_total": (metrics.PORT_EXTENDED_BYTES, ("transmit",)),
    **{
        f"legacy_{stem}packets_{past}_total": (metrics.PORT_EXTENDED_PACKETS, (direction, cast))
        for past, direction in (("received", "receive"), ("transmitted", "transmit"))
        for stem, cast in (("", "all"), ("unicast_", "unicast"), ("multicast_", "multicast"))
    },
    **{
        name: (metrics.PORT_ERRORS, (error,))
        for name, error in (
            ("link_downed_total", "link_downed"),
            ("link_error_recovery_total", "link_error_recovery"),
            ("port_errors_received_total", "receive"),
            ("port_constraint_errors_received_total", "receive_constraint"),
            ("port_constraint_errors_transmitted_total", "transmit_constraint"),
            ("port_discards_received_total", "receive_discards"),
            ("port_discards_transmitted_total", "transmit_discards"),
        )
    },
}
NOT_IN_NODE_EXPORTER = (metrics.PORT_UP, metrics.PORT_SATURATED)


def values_below(sysfs: Path) -> Values:
    return values_of(Infiniband(str(sysfs)), InfinibandErrors(str(sysfs), detail=True))


def in_node_exporter_names(values: Values) -> dict[Series, float]:
    """Our series under node_exporter's names; series that it lacks are left out."""
    names = {(metric.name, extra): name for name, (metric, extra) in NAMES.items()}
    renamed: dict[Series, float] = {}
    for (metric, labels), value in values.items():
        port = (("device", labels[0]), ("port", labels[1]))
        if metric is metrics.PORT_STATE_INFO:
            renamed["state_id", port] = PORT_STATE.values.index(labels[2])
            renamed["physical_state_id", port] = PHYSICAL_STATE.values.index(labels[3])
        elif metric is metrics.PORT_INFO:
            identity = zip(("hca_type", "firmware_version", "board_id"), labels[3:6], strict=True)
            renamed["info", tuple(sorted((("device", labels[0]), *identity)))] = value
        elif metric not in NOT_IN_NODE_EXPORTER:
            renamed[names[metric.name, labels[2:]], port] = value
    return renamed


def node_exporter_series() -> dict[Series, float]:
    text = (CAPTURES / "expected-node_infiniband.prom").read_text()
    return {
        (sample.name.removeprefix("node_infiniband_"), tuple(sorted(sample.labels.items()))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_series_equals_node_exporters_and_none_is_missing(tmp_path: Path) -> None:
    expected = node_exporter_series()
    assert len(expected) == 51
    assert in_node_exporter_names(
        values_below(unpack(CAPTURES / "node_exporter.json", tmp_path))
    ) == (expected)


def test_mlx5_and_omni_path_are_read_with_their_own_counters(tmp_path: Path) -> None:
    unpack(CAPTURES / "procfs.json", tmp_path / "class" / "infiniband")
    values = values_below(tmp_path)
    roce, omni_path = ("mlx5_0", "1"), ("hfi1_0", "1")
    assert values[metrics.PORT_BYTES, (*roce, "transmit")] == 2_880_761_508_848 * 4
    assert values[metrics.RDMA_LOSSES, (*roce, "ack_timeout")] == 131
    assert values[metrics.RDMA_LOSSES, (*roce, "adaptive_retransmission")] == 99
    assert values[metrics.RDMA_QP_ERRORS, (*roce, "responder_completion")] == 8109
    assert values[metrics.PORT_BYTES, (*omni_path, "receive")] == 345_091_702_026 * 4
    assert values[metrics.PORT_RATE, omni_path] == 12.5e9
    assert not [labels for metric, labels in values if metric is metrics.RDMA_RETRIES_EXCEEDED]


def test_a_counter_at_its_ceiling_is_saturated_and_one_beyond_is_not(tmp_path: Path) -> None:
    port = Tree(tmp_path, gpus=0, infiniband=1, ethernet=0).port("mlx5_0")
    for name, count in (
        ("link_downed", 255),
        ("symbol_error", 65_535),
        ("local_link_integrity_errors", 15),
        ("link_error_recovery", 256),
        ("port_rcv_errors", 65_534),
    ):
        write(port / "counters" / name, count)
    values = values_below(tmp_path)
    saturated = {labels[2] for metric, labels in values if metric is metrics.PORT_SATURATED}
    assert saturated == {"link_downed", "symbol", "local_link_integrity"}


def test_efa_counts_bytes_and_its_state_is_ignored(tmp_path: Path) -> None:
    port = tmp_path / "class" / "infiniband" / "rdmap0s6" / "ports" / "1"
    write(port.parents[1] / "device" / "driver", "-> /sys/bus/pci/drivers/efa")
    for name, content in (("state", "4: ACTIVE"), ("phys_state", "5: LinkUp")):
        write(port / name, content)
    counters = {"rx_bytes": 5, "rdma_write_bytes": 7, "unresponsive_remote_events": 2}
    for name, count in counters.items():
        write(port / "hw_counters" / name, count)
    values, efa = values_below(tmp_path), ("rdmap0s6", "1")
    assert values[metrics.PORT_BYTES, (*efa, "receive")] == 5
    assert values[metrics.RDMA_BYTES, (*efa, "write")] == 7
    assert values[metrics.RDMA_LOSSES, (*efa, "peer_unresponsive")] == 2
    assert (metrics.PORT_UP, efa) not in values
    [info] = [labels for metric, labels in values if metric is metrics.PORT_INFO]
    assert info[2] == "unspecified"


def test_one_bad_file_costs_one_series(tmp_path: Path) -> None:
    port = Tree(tmp_path, gpus=0, infiniband=2, ethernet=0).port("mlx5_0")
    before = values_below(tmp_path)
    counters = port / "counters"
    (counters / "symbol_error").unlink()
    (counters / "symbol_error").mkdir()  # cannot be read, even by root
    (counters / "port_rcv_errors").write_bytes(b"\xff\xfe garbage")
    (counters / "port_rcv_data").write_text("-5\n")
    (port / "rate").write_text("fast\n")
    lost = before.keys() - values_below(tmp_path).keys()
    port_labels = ("mlx5_0", "1")
    assert lost == {
        (metrics.PORT_ERRORS, (*port_labels, "symbol")),
        (metrics.PORT_ERRORS, (*port_labels, "receive")),
        (metrics.PORT_BYTES, (*port_labels, "receive")),
        (metrics.PORT_RATE, port_labels),
    }


def test_an_adapter_that_vanishes_takes_its_own_series_until_it_returns(tmp_path: Path) -> None:
    port = Tree(tmp_path, gpus=0, infiniband=2, ethernet=0).port("mlx5_0").resolve()
    collector = Infiniband(str(tmp_path))
    before = values_of(collector)
    parked = tmp_path / "parked"
    shutil.move(port, parked)
    remaining = values_of(collector)
    assert {labels[0] for _, labels in remaining} == {"mlx5_1"}
    assert remaining.items() < before.items()
    shutil.copytree(parked, port)
    write(port / "counters" / "port_rcv_data", 10)
    after = values_of(collector)
    assert after[metrics.PORT_BYTES, ("mlx5_0", "1", "receive")] == 40
    assert after.keys() == before.keys()


def test_adapters_of_the_fabric_manager_are_not_touched(tmp_path: Path) -> None:
    tree = Tree(tmp_path, gpus=0, infiniband=2, ethernet=0)
    vital_data = tree.port("mlx5_1").parents[1] / "device" / "vpd"
    vital_data.write_bytes(b"\x82\x10\x00ConnectX\x90\x08\x00V3\x06SW_MNG")
    assert {labels[0] for _, labels in values_below(tmp_path)} == {"mlx5_0"}


def test_a_node_without_rdma_ports_is_served_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        collectors = (Infiniband(str(tmp_path)), InfinibandErrors(str(tmp_path)))
        for _ in range(2):
            assert not values_of(*collectors)
    assert len(caplog.records) == 1
    assert "state=absent" in caplog.text
