"""Operation rows: the time inside sampled steps, in a ring file beside the rank page.

The columns are those of the published straggler traces (https://arxiv.org/abs/2505.05713), so
that one what-if engine reads ours and theirs. Like the page, a file is created on a verified tmpfs
with all its space allocated, and what was written survives the rank's SIGKILL: a row counts when
its number fits its position and its checksum holds.
"""

import mmap
import os
import zlib
from pathlib import Path

from lockstep_catalogue.labels import KIND
from lockstep_records.file_access.foreign_files import open_descriptor
from lockstep_records.page.layout import MESH_AXES, Field, Section
from lockstep_records.page.reader import PageError, Values, unpack_head
from lockstep_records.page.writer import create_mapping

SUFFIX = ".ops"
MAGIC = b"LKSTPOPS"
VERSION = 1
DEFAULT_ROWS = 16_384
MAX_ROWS = 1 << 20
RING_OFFSET = 4096

# Name of an operation, as the published traces write it -> the mesh axis of the ranks that do it
# together; none for local work. The code of an operation is its index here.
OPERATIONS: dict[str, str | None] = {
    "forward-compute": None,
    "backward-compute": None,
    "forward-send": "pp",
    "forward-recv": "pp",
    "backward-send": "pp",
    "backward-recv": "pp",
    "params-all-gather": "dp",
    "grads-reduce-scatter": "dp",
    "separate-grads-all-reduce": "dp",
    "layernorm-grads-all-reduce": "tp",
    "embedding-grads-all-reduce": "pp",
    "optimizer-clip-main-grad": None,
    "optimizer": None,
    "gc": None,
    # Of sharded, tensor-parallel and expert-parallel jobs, which the published traces do not have.
    "params-sync": "fsdp",
    "grads-sync": "dp",
    "all_to_all": "ep",
    "tensor-all-reduce": "tp",
    "tensor-all-gather": "tp",
    "tensor-reduce-scatter": "tp",
}
NAMES = tuple(OPERATIONS)
CODES = {name: code for code, name in enumerate(NAMES)}
KINDS = KIND.values
UNKNOWN = -1  # of a coordinate in a row; readers give None

HEADER = Section(
    "operations header",
    "Written once at creation, protected by its checksum. Process and start are those of the page.",
    Field("magic", "8s", "LKSTPOPS"),
    Field("version", "I", "format of the file; a reader takes only the versions it knows"),
    Field("row_count", "I", "rows in the ring"),
    Field("row_bytes", "I", "bytes of a row"),
    Field("rank", "i", "global rank"),
    Field("pid", "i", "process of the rank"),
    Field("checksum", "I", "CRC-32 of everything before it in the header"),
)

OPERATION = Section(
    "operation",
    "One operation of a sampled step.",
    Field("number", "Q", "count of rows in this attempt; row n is at index n mod row_count"),
    Field("step", "q", "step, as the job counts"),
    Field("start_ns", "q", "monotonic time of the start; of a collective, of this rank's arrival"),
    Field("duration_ns", "Q", "until its end"),
    Field("sequence", "I", "order among the operations of this name in the step, from 0"),
    Field("micro_batch", "h", "micro-batch, -1 where it has none"),
    Field("chunk", "h", "index of the model chunk: the pipeline stage; -1 where it has none"),
    Field("operation", "b", "code of the operation"),
    Field("kind", "b", "code of the kind of collective, -1 where it is none"),
    Field("axis", "b", "mesh axis of the group, -1 for local work"),
    Field("flags", "B", "bit 0: derived from the step's phases; bit 1: time of the GPU's stream"),
    Field("checksum", "I", "CRC-32 of everything before it in the row"),
)
FROM_PHASES, ON_DEVICE = 1, 2

assert HEADER.size <= RING_OFFSET
assert OPERATION.size % 8 == 0


def operations_path(page: Path) -> Path:
    """The file of operation rows that belongs to a page."""
    return page.with_suffix(SUFFIX)


def operations_bytes(rows: int) -> int:
    """Size of a file with that many rows, in bytes."""
    return RING_OFFSET + rows * OPERATION.size


