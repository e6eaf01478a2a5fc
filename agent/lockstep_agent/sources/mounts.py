"""The mounted volumes: network file systems and block devices, and their requests."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAX_VOLUMES = 16
_MAX_BYTES = 4 << 20
_MOUNT = re.compile(r"^\d+ \d+ (\d+:\d+) \S+ (\S+) .*? - (\S+) (\S+) ", re.MULTILINE)
_OCTAL = re.compile(r"\\([0-7]{3})")
_NFS = frozenset({"nfs", "nfs4"})
_VIRTUAL_DISKS = ("loop", "ram", "zram", "sr", "fd")
_HEADER = re.compile(r"^device (.*) mounted on (\S+) with fstype (\S+)")
_OPERATION = re.compile(r"^\t? +([A-Z_0-9]+): ([0-9 ]+)$")
_NUMBER = re.compile(r"[0-9]{1,20}")
_OPERATION_FIELDS = 8
_DISK_FIELDS = 11  # as many as Linux 2.6 writes; newer kernels append discards and flushes
_MILLI = 1e-3


@dataclass(frozen=True, slots=True)
class Volume:
    """One mounted volume, by its shortest mount point.

    Attributes:
        number: device number, major:minor.
        source: the device, or server and path.
    """

    number: str
    filesystem: str
    source: str
    mount_point: str

    @property
    def is_network(self) -> bool:
        """Whether the volume is served by NFS."""
        return self.filesystem in _NFS


@dataclass(slots=True)
class Operations:
    """Requests of one kind to a file server since the mount.

    Attributes:
        sent: transmissions; those above ``requests`` are retransmissions.
        bytes_sent: bytes to the server.
        bytes_received: bytes from the server.
        seconds: total time of the requests, from the queue to the reply.
        errors: requests that ended in an error; older kernels do not count them.
    """

    requests: int = 0
    sent: int = 0
    timeouts: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0
    errors: int = 0

    def add(self, fields: list[int]) -> None:
        """Adds one line of mountstats, its numbers in the kernel's order."""
        self.requests += fields[0]
        self.sent += fields[1]
        self.timeouts += fields[2]
        self.bytes_sent += fields[3]
        self.bytes_received += fields[4]
        self.seconds += fields[7] * _MILLI
        self.errors += fields[8] if len(fields) > _OPERATION_FIELDS else 0


def read_mount_table(procfs: Path, name: str) -> str:
    """A file of process 1, or of the agent where that is not readable; empty without either."""
    # in a container the agent's own mounts are the container's; those of process 1 are the node's
    for process in ("1", "self"):
        if (text := read_long(procfs / process / name)) is not None:
            return text
    return ""


def read_long(path: Path) -> str | None:
    """The first 4 MiB of a file; None for a missing file and for one that is not regular."""
    try:
        if not path.is_file():  # a pipe in its place would block the open
            return None
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_BYTES)
    except (OSError, ValueError):
        return None


def list_volumes(mountinfo: str) -> tuple[Volume, ...]:
    """Network file systems and block devices out of ``mountinfo``, at most 16 of each."""
    volumes: dict[str, Volume] = {}
    for number, point, filesystem, source in _MOUNT.findall(mountinfo):
        volume = Volume(number, filesystem, _unescape(source), _unescape(point))
        if not (volume.is_network or _is_disk(volume.source)):
            continue
        is_printable = volume.source.isprintable() and volume.mount_point.isprintable()
        # bind mounts list a device several times; the shortest mount point represents all
        listed = volumes.get(number)
        if is_printable and (listed is None or len(volume.mount_point) < len(listed.mount_point)):
            volumes[number] = volume
    network = [volume for volume in volumes.values() if volume.is_network]
    disks = [volume for volume in volumes.values() if not volume.is_network]
    return (*network[:_MAX_VOLUMES], *disks[:_MAX_VOLUMES])


def nfs_operations(mountstats: str) -> dict[str, dict[str, Operations]]:
    """Requests by mount point and kind: read, write, commit, and metadata for all others."""
    mounts: dict[str, dict[str, Operations]] = {}
    kinds: dict[str, Operations] | None = None
    for line in mountstats.splitlines():
        if header := _HEADER.match(line):
            is_nfs = header[3] in _NFS
            kinds = mounts.setdefault(_unescape(header[2]), {}) if is_nfs else None
        elif kinds is not None and (operation := _OPERATION.match(line)):
            name, fields = operation[1], _numbers(operation[2].split())
            if len(fields) >= _OPERATION_FIELDS:
                kind = name.lower() if name in {"READ", "WRITE", "COMMIT"} else "metadata"
                kinds.setdefault(kind, Operations()).add(fields)
    return mounts


def disk_rows(diskstats: str) -> Iterator[tuple[str, str, list[int]]]:
    """Major:minor, name and numbers of each line of ``diskstats``."""
    for line in diskstats.splitlines():
        major, minor, name, *fields = (*line.split(), "", "", "")
        numbers = _numbers(fields)
        if name.isprintable() and len(numbers) >= _DISK_FIELDS:
            yield f"{major}:{minor}", name, numbers


def _is_disk(source: str) -> bool:
    name = source.rpartition("/")[2]
    return source.startswith("/dev/") and not name.startswith(_VIRTUAL_DISKS)


def _numbers(fields: list[str]) -> list[int]:
    return [int(field) for field in fields if _NUMBER.fullmatch(field)]


def _unescape(text: str) -> str:
    """A path without the octal escapes by which the kernel writes blanks, tabs and backslashes."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
