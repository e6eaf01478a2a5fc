"""Writes a rank page: a few microseconds a step, no system call, nothing that can block.

``new_file`` creates its file.
"""

import os
import struct
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from lockstep_catalogue.labels import STEP_PHASES
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
    page_bytes,
)
from lockstep_records.page.lock import PageLock
from lockstep_records.page.new_file import NoPageError, create_file, create_mapping
from lockstep_records.page.slots import Slots

__all__ = ["NoPageError", "PageWriter", "RankIdentity", "create_mapping"]
_ROW_BYTES = ROW.size
_ROW_BODY_BYTES = ROW.offsets["checksum"]
_NO_PHASES = (0.0,) * len(STEP_PHASES)
_HEAD = struct.Struct("<" + "".join(field.format for field in ROW.fields[:-2]))


@dataclass(frozen=True, kw_only=True, slots=True)
class RankIdentity:
    """The rank that writes a page. Mesh coordinates are by axis name; absent axes are unused.

    Raises:
        ValueError: rank and world size do not fit, or a text is too long for the page.
    """

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
        self,
        path: Path,
        identity: RankIdentity,
        rows: int = DEFAULT_ROWS,
        *,
        locks: bool = True,
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
