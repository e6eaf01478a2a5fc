"""The volumes that hold data and checkpoints: how long they take, how often they fail."""

import re
from collections.abc import Iterator
from pathlib import Path

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.mounts import (
    Operations,
    Volume,
    disk_rows,
    list_volumes,
    nfs_operations,
    read_long,
    read_of_first_process,
)
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_catalogue import host

_SECTOR_BYTES = 512
_MILLI = 1e-3
# where requests, sectors and milliseconds of an operation stand in a line of diskstats
_COLUMNS = {"read": (0, 2, 3), "write": (4, 6, 7)}
_BUSY = 9
_HEXADECIMAL = re.compile(r"0x[0-9a-f]{1,16}")


class Storage:
    """Reads the counters of NFS mounts and mounted block devices; it never touches a mount.

    Args:
        sysfs: where /sys is.
        procfs: where /proc is.
    """

    name = "storage"
    tier = Tier.TEN_SECONDS

    def __init__(self, sysfs: str, procfs: str) -> None:
        self._sysfs, self._procfs = sysfs, Path(procfs)
        self._files = OpenFiles(max_open=0)

    def collect(self) -> Iterator[Reading]:
        """Identity and counters of each volume, at most 16 of NFS and 16 of disks."""
        volumes = list_volumes(read_of_first_process(self._procfs, "mountinfo"))
        if any(volume.is_network for volume in volumes):
            of_mount = nfs_operations(read_of_first_process(self._procfs, "mountstats"))
            for volume in volumes:
                if volume.is_network and volume.mount_point in of_mount:
                    yield from _network(volume, of_mount[volume.mount_point])
        yield from self._disks([volume for volume in volumes if not volume.is_network])

    def _disks(self, volumes: list[Volume]) -> Iterator[Reading]:
        text = read_long(self._procfs / "diskstats") if volumes else None
        rows = list(disk_rows(text or ""))
        by_number = {number: (name, numbers) for number, name, numbers in rows}
        by_name = {name: (name, numbers) for _, name, numbers in rows}
        told: set[str] = set()
        for volume in volumes:
            # file systems of several devices have a number of their own
            row = by_number.get(volume.number) or by_name.get(volume.source.rpartition("/")[2])
            if row and row[0] not in told:
                told.add(row[0])
                yield from _identity(row[0], volume)
                yield from _disk(*row)
                errors = self._errors(row[0])
                if errors is not None:
                    yield Reading(host.STORAGE_ERRORS, (row[0],), errors)

    def _errors(self, name: str) -> int | None:
        """Errors that the disk or its file system counted; None where neither counts."""
        folder = f"{self._sysfs}/class/block/{name}"
        of_disk = [self._files.text(f"{folder}/{at}device/ioerr_cnt") for at in ("", "../")]
        counts = [_hexadecimal(text) for text in of_disk]
        counts.append(self._files.count(f"{self._sysfs}/fs/ext4/{name}/errors_count"))
        known = [count for count in counts if count is not None]
        return sum(known) if known else None


def _identity(name: str, volume: Volume) -> Iterator[Reading]:
    labels = (name, volume.filesystem, volume.source, volume.mount_point)
    yield Reading(host.VOLUME_INFO, labels, 1)


def _network(volume: Volume, kinds: dict[str, Operations]) -> Iterator[Reading]:
    name = volume.number
    yield from _identity(name, volume)
    for kind, done in kinds.items():
        yield Reading(host.STORAGE_REQUESTS, (name, kind), done.requests)
        yield Reading(host.STORAGE_SECONDS, (name, kind), done.seconds)
    for kind, done in kinds.items():
        if kind in {"read", "write"}:
            carried = done.bytes_received if kind == "read" else done.bytes_sent
            yield Reading(host.STORAGE_BYTES, (name, kind), carried)
    every = kinds.values()
    resent = sum(max(done.sent - done.requests, 0) for done in every)
    yield Reading(host.STORAGE_RETRANSMISSIONS, (name,), resent)
    yield Reading(host.STORAGE_TIMEOUTS, (name,), sum(done.timeouts for done in every))
    yield Reading(host.STORAGE_ERRORS, (name,), sum(done.errors for done in every))


def _disk(name: str, numbers: list[int]) -> Iterator[Reading]:
    for operation, (requests, sectors, milliseconds) in _COLUMNS.items():
        labels = (name, operation)
        yield Reading(host.STORAGE_REQUESTS, labels, numbers[requests])
        yield Reading(host.STORAGE_SECONDS, labels, numbers[milliseconds] * _MILLI)
        yield Reading(host.STORAGE_BYTES, labels, numbers[sectors] * _SECTOR_BYTES)
    yield Reading(host.STORAGE_BUSY_SECONDS, (name,), numbers[_BUSY] * _MILLI)


def _hexadecimal(text: str | None) -> int | None:
    return int(text, 16) if text and _HEXADECIMAL.fullmatch(text) else None
