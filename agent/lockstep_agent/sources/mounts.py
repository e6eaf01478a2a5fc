"""The volumes that are mounted: network file systems and block devices, and what they do."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MOST_VOLUMES = 16
_MOST_BYTES = 4 << 20
_INFO = re.compile(r"^\d+ \d+ (\d+:\d+) \S+ (\S+) .*? - (\S+) (\S+) ", re.MULTILINE)
_OCTAL = re.compile(r"\\([0-7]{3})")
_NFS = frozenset({"nfs", "nfs4"})
_SKIPPED = ("loop", "ram", "zram", "sr", "fd")
_HEAD = re.compile(r"^device (.*) mounted on (\S+) with fstype (\S+)")
_OPERATION = re.compile(r"^\t +([A-Z_0-9]+): ([0-9 ]+)$|^ +([A-Z_0-9]+): ([0-9 ]+)$")
_NUMBER = re.compile(r"[0-9]{1,20}")
_OPERATION_FIELDS = 8
_MILLI = 1e-3


@dataclass(frozen=True, slots=True)
class Volume:
    """One mounted volume, by its shortest mount point.

    Attributes:
        number: major:minor.
    """

    number: str
    filesystem: str
    source: str
    mount_point: str

    @property
    def is_network(self) -> bool:
        """Whether it is served by NFS."""
        return self.filesystem in _NFS


@dataclass(slots=True)
class Operations:
    """Requests of one kind to a file server, since it was mounted."""

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


def read_of_first_process(procfs: Path, name: str) -> str:
    """A file of process 1, whose mounts are the node's, or of the agent itself; empty without."""
    for process in ("1", "self"):
        if (told := read_long(procfs / process / name)) is not None:
            return told
    return ""


def read_long(path: Path) -> str | None:
    """The first 4 MiB of a file, None when it is none; a pipe in its place is not waited for."""
    try:
        if not path.is_file():
            return None
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES)
    except (OSError, ValueError):
        return None


def list_volumes(mountinfo: str) -> tuple[Volume, ...]:
    """Network file systems and block devices out of ``mountinfo``, at most 16 of each."""
    found: dict[str, Volume] = {}
    for number, point, filesystem, source in _INFO.findall(mountinfo):
        volume = Volume(number, filesystem, _plain(source), _plain(point))
        if not (volume.is_network or _is_disk(volume.source)):
            continue
        shown = volume.source.isprintable() and volume.mount_point.isprintable()
        known = found.get(number)
        if shown and (known is None or len(volume.mount_point) < len(known.mount_point)):
            found[number] = volume
    network = [volume for volume in found.values() if volume.is_network]
    disks = [volume for volume in found.values() if not volume.is_network]
    return (*network[:_MOST_VOLUMES], *disks[:_MOST_VOLUMES])


def nfs_operations(mountstats: str) -> dict[str, dict[str, Operations]]:
    """Requests by mount point and kind: read, write, commit, and metadata for all others."""
    found: dict[str, dict[str, Operations]] = {}
    kinds: dict[str, Operations] | None = None
    for line in mountstats.splitlines():
        if head := _HEAD.match(line):
            kinds = found.setdefault(_plain(head[2]), {}) if head[3] in _NFS else None
        elif kinds is not None and (operation := _OPERATION.match(line)):
            name = operation[1] or operation[3]
            fields = _numbers((operation[2] or operation[4]).split())
            if len(fields) >= _OPERATION_FIELDS:
                kind = name.lower() if name in {"READ", "WRITE", "COMMIT"} else "metadata"
                kinds.setdefault(kind, Operations()).add(fields)
    return found


def disk_rows(diskstats: str) -> Iterator[tuple[str, str, list[int]]]:
    """Major:minor, name and numbers of each line of ``diskstats``."""
    for line in diskstats.splitlines():
        major, minor, name, *fields = (*line.split(), "", "", "")
        numbers = _numbers(fields)
        if name.isprintable() and len(numbers) >= 11:  # noqa: PLR2004  # as many as Linux 2.6 told
            yield f"{major}:{minor}", name, numbers


def _is_disk(source: str) -> bool:
    name = source.rpartition("/")[2]
    return source.startswith("/dev/") and not name.startswith(_SKIPPED)


def _numbers(fields: list[str]) -> list[int]:
    return [int(field) for field in fields if _NUMBER.fullmatch(field)]


def _plain(text: str) -> str:
    """A path without the escapes that keep its blanks from parting the line."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
