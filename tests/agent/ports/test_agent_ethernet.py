"""Ethernet ports: files, ethtool of the kernel and of a recording, pauses, bonds, containers."""

import fcntl
import struct
from pathlib import Path

import pytest

from lockstep_agent.collectors.ports.ethernet import Ethernet, Net
from lockstep_agent.sources.interfaces import KernelEthtool, RecordedEthtool, fastest, open_ethtool
from lockstep_catalogue import Metric, fabric
from lockstep_cli.gameday.fake_node import Tree, write

from ..fake_tree import FIXTURES
from ..values import values_of

BOND_METRICS = (fabric.BOND_MEMBERS, fabric.BOND_MEMBERS_UP)
NAMES = ("rx_prio3_pause", "rx_discards_phy")


def test_pauses_are_summed_and_a_priority_is_exported_once_it_was_paused(tmp_path: Path) -> None:
    Tree(tmp_path, gpus=0, infiniband=1, ethernet=1)
    values, port = values_of(Ethernet(str(tmp_path))), "ens0np0"
    assert {labels[0] for _, labels in values} == {port}
    assert values[fabric.NET_PAUSES, (port, "receive", "all")] == 70
    assert values[fabric.NET_PAUSES, (port, "receive", "3")] == 70
    assert (fabric.NET_PAUSES, (port, "receive", "4")) not in values
    assert values[fabric.NET_PAUSE_SECONDS, (port, "transmit")] == pytest.approx(0.04)
    assert values[fabric.NET_PAUSE_STORMS, (port, "warning")] == 1
    assert values[fabric.NET_ECN_MARKED, (port,)] == 11
    assert values[fabric.NET_PHY_ERRORS, (port, "corrected_bits")] == 4242
    assert values[fabric.NET_RDMA_BYTES, (port, "receive")] == 123_456_789
    assert values[fabric.NET_SPEED_MAX, (port,)] == 50e9


@pytest.mark.parametrize(
    ("driver", "counter", "expected"),
    [
        ("ice", "rx_priority_3_xoff.nic", (fabric.NET_PAUSES, ("receive", "3"))),
        ("ice", "mac_local_faults.nic", (fabric.NET_PHY_ERRORS, ("local_fault",))),
        ("bnxt", "tx_pfc_ena_frames_pri5", (fabric.NET_PAUSES, ("transmit", "5"))),
        ("bnxt", "rx_stat_discard", (fabric.NET_DISCARDS, ("receive_port",))),
        ("ena", "bw_in_allowance_exceeded", (fabric.NET_DISCARDS, ("bandwidth_in_allowance",))),
    ],
)
def test_each_driver_is_read_by_its_own_names(
    tmp_path: Path, driver: str, counter: str, expected: tuple[Metric, tuple[str, ...]]
) -> None:
    folder = tmp_path / "class" / "net" / driver
    write(folder / "device" / "vendor", "0x1")
    write(folder / "ethtool_statistics", f"NIC statistics:\n     {counter}: 7\n")
    metric, labels = expected
    assert values_of(Ethernet(str(tmp_path)))[metric, (driver, *labels)] == 7


def test_durations_of_pauses_are_seconds_for_every_driver(tmp_path: Path) -> None:
    folder = tmp_path / "class" / "net" / "bnxt"
    write(folder / "device" / "vendor", "0x1")
    write(folder / "ethtool_statistics", "NIC statistics:\n     pfc_pri5_rx_duration_us: 5\n")
    values = values_of(Ethernet(str(tmp_path)))
    assert values == {(fabric.NET_PAUSE_SECONDS, ("bnxt", "receive")): pytest.approx(5e-6)}


def test_the_kernel_is_read_where_sys_shows_its_own_network_and_a_recording_elsewhere(
    tmp_path: Path,
) -> None:
    assert isinstance(open_ethtool(Path("/sys")), KernelEthtool)
    assert isinstance(open_ethtool(tmp_path), RecordedEthtool)


def test_the_real_kernel_answers_for_loopback_and_for_missing_interfaces() -> None:
    ethtool = KernelEthtool()
    for interface in ("lo", "nosuch0", "name-that-is-far-too-long"):
        assert ethtool.counters(interface) == {}
        assert ethtool.fastest_megabits(interface) is None


def test_structures_are_laid_out_as_the_kernel_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake kernel answers at the request's address, as include/uapi/linux/ethtool.h says."""
    import ctypes  # noqa: PLC0415  # only this test writes where a pointer points

    def answer(_socket: object, code: int, request: bytes) -> int:
        assert code == 0x8946
        name, address = struct.unpack("16sP8x", request)
        assert name.rstrip(b"\0") == b"eth9"
        [command] = struct.unpack("=I", ctypes.string_at(address, 4))
        answers = {
            0x37: (16, struct.pack("=I", len(NAMES))),
            0x1B: (12, b"".join(text.encode().ljust(32, b"\0") for text in NAMES)),
            0x1D: (8, struct.pack("=2Q", 5, 2**64 - 1)),
        }
        if command == 0x4C:
            [words] = struct.unpack("=b", ctypes.string_at(address + 15, 1))
            offset, body = (48, struct.pack("=3I", 0, 0, 1 << 21)) if words else (15, b"\xfd")
        else:
            offset, body = answers[command]
        ctypes.memmove(address + offset, body, len(body))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", answer)
    ethtool = KernelEthtool()
    assert ethtool.counters("eth9") == dict(zip(NAMES, (5, 2**64 - 1), strict=True))
    assert ethtool.fastest_megabits("eth9") == 400_000


def test_the_fastest_of_the_supported_modes_is_found() -> None:
    assert fastest((1 << 12 | 1 << 31, 1 << 4, 0)) == 100_000
    assert fastest((1 << 6, 0)) is None


def test_virtual_functions_and_ip_over_infiniband_are_not_ports(tmp_path: Path) -> None:
    Tree(tmp_path, gpus=0, infiniband=1, ethernet=1)
    write(tmp_path / "class" / "net" / "ens0v1" / "device" / "physfn", "-> ../../ens0np0/device")
    values = values_of(Net(str(tmp_path)))
    assert {labels[0] for _, labels in values} == {"ens0np0", "ib0"}
    assert {metric for metric, labels in values if labels == ("ib0",)} == {
        fabric.NET_CARRIER_CHANGES
    }


def test_a_bond_counts_its_members(tmp_path: Path) -> None:
    for name, state in (("eth0", "up"), ("eth1", "down")):
        write(tmp_path / "class" / "net" / name / "operstate", state)
        write(tmp_path / "class" / "net" / name / "device" / "vendor", "0x15b3")
    write(tmp_path / "class" / "net" / "bond0" / "bonding" / "slaves", "eth0 eth1")
    values = values_of(Net(str(tmp_path)))
    assert values[fabric.BOND_MEMBERS, ("bond0",)] == 2
    assert values[fabric.BOND_MEMBERS_UP, ("bond0",)] == 1
    assert (fabric.NET_UP, ("bond0",)) not in values


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
