"""Network ports from a folder of files."""

from pathlib import Path

from lockstep_agent.collector import Reading
from lockstep_agent.collectors.ports.ethernet import Net
from lockstep_catalogue import Metric, fabric

from ..fake_tree import FIXTURES

BOND_METRICS = (fabric.BOND_MEMBERS, fabric.BOND_MEMBERS_UP)
Values = dict[tuple[Metric, tuple[str, ...]], float]


def values_of(collector: Net) -> Values:
    readings = list(collector.collect())
    assert all(isinstance(reading, Reading) for reading in readings)
    return {(reading.metric, reading.labels): reading.value for reading in readings}


def test_ports_are_read_from_files_and_garbage_is_absent() -> None:
    values = values_of(Net(str(FIXTURES / "node" / "sys")))
    fast, down = "ens1f0np0", "ens1f1np1"
    ports = {labels[0] for metric, labels in values if metric not in BOND_METRICS}
    assert ports == {fast, down}
    assert values[fabric.NET_UP, (fast,)] == 1
    assert values[fabric.NET_SPEED, (fast,)] == 50e9
    assert values[fabric.NET_BYTES, (fast, "receive")] == 918_273_645_546
    assert values[fabric.NET_DROPPED, (fast, "receive")] == 12
    assert values[fabric.NET_CARRIER_CHANGES, (down,)] == 5
    assert values[fabric.NET_UP, (down,)] == 0
    assert (fabric.NET_SPEED, (down,)) not in values
    assert (fabric.NET_ERRORS, (down, "receive")) not in values
    assert (fabric.NET_ERRORS, (down, "transmit")) in values


def test_in_a_container_the_virtual_port_is_the_port(tmp_path: Path) -> None:
    for name, state in (("lo", "unknown"), ("eth0", "up"), ("tun0", "unknown")):
        port = tmp_path / "class" / "net" / name
        port.mkdir(parents=True)
        (port / "operstate").write_text(state)
    assert values_of(Net(str(tmp_path))) == {(fabric.NET_UP, ("eth0",)): 1}


def test_a_node_without_network_folder_has_no_ports(tmp_path: Path) -> None:
    assert not values_of(Net(str(tmp_path)))
