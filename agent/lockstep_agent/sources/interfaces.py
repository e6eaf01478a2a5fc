"""Network interfaces of the node: the kernel's folders, and the driver's statistics by ethtool."""

import array
import fcntl
import os
import re
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lockstep_agent.sources.mounts import read_long
from lockstep_agent.sources.sysfs import OpenFiles, list_names

_MAX_PORTS = 64
_MAX_BONDS = 16
_IP_OVER_INFINIBAND = 32  # ARPHRD_INFINIBAND
_FASTEST_MEGABITS = 10_000_000  # drivers write 4294967295 for an unknown speed
BYTES_PER_MEGABIT = 125_000
_SIOCETHTOOL = 0x8946
_STRINGS, _STATISTICS, _SET_SIZE, _LINK = 0x1B, 0x1D, 0x37, 0x4C
_SET_OF_STATISTICS = 1
_STRING_BYTES = 32
_LINK_HEADER_BYTES = 48
_WORDS_OFFSET = 15  # signed: the kernel answers with the number that it needs, below zero
_MAX_WORDS = 64
_MAX_COUNTERS = 20_000
_LONGEST_NAME = 15  # IFNAMSIZ without its end
_LINE = re.compile(r"^ +(\S.*?): ([0-9]{1,20})$", re.MULTILINE)

