"""The volumes that hold data and checkpoints: requests, bytes, time and errors."""

import re
from collections.abc import Iterator
from pathlib import Path

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.sources import mounts
from lockstep_agent.sources.sysfs import OpenFiles
from lockstep_catalogue import host

_SECTOR_BYTES = 512  # the unit of diskstats on every disk, whatever the disk's own sector is
_MILLI = 1e-3
# columns of requests, sectors and milliseconds of an operation in a line of diskstats
_COLUMNS = {"read": (0, 2, 3), "write": (4, 6, 7)}
_BUSY = 9
_HEXADECIMAL = re.compile(r"0x[0-9a-f]{1,16}")


class Storage:
    """Reads the counters of NFS mounts and mounted block devices."""

    name = "storage"
    tier = Tier.TEN_SECONDS

    def __init__(self, sysfs: str, procfs: str) -> None:
        self._sysfs, self._procfs = sysfs, Path(procfs)
        self._files = OpenFiles(max_open=0)

    def collect(self) -> Iterator[Reading]:
        """Identity and counters of each volume, at most 16 of NFS and 16 of disks."""
        volumes = mounts.list_volumes(mounts.read_mount_table(self._procfs, "mountinfo"))
        if any(volume.is_network for volume in volumes):
            # never statfs or a read of the mount itself: a silent server would hang the collector
            operations = mounts.nfs_operations(mounts.read_mount_table(self._procfs, "mountstats"))
            for volume in volumes:
                if volume.is_network and volume.mount_point in operations:
                    yield from _network(volume, operations[volume.mount_point])
        yield from self._disks([volume for volume in volumes if not volume.is_network])

    def _disks(self, volumes: list[mounts.Volume]) -> Iterator[Reading]:
        text = mounts.read_long(self._procfs / "diskstats") if volumes else None
        rows = list(mounts.disk_rows(text or ""))
        by_number = {number: (name, numbers) for number, name, numbers in rows}
        by_name = {name: (name, numbers) for _, name, numbers in rows}
        exported: set[str] = set()
        for volume in volumes:
            # file systems of several devices have a number of their own
            row = by_number.get(volume.number) or by_name.get(volume.source.rpartition("/")[2])
            if row and row[0] not in exported:
                exported.add(row[0])
                yield from _identity(row[0], volume)
                yield from _disk(*row)
                yield from present(host.STORAGE_ERRORS, (row[0],), self._errors(row[0]))

    def _errors(self, name: str) -> int | None:
        """Errors counted by the disk and its file system; None where neither counts."""
        folder = f"{self._sysfs}/class/block/{name}"
        # a partition has no device link of its own, its disk above has
        paths = (f"{folder}/device/ioerr_cnt", f"{folder}/../device/ioerr_cnt")
        texts = [self._files.text(path) or "" for path in paths]
        counts = [int(text, 16) for text in texts if _HEXADECIMAL.fullmatch(text)]
        by_file_system = self._files.count(f"{self._sysfs}/fs/ext4/{name}/errors_count")
        counts += [] if by_file_system is None else [by_file_system]
        return sum(counts) if counts else None


def _identity(name: str, volume: mounts.Volume) -> Iterator[Reading]:
    labels = (name, volume.filesystem, volume.source, volume.mount_point)
    yield Reading(host.VOLUME_INFO, labels, 1)


def _network(volume: mounts.Volume, kinds: dict[str, mounts.Operations]) -> Iterator[Reading]:
    name = volume.number
    yield from _identity(name, volume)
    for kind, counts in kinds.items():
        yield Reading(host.STORAGE_REQUESTS, (name, kind), counts.requests)
        yield Reading(host.STORAGE_SECONDS, (name, kind), counts.seconds)
    for kind, counts in kinds.items():
        if kind in {"read", "write"}:
            num_bytes = counts.bytes_received if kind == "read" else counts.bytes_sent
            yield Reading(host.STORAGE_BYTES, (name, kind), num_bytes)
    all_counts = kinds.values()
    retransmissions = sum(max(counts.sent - counts.requests, 0) for counts in all_counts)
    yield Reading(host.STORAGE_RETRANSMISSIONS, (name,), retransmissions)
    yield Reading(host.STORAGE_TIMEOUTS, (name,), sum(counts.timeouts for counts in all_counts))
    yield Reading(host.STORAGE_ERRORS, (name,), sum(counts.errors for counts in all_counts))


def _disk(name: str, numbers: list[int]) -> Iterator[Reading]:
    for operation, (requests, sectors, milliseconds) in _COLUMNS.items():
        labels = (name, operation)
        yield Reading(host.STORAGE_REQUESTS, labels, numbers[requests])
        yield Reading(host.STORAGE_SECONDS, labels, numbers[milliseconds] * _MILLI)
        yield Reading(host.STORAGE_BYTES, labels, numbers[sectors] * _SECTOR_BYTES)
    yield Reading(host.STORAGE_BUSY_SECONDS, (name,), numbers[_BUSY] * _MILLI)
