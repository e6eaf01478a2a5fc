"""Creates the file of a rank page, and writes it: microseconds a step, nothing that can block.

A store into a mapped page of a full file system kills the process, and on a disk it can block for
minutes. So a page is created only on a verified tmpfs, its space allocated by posix_fallocate.
"""

import grp
import mmap
import os
import struct
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.file_access.foreign_files import RANK_PREFIX, ForeignFileError
from lockstep_records.file_access.own_files import create_attempt_folder, open_own_folder
from lockstep_records.page.layout import (
    CHECKPOINT_OUTCOMES,
    COLLECTIVE_KINDS,
    DEFAULT_ROWS,
    EXTRAS,
    HEARTBEAT_OFFSET,
    IDENTITY,
    MAGIC,
    MAX_ROWS,
    MESH_AXES,
    PERIODIC,
    PERIODIC_OFFSETS,
    RING_OFFSET,
    ROW,
    ROW_NUMBERS,
    SLOT,
    SLOT_OFFSETS,
    STEP_BUCKETS,
    VERSION,
    Section,
    page_bytes,
)
from lockstep_records.page.lock import PageLock

_MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
_RANKS_OF_A_NODE, _SHARE, _MIN_ROWS = 8, 4, 1024
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class NoPageError(RuntimeError):
    """A page cannot be created here; the message says why and what would help."""


