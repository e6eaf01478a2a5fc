"""What drivers tell of network interfaces by the kernel's ethtool interface, an ioctl.

Structures: include/uapi/linux/ethtool.h. No right is needed for what is read here.
"""

import array
import fcntl
import os
import re
import socket
import struct
from pathlib import Path
from typing import Protocol

_SIOCETHTOOL = 0x8946
_DRIVER, _STRINGS, _STATISTICS, _SET_SIZE, _LINK = 0x03, 0x1B, 0x1D, 0x37, 0x4C
_SET_OF_STATISTICS = 1
_STRING_BYTES = 32
_DRIVER_BYTES = 196
_LINK_HEAD_BYTES = 48
_WORDS_AT = 15  # signed: the kernel answers with the number that it wants, below zero
_MOST_WORDS = 64
_MOST_COUNTERS = 20_000
_LONGEST_NAME = 15
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


class Ethtool(Protocol):
    """Tells of interfaces by name."""

    def counters(self, interface: str) -> dict[str, int]:
        """The driver's own counters, by its own names; empty where it tells none."""
        ...

    def fastest_megabits(self, interface: str) -> int | None:
        """The fastest speed among the supported link modes."""
        ...


def open_ethtool(sysfs: Path) -> Ethtool:
    """The kernel's interface where ``sysfs`` shows the agent's own network, else a recording.

    A /sys of another network namespace, or a capture, knows other interfaces by the same names.
    """
    try:
        own = sysfs.stat().st_dev == Path("/sys").stat().st_dev
    except OSError:
        own = False
    return KernelEthtool() if own else RecordedEthtool(sysfs)


class RecordedEthtool:
    """Reads what ``ethtool -S`` printed, from the file ``ethtool_statistics`` of the interface."""

    def __init__(self, sysfs: Path) -> None:
        self._folder = sysfs / "class" / "net"

    def counters(self, interface: str) -> dict[str, int]:
        """The recorded counters."""
        return {name: int(value) for name, value in _LINE.findall(self._text(interface))}

    def fastest_megabits(self, interface: str) -> int | None:
        """The line ``supported-megabits``, which a capture may add."""
        return self.counters(interface).get("supported-megabits")

    def _text(self, interface: str) -> str:
        path = self._folder / interface / "ethtool_statistics"
        try:
            if not path.is_file():
                return ""
            with path.open(encoding="utf-8", errors="replace") as file:
                return file.read(1 << 20)
        except OSError:
            return ""


class KernelEthtool:
    """Asks the kernel; names of counters are asked for once for each interface and their number."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, int], tuple[str, ...]] = {}

    def counters(self, interface: str) -> dict[str, int]:
        """The driver's own counters.

        Raises:
            ValueError: the kernel tells of more counters than any driver has.
        """
        try:
            number = self._count(interface)
            if not number:
                return {}
            names = self._names_of(interface, number)
            request = bytearray(8 + 8 * number)
            struct.pack_into("=II", request, 0, _STATISTICS, number)
            self._ask(interface, request)
        except OSError:
            return {}
        values = struct.unpack_from(f"={number}Q", request, 8)
        return dict(zip(names, values, strict=True))

    def fastest_megabits(self, interface: str) -> int | None:
        """The fastest speed among the supported link modes; None where the driver tells none."""
        head = bytearray(_LINK_HEAD_BYTES)
        struct.pack_into("=I", head, 0, _LINK)
        try:
            self._ask(interface, head)
            words = -struct.unpack_from("=b", head, _WORDS_AT)[0]
            if not 0 < words <= _MOST_WORDS:
                return None
            request = bytearray(_LINK_HEAD_BYTES + 3 * 4 * words)
            struct.pack_into("=I", request, 0, _LINK)
            struct.pack_into("=b", request, _WORDS_AT, words)
            self._ask(interface, request)
        except OSError:
            return None
        supported = struct.unpack_from(f"={words}I", request, _LINK_HEAD_BYTES)
        return fastest(supported)

    def driver(self, interface: str) -> str:
        """Name of the driver; empty where there is none."""
        request = bytearray(_DRIVER_BYTES)
        struct.pack_into("=I", request, 0, _DRIVER)
        try:
            self._ask(interface, request)
        except OSError:
            return ""
        return _text(bytes(request[4 : 4 + _STRING_BYTES]))

    def _count(self, interface: str) -> int:
        request = bytearray(struct.pack("=IIQI", _SET_SIZE, 0, 1 << _SET_OF_STATISTICS, 0))
        self._ask(interface, request)
        mask, number = struct.unpack_from("=QI", request, 8)
        if mask and number > _MOST_COUNTERS:
            raise ValueError(f"{interface} has {number} counters, more than {_MOST_COUNTERS}")
        return number if mask else 0

    def _names_of(self, interface: str, number: int) -> tuple[str, ...]:
        known = self._names.get((interface, number))
        if known is None:
            request = bytearray(12 + _STRING_BYTES * number)
            struct.pack_into("=III", request, 0, _STRINGS, _SET_OF_STATISTICS, number)
            self._ask(interface, request)
            known = tuple(
                _text(bytes(request[at : at + _STRING_BYTES]))
                for at in range(12, len(request), _STRING_BYTES)
            )
            self._names = {key: of for key, of in self._names.items() if key[0] != interface}
            self._names[interface, number] = known
        return known

    def _ask(self, interface: str, request: bytearray) -> None:
        """Has the kernel answer a request in its own place.

        Raises:
            OSError: there is no such interface, or its driver does not answer this.
        """
        name = os.fsencode(interface)
        if len(name) > _LONGEST_NAME:
            raise OSError(f"{interface} is longer than a name can be")
        room = array.array("B", request)
        told = struct.pack("16sP8x", name, room.buffer_info()[0])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            fcntl.ioctl(asked, _SIOCETHTOOL, told)
        request[:] = room.tobytes()


def fastest(supported: tuple[int, ...]) -> int | None:
    """The fastest speed in Mb/s of a mask of link modes, in words of 32 bits."""
    modes = [
        at * 32 + bit for at, word in enumerate(supported) for bit in range(32) if word >> bit & 1
    ]
    return max((_SPEED_OF_MODE[mode] for mode in modes if mode in _SPEED_OF_MODE), default=None)


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("ascii", "replace").strip()