class OperationWriter:
    """The writing side: one packed row and one checksum an operation, no system call.

    Raises NoPageError where the file cannot be created, ValueError for too many rows.
    """

    def __init__(self, path: Path, rank: int, rows: int = DEFAULT_ROWS) -> None:
        if not 1 <= rows <= MAX_ROWS:
            raise ValueError(f"rows {rows} must be between 1 and {MAX_ROWS}")
        self.path, self._rows, self.written = path, rows, 0
        self._map: mmap.mmap = create_mapping(path, operations_bytes(rows))
        # One buffer for all rows: an operation allocates nothing.
        self._row = bytearray(OPERATION.size)
        self._body = memoryview(self._row)[:_CHECKSUM_BYTE]
        self._checksum = memoryview(self._row).cast("I")
        head = bytearray(
            HEADER.struct.pack(MAGIC, VERSION, rows, OPERATION.size, rank, os.getpid(), 0)
        )
        checksum_at = HEADER.offsets["checksum"]
        head[checksum_at:] = zlib.crc32(head[:checksum_at]).to_bytes(4, "little")
        self._map[: HEADER.size] = bytes(head)

    def append(
        self,
        step: int,
        operation: int,
        start_ns: int,
        end_ns: int,
        sequence: int,
        *,
        micro_batch: int = UNKNOWN,
        chunk: int = UNKNOWN,
        kind: int = UNKNOWN,
        flags: int = 0,
    ) -> None:
        """Writes the next row; ``operation`` and ``kind`` are codes, times monotonic."""
        number = self.written
        row = self._row
        OPERATION.struct.pack_into(
            row,
            0,
            number,
            step,
            start_ns,
            max(0, end_ns - start_ns),
            sequence,
            micro_batch,
            chunk,
            operation,
            kind,
            _AXIS[operation],
            flags,
            0,
        )
        self._checksum[_CHECKSUM] = zlib.crc32(self._body)
        at = RING_OFFSET + number % self._rows * OPERATION.size
        self._map[at : at + OPERATION.size] = row
        self.written = number + 1

    def close(self) -> None:
        """Releases the mapping; the file stays."""
        self._body.release()
        self._checksum.release()
        self._map.close()


def read_operations(path: Path) -> bytes:
    """The valid rows of a file, packed, oldest first, of whole steps; or PageError."""
    try:
        descriptor = open_descriptor(path)
    except OSError as error:
        raise PageError("io", f"operations {path} cannot be read: {error}") from error
    try:
        rows = _read_header(os.pread(descriptor, HEADER.size, 0), path)["row_count"]
        full_bytes = operations_bytes(rows)
        if (size := os.fstat(descriptor).st_size) != full_bytes:
            raise PageError(
                "truncated", f"operations {path} has {size} bytes, {rows} rows need {full_bytes}"
            )
        data = os.pread(descriptor, full_bytes - RING_OFFSET, RING_OFFSET)
    except OSError as error:
        raise PageError("io", f"operations {path} cannot be read: {error}") from error
    finally:
        os.close(descriptor)
    valid = _valid_rows(data)
    if valid and valid[0][0] > 0:
        torn = _step_of(valid[0][1])
        valid = [(number, row) for number, row in valid if _step_of(row) != torn]
    return b"".join(row for _, row in valid)


def _read_header(data: bytes, path: Path) -> Values:
    values = unpack_head(HEADER, data, f"operations {path}", MAGIC, VERSION)
    if values["row_bytes"] != OPERATION.size or not 1 <= values["row_count"] <= MAX_ROWS:
        raise PageError(
            "identity",
            f"operations {path}: {values['row_count']} rows of {values['row_bytes']} bytes; at most"
            f" {MAX_ROWS} of {OPERATION.size} are allowed",
        )
    return values


def _valid_rows(data: bytes) -> list[tuple[int, bytes]]:
    """Rows by number that are intact, at their index and of the newest lap or the one before."""
    count, rows = len(data) // OPERATION.size, []
    for index, number in enumerate(memoryview(data).cast("Q")[:: OPERATION.size // 8].tolist()):
        # Most of a ring may be empty.
        if number % count != index:
            continue
        row = data[index * OPERATION.size : (index + 1) * OPERATION.size]
        checksum = zlib.crc32(row[:_CHECKSUM_BYTE]).to_bytes(4, "little")
        if checksum == row[_CHECKSUM_BYTE:] and row[_OPERATION] < len(NAMES):
            rows.append((number, row))
    rows.sort()
    newest = rows[-1][0] if rows else 0
    return [(number, row) for number, row in rows if number > newest - count]


def _step_of(row: bytes) -> int:
    at = OPERATION.offsets["step"]
    return int.from_bytes(row[at : at + 8], "little", signed=True)


_CHECKSUM_BYTE = OPERATION.offsets["checksum"]
_OPERATION = OPERATION.offsets["operation"]
_CHECKSUM = _CHECKSUM_BYTE // 4
_AXIS = tuple(MESH_AXES.index(axis) if axis else UNKNOWN for axis in OPERATIONS.values())