def rows_for(root: Path, environment: Mapping[str, str]) -> int:
    """Rows of a page that leave three quarters of a small tmpfs to others.

    A pod's /dev/shm has 64 MiB, an emptyDir what its limit says: eight pages of full size fill it.

    Args:
        root: folder of all jobs; it may be created later.
        environment: with the number of ranks on this node, where the launcher says it.
    """
    folder = next(each for each in (root.absolute(), *root.absolute().parents) if each.exists())
    try:
        status = os.statvfs(folder)
    except OSError:
        return DEFAULT_ROWS
    size = environment.get("LOCAL_WORLD_SIZE", "")
    num_ranks = int(size) if size.isdecimal() and int(size) else _RANKS_OF_A_NODE
    share_bytes = status.f_bavail * status.f_frsize // (_SHARE * num_ranks)
    rows = 1 << max(share_bytes // ROW.size, 1).bit_length() - 1
    return min(max(rows, _MIN_ROWS), DEFAULT_ROWS)


def create_mapping(path: Path, size: int) -> mmap.mmap:
    """Creates a file with all its space allocated; raises as ``create_file``."""
    mapping, descriptor = create_file(path, size)
    os.close(descriptor)
    return mapping


def create_file(path: Path, size: int) -> tuple[mmap.mmap, int]:
    """Creates a file with all its space: its mapping, and a descriptor; NoPageError leaves none."""
    try:
        kind = file_system_of(path.parent)
        if kind not in _MEMORY_FILE_SYSTEMS:
            raise NoPageError(
                f"folder {path.parent} is on {kind or 'an unknown file system'}, where a store "
                "can block the step; set LOCKSTEP_DIR to a folder on a tmpfs such as /dev/shm"
            )
        create_attempt_folder(path.parent)
        with open_own_folder(path.parent, in_attempt=path.name.startswith(RANK_PREFIX)) as folder:
            return _create_in(folder, path, size)
    except ForeignFileError as error:
        raise NoPageError(
            f"page {path} cannot be made: {error}; give the job another id"
        ) from error
    except OSError as error:
        if isinstance(error, FileExistsError) and path.exists():
            raise NoPageError(
                f"page {path} is there already (File exists): a rank of this job id runs, or this "
                "process has attached before; give the job another id"
            ) from error
        raise NoPageError(
            f"page {path} cannot be made ({error.strerror}); "
            "set LOCKSTEP_DIR to a writable folder on a tmpfs"
        ) from error


def _create_in(folder: int, path: Path, size: int) -> tuple[mmap.mmap, int]:
    descriptor = os.open(path.name, _FLAGS, 0o640, dir_fd=folder)
    try:
        # Takes the memory now: a later store into a full tmpfs would kill the process by SIGBUS.
        os.posix_fallocate(descriptor, 0, size)
        _share_with_group(folder, path.name)
        return mmap.mmap(descriptor, size), descriptor
    except OSError as error:
        os.close(descriptor)
        os.unlink(path.name, dir_fd=folder)
        raise NoPageError(
            f"page {path} needs {size} bytes and its file system has no room ({error.strerror}); "
            "free some or set LOCKSTEP_DIR to another tmpfs"
        ) from error


def _share_with_group(folder: int, name: str) -> None:
    """Gives folder and page to the group lockstep where there is one, so that the agent reads."""
    try:
        group = grp.getgrnam("lockstep").gr_gid
        for entry in (".", name):
            os.chown(entry, -1, group, dir_fd=folder, follow_symlinks=False)
    except (LookupError, PermissionError):
        return


def file_system_of(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """Type of the file system that holds a folder, such as ``tmpfs``; empty when unknown."""
    target, best, kind = str(folder.resolve()), "", ""
    for line in mountinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        head, _, tail = line.partition(" - ")
        mount = head.split()[4].replace("\\040", " ")
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        # Of several mounts on one path the last one is on top.
        if inside and len(mount) >= len(best):
            best, kind = mount, tail.split()[0]
    return kind


class Slots:
    """The writing side of a section that is replaced in one store, in the older of two slots.

    Attributes:
        words: its eight-byte words as unsigned integers; ``section.word(name)`` is an index.
        signed: the same words as signed integers.
        floats: the same words as doubles.
    """

    def __init__(self, file: mmap.mmap, section: Section, offsets: tuple[int, int]) -> None:
        self._file, self._section = file, section
        self._slices = tuple(slice(at, at + section.size) for at in offsets)
        self._data = bytearray(section.size)
        self._body = memoryview(self._data)[: section.offsets["checksum"]]
        self.words = memoryview(self._data).cast("Q")
        self.signed = memoryview(self._data).cast("q")
        self.floats = memoryview(self._data).cast("d")
        self._checksum = section.word("checksum")
        self._written = section.word("written_ns")
        self._present = section.word("present")
        assert section.word("sequence") == 0

    def commit(self, now_ns: int) -> None:
        """Writes the state into the older slot; ``now_ns`` is monotonic."""
        words = self.words
        sequence = words[0] + 1
        words[0] = sequence
        words[self._written] = now_ns
        words[self._checksum] = crc32(self._body)
        # The other slot keeps the state before, whenever this copy is interrupted.
        self._file[self._slices[sequence & 1]] = self._data

    def knows(self, name: str) -> bool:
        """Whether an optional field is set."""
        return bool(self.words[self._present] & self._section.presence[name])

    def know(self, name: str, value: float) -> None:
        """Sets an optional field: a double or a signed integer, as the field is."""
        word = self._section.word(name)
        if self._section.codes[name] == "d":
            self.floats[word] = value
        else:
            self.signed[word] = int(value)
        self.words[self._present] |= self._section.presence[name]

    def count(self, name: str, item: str = "", number: int = 1) -> None:
        """Adds to an integer, or to the one of an array that counts an item."""
        self.words[self._word_of(name, item)] += number

    def add(self, name: str, seconds: float, item: str = "") -> None:
        """Adds to a double, or to the one of an array that belongs to an item."""
        self.floats[self._word_of(name, item)] += seconds

    def _word_of(self, name: str, item: str) -> int:
        return self._section.word(name) + (self._section.items[name].index(item) if item else 0)

    def release(self) -> None:
        """Releases the memory that the views hold."""
        for view in (self._body, self.words, self.signed, self.floats):
            view.release()


_ROW_BYTES = ROW.size
_ROW_BODY_BYTES = ROW.offsets["checksum"]
_NO_PHASES = (0.0,) * len(STEP_PHASES)
_HEAD = struct.Struct("<" + "".join(field.format for field in ROW.fields[:-2]))


@dataclass(frozen=True, kw_only=True, slots=True)
class RankIdentity:
    """The rank that writes a page, mesh coordinates by axis name; ValueError if they do not fit."""

    job_id: str
    rank: int
    world_size: int
    local_rank: int = 0
    attempt: int = 0
    cluster: str = "local"
    project: str = ""
    node: str = ""
    gpu_uuid: str = ""
    torch_version: str = ""
    nccl_version: str = ""
    queue: str = ""
    job_class: str = ""
    launch_key: int = 0
    mesh: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank {self.rank} is outside the world of {self.world_size}; "
                f"ranks run from 0 to {self.world_size - 1}"
            )
        for axis, _ in self.mesh:
            if axis not in MESH_AXES:
                raise ValueError(f"mesh axis {axis!r} is none of {', '.join(MESH_AXES)}")
        for field in IDENTITY.fields:
            value = getattr(self, field.name, "") if field.code.endswith("s") else ""
            if len(value.encode()) > int(field.code.rstrip("s") or 0 if value else 1 << 30):
                raise ValueError(f"{field.name} {value!r} takes more than {field.code[:-1]} bytes")
            if not value.isprintable():
                raise ValueError(f"{field.name} {value!r} must hold printable characters only")


class PageWriter:
    """The writing side of one page.

    ``words`` and ``floats`` are the slot's eight-byte words as unsigned integers and as doubles;
    a caller adds into them by ``SLOT.word(name)`` and then calls ``commit``. ``periodic`` is the
    same for what changes about once a second. ``heartbeat_word`` holds the heartbeat at index 0,
    see ``heartbeat``. ``noted`` is a row with the extras of the next one that are known by now.
    ``file`` is the whole page, mapped, with its ring of ``rows``. ``lock`` shows that this process
    runs.

    Args:
        locks: whether the page is locked; without it readers go by the pid in the page.

    Raises:
        NoPageError: no page can be created in this folder.
        ValueError: the number of rows is out of its range.
    """

    def __init__(
        self, path: Path, identity: RankIdentity, rows: int = DEFAULT_ROWS, *, locks: bool = True
    ) -> None:
        if not 1 <= rows <= MAX_ROWS:
            raise ValueError(f"rows {rows} must be between 1 and {MAX_ROWS}")
        self.path, self.identity = path, identity
        self.file, descriptor = create_file(path, page_bytes(rows))
        self.lock = PageLock(descriptor, is_wanted=locks)
        self.rows = rows
        self.now = Slots(self.file, SLOT, SLOT_OFFSETS)
        self.periodic = Slots(self.file, PERIODIC, PERIODIC_OFFSETS)
        self.words, self.signed, self.floats = self.now.words, self.now.signed, self.now.floats
        # Bound once: commit runs in every step.
        self.commit = self.now.commit
        self.noted = bytearray(ROW.size)
        self._noted_words: memoryview[Any] = memoryview(self.noted).cast("I")
        self._noted_floats: memoryview[Any] = memoryview(self.noted).cast("d")
        self.heartbeat_word = memoryview(self.file)[HEARTBEAT_OFFSET : HEARTBEAT_OFFSET + 8].cast(
            "Q"
        )
        self._write_identity(rows)
        self.heartbeat(time.monotonic_ns(), 0)
        self.periodic.commit(time.monotonic_ns())
        self.commit(time.monotonic_ns())

    def _write_identity(self, rows: int) -> None:
        mesh = dict(self.identity.mesh)
        # The other fields are those of ``identity``.
        own = {
            "magic": MAGIC,
            "version": VERSION,
            "row_count": rows,
            "row_bytes": ROW.size,
            "slot_bytes": SLOT.size,
            "pid": os.getpid(),
            "periodic_bytes": PERIODIC.size,
            "locked": self.lock.is_held,
            "checksum": 0,
            "start_monotonic_ns": time.monotonic_ns(),
            "start_wall_ns": time.time_ns(),
            **{axis: mesh.get(axis, -1) for axis in MESH_AXES},
        }
        values = []
        for field in IDENTITY.fields:
            value = own.get(field.name, getattr(self.identity, field.name, None))
            values.append(value.encode() if isinstance(value, str) else value)
        packed = bytearray(IDENTITY.struct.pack(*values))
        checksum_at = IDENTITY.offsets["checksum"]
        packed[checksum_at:] = crc32(packed[:checksum_at]).to_bytes(4, "little")
        self.file[: IDENTITY.size] = bytes(packed)

    def heartbeat(self, now_ns: int, phase: int) -> None:
        """Records the phase that begins now: one aligned store, which no reader sees half of."""
        self.heartbeat_word[0] = now_ns << 4 | phase

    def append(
        self,
        *,
        step: int,
        start_ns: int,
        seconds: float,
        phase_seconds: Sequence[float] = _NO_PHASES,
        first_arrival_ns: int | None = None,
        last_arrival_ns: int | None = None,
        loss: float | None = None,
        gradient_norm: float | None = None,
        tokens: int = 0,
        samples: int = 0,
        flags: int = 0,
    ) -> int:
        """Writes the next row with the extras that were added to it; returns the number of rows.

        The arguments are fields of the row; ``phase_seconds`` are in the order of ``STEP_PHASES``.
        """
        optional = (first_arrival_ns, last_arrival_ns, loss, gradient_norm)
        present: int = self._noted_words[_ROW_PRESENT]
        for bit, value in enumerate(optional):
            present |= (value is not None) << bit
        first, last, row_loss, norm = (0 if value is None else value for value in optional)
        number, row = self.words[_STEPS], self.noted
        # fmt: off
        _HEAD.pack_into(
            row, 0, number % ROW_NUMBERS, flags, step, start_ns, first, last, seconds,
            *phase_seconds, row_loss, norm, tokens, samples, present,
        )
        # fmt: on
        row[_ROW_BODY_BYTES:] = crc32(row[:_ROW_BODY_BYTES]).to_bytes(8, "little")
        # The row goes first and the state that counts it second: a kill in between loses no row.
        at = RING_OFFSET + number % self.rows * _ROW_BYTES
        self.file[at : at + _ROW_BYTES] = row
        row[:] = _NOTHING_NOTED
        self.words[_STEPS] = number = number + 1
        return number

    def add_to_row(self, name: str, number: float) -> None:
        """Adds to one of ``EXTRAS`` in the row that is written next."""
        self._noted_floats[_EXTRA_WORDS[name]] += number
        self._noted_words[_ROW_PRESENT] |= ROW.presence[name]

    def count_step(self, step: int, seconds: float, tokens: int, samples: int) -> None:
        """Adds a step to the state."""
        words = self.words
        self.signed[_STEP] = step
        words[_TOKENS] += tokens
        words[_SAMPLES] += samples
        words[_SETTLED_STEPS] += 1
        self.floats[_STEP_SECONDS_SUM] += seconds
        words[_STEP_BUCKETS + bisect_left(STEP_BUCKETS, seconds)] += 1

    def count_checkpoint(self, outcome: str) -> None:
        """Counts one attempt to write a checkpoint."""
        self.words[SLOT.word("checkpoints") + CHECKPOINT_OUTCOMES.index(outcome)] += 1

    def count_collective(self, kind: str, calls: int, size_bytes: int, seconds: float) -> None:
        """Adds collectives of one kind: calls, bytes and exposed seconds."""
        index = _KIND_INDICES[kind]
        self.words[_COLLECTIVES + index] += calls
        self.words[_COLLECTIVE_BYTES + index] += size_bytes
        self.floats[_COLLECTIVE_SECONDS + index] += seconds

    def close(self) -> None:
        """Releases the mapping and the lock; the file stays."""
        self.heartbeat_word.release()
        self._noted_words.release()
        self._noted_floats.release()
        self.now.release()
        self.periodic.release()
        self.lock.release()
        self.file.close()


_STEPS, _STEP, _TOKENS, _SAMPLES = (
    SLOT.word(name) for name in ("steps", "step", "tokens", "samples")
)
_STEP_SECONDS_SUM, _SETTLED_STEPS = SLOT.word("step_seconds_sum"), SLOT.word("settled_steps")
_STEP_BUCKETS = SLOT.word("step_buckets")
_COLLECTIVES = SLOT.word("collectives")
_COLLECTIVE_BYTES = SLOT.word("collective_bytes")
_COLLECTIVE_SECONDS = SLOT.word("collective_seconds")
_KIND_INDICES = {kind: index for index, kind in enumerate(COLLECTIVE_KINDS)}
_ROW_PRESENT = ROW.offsets["present"] // 4
_EXTRA_WORDS = {name: ROW.word("extras") + index for index, name in enumerate(EXTRAS)}
assert [*ROW.presence][:4] == ["first_arrival_ns", "last_arrival_ns", "loss", "gradient_norm"]
_NOTHING_NOTED = bytes(ROW.size)