# number of each link mode, by its speed in Mb/s (enum ethtool_link_mode_bit_indices)
_MODES: dict[int, tuple[int, ...]] = {
    10: (0, 1, 92, 99, 100, 101, 102),
    100: (2, 3, 67, 90, 91),
    1_000: (4, 5, 17, 41, 68),
    2_500: (15, 47),
    5_000: (48,),
    10_000: (12, 18, 19, 20, 42, 43, 44, 45, 46),
    20_000: (21, 22),
    25_000: (31, 32, 33),
    40_000: (23, 24, 25, 26),
    50_000: (34, 35, 40, 52, 53, 54, 55, 56),
    56_000: (27, 28, 29, 30),
    100_000: (36, 37, 38, 39, 57, 58, 59, 60, 61, 75, 76, 77, 78, 79),
    200_000: (62, 63, 64, 65, 66, 80, 81, 82, 83, 84, *range(103, 109)),
    400_000: (69, 70, 71, 72, 73, 85, 86, 87, 88, 89, *range(109, 115)),
    800_000: (*range(93, 99), *range(115, 121)),
}
_SPEED_OF_MODE = {mode: speed for speed, modes in _MODES.items() for mode in modes}


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface.

    Attributes:
        is_shadow: it carries IP over an InfiniBand port, which counts this traffic itself.
        is_virtual: it has no adapter; the only kind inside a container.
    """

    name: str
    folder: str
    is_shadow: bool = False
    is_virtual: bool = False


def list_interfaces(sysfs: str, files: OpenFiles) -> tuple[Interface, ...]:
    """The interfaces that are ports, at most 64.

    Those are the adapters' own; where there are none, as inside a container, the virtual ones.
    """
    folder = f"{sysfs}/class/net"
    paths = [f"{folder}/{name}" for name in list_names(folder) if name != "lo"]
    paths = [path for path in paths if os.path.isdir(path)]  # noqa: PTH112  # text in, text out
    # bonds, bridges, tunnels and virtual functions would count the traffic of their port twice, and
    # a container host has hundreds of virtual pairs
    adapters = [path for path in paths if os.path.lexists(f"{path}/device")]
    ports = [path for path in adapters if not os.path.lexists(f"{path}/device/physfn")]
    selected = (ports or adapters or paths)[:_MAX_PORTS]
    return tuple(
        Interface(
            path.rpartition("/")[2],
            path,
            is_shadow=files.count(f"{path}/type") == _IP_OVER_INFINIBAND,
            is_virtual=not adapters,
        )
        for path in selected
    )


def link_rate(port: Interface, files: OpenFiles) -> int | None:
    """Bytes a second of the link of a port in one direction; None where its driver knows none."""
    megabits = files.count(f"{port.folder}/speed")
    if not megabits or megabits > _FASTEST_MEGABITS:
        return None
    return megabits * BYTES_PER_MEGABIT


def list_bonds(sysfs: str, files: OpenFiles) -> dict[str, tuple[str, ...]]:
    """The folders of the members of each bond by its name, at most 16 bonds."""
    folder = f"{sysfs}/class/net"
    slaves = {name: files.text(f"{folder}/{name}/bonding/slaves") for name in list_names(folder)}
    bonds = {name: members for name, members in slaves.items() if members is not None}
    return {
        name: tuple(f"{folder}/{member}" for member in members.split() if "/" not in member)
        for name, members in list(bonds.items())[:_MAX_BONDS]
    }


class Ethtool(Protocol):
    """Reads the driver counters and link modes of an interface by its name."""

    def counters(self, interface: str) -> dict[str, int]:
        """The driver's counters by the driver's names; empty without any."""
        ...

    def fastest_megabits(self, interface: str) -> int | None:
        """The fastest speed in Mb/s among the supported link modes; None where unknown."""
        ...


def open_ethtool(sysfs: Path) -> Ethtool:
    """The kernel's interface where ``sysfs`` shows the agent's own network, else a recording."""
    # in a capture, or in the /sys of another network namespace, the same names stand for other
    # interfaces than those that the kernel would answer for
    try:
        is_own = sysfs.stat().st_dev == Path("/sys").stat().st_dev
    except OSError:
        is_own = False
    return KernelEthtool() if is_own else RecordedEthtool(sysfs)


class RecordedEthtool:
    """Reads the output of ``ethtool -S`` from the file ``ethtool_statistics`` of the interface."""

    def __init__(self, sysfs: Path) -> None:
        self._folder = sysfs / "class" / "net"

    def counters(self, interface: str) -> dict[str, int]:
        """The recorded counters."""
        text = read_long(self._folder / interface / "ethtool_statistics") or ""
        return {name: int(value) for name, value in _LINE.findall(text)}

    def fastest_megabits(self, interface: str) -> int | None:
        """The line ``supported-megabits``, which a capture may add."""
        return self.counters(interface).get("supported-megabits")


class KernelEthtool:
    """Queries the kernel.

    The names of the counters are read once for each interface and number of counters.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, int], tuple[str, ...]] = {}

    def counters(self, interface: str) -> dict[str, int]:
        """The driver's counters by the driver's names.

        Raises:
            ValueError: the kernel reports more counters than any driver has.
        """
        try:
            number = self._count(interface)
            if not number:
                return {}
            names = self._names_of(interface, number)
            request = bytearray(8 + 8 * number)
            struct.pack_into("=II", request, 0, _STATISTICS, number)
            self._ioctl(interface, request)
        except OSError:
            return {}
        values = struct.unpack_from(f"={number}Q", request, 8)
        return dict(zip(names, values, strict=True))

    def fastest_megabits(self, interface: str) -> int | None:
        """The fastest speed among the supported link modes; None where the driver reports none."""
        # asked twice: with no room for the masks the kernel answers how many words each needs
        header = bytearray(_LINK_HEADER_BYTES)
        struct.pack_into("=I", header, 0, _LINK)
        try:
            self._ioctl(interface, header)
            words = -struct.unpack_from("=b", header, _WORDS_OFFSET)[0]
            if not 0 < words <= _MAX_WORDS:
                return None
            request = bytearray(_LINK_HEADER_BYTES + 3 * 4 * words)
            struct.pack_into("=I", request, 0, _LINK)
            struct.pack_into("=b", request, _WORDS_OFFSET, words)
            self._ioctl(interface, request)
        except OSError:
            return None
        supported = struct.unpack_from(f"={words}I", request, _LINK_HEADER_BYTES)
        return fastest(supported)

    def _count(self, interface: str) -> int:
        request = bytearray(struct.pack("=IIQI", _SET_SIZE, 0, 1 << _SET_OF_STATISTICS, 0))
        self._ioctl(interface, request)
        mask, number = struct.unpack_from("=QI", request, 8)
        if mask and number > _MAX_COUNTERS:
            raise ValueError(f"{interface} has {number} counters, more than {_MAX_COUNTERS}")
        return number if mask else 0

    def _names_of(self, interface: str, number: int) -> tuple[str, ...]:
        names = self._names.get((interface, number))
        if names is None:
            request = bytearray(12 + _STRING_BYTES * number)
            struct.pack_into("=III", request, 0, _STRINGS, _SET_OF_STATISTICS, number)
            self._ioctl(interface, request)
            names = tuple(
                _decode(bytes(request[offset : offset + _STRING_BYTES]))
                for offset in range(12, len(request), _STRING_BYTES)
            )
            # a driver that was reloaded can have another number of counters
            self._names = {key: old for key, old in self._names.items() if key[0] != interface}
            self._names[interface, number] = names
        return names

    def _ioctl(self, interface: str, request: bytearray) -> None:
        """Sends a request to the kernel, which writes its answer into the same bytes.

        Raises:
            OSError: the interface does not exist, or its driver has no answer.
        """
        name = os.fsencode(interface)
        if len(name) > _LONGEST_NAME:
            raise OSError(f"{interface} is longer than a name can be")
        buffer = array.array("B", request)
        ifreq = struct.pack("16sP8x", name, buffer.buffer_info()[0])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as endpoint:
            fcntl.ioctl(endpoint, _SIOCETHTOOL, ifreq)
        request[:] = buffer.tobytes()


def fastest(supported: tuple[int, ...]) -> int | None:
    """The fastest speed in Mb/s in a mask of link modes; None without a known mode.

    Args:
        supported: words of 32 bits, the lowest modes first.
    """
    modes = [
        index * 32 + bit
        for index, word in enumerate(supported)
        for bit in range(32)
        if word >> bit & 1
    ]
    return max((_SPEED_OF_MODE[mode] for mode in modes if mode in _SPEED_OF_MODE), default=None)


def _decode(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("ascii", "replace").strip()
