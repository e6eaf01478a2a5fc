"""Communicators and a ring of the last collectives, which NCCL's plugin keeps beside its page.

The plugin (instrumentation/native/plugin) writes both without a lock; a collective counts when its
number fits its place. The file ends with the process and outlives it, as a page does.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from lockstep_records.file_access.foreign_files import open_foreign
from lockstep_records.page.layout import Field, Section
from lockstep_records.page.reader import PageError, unpack, unpack_head

MAGIC = b"LKSTNCCL"
VERSION = 1
SUFFIX = ".launches"
MAX_COMMUNICATORS = 256
MAX_COLLECTIVES = 16_384
FUNCTIONS = (
    "Invalid",
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "AlltoAll",
    "Broadcast",
    "Reduce",
    "Gather",
    "Scatter",
    "Send",
    "Recv",
    "SendRecv",
)
"""Code of a function is its index."""
PAIRWISE = ("Send", "Recv")
"""Functions that bring two ranks together, and are counted for each peer and direction."""

HEADER = Section(
    "launches header",
    "Written once at creation, protected by its checksum.",
    Field("magic", "8s", "LKSTNCCL"),
    Field("version", "I", "format of the file; a reader takes only the versions it knows"),
    Field("collectives", "I", "places in the ring"),
    Field("rank", "i", "global rank"),
    Field("pid", "i", "process of the rank"),
    Field("interface", "I", "version of the profiler interface that the library took"),
    Field("is_rccl", "I", "1 where the library is RCCL"),
    Field("checksum", "I", "CRC-32 of everything before it in the header"),
)
COMMUNICATOR = Section(
    "communicator",
    "One communicator of the process.",
    Field("communicator", "Q", "the same on all its ranks; 0 in a place that none has"),
    Field("launched", "Q", "collectives that the rank has handed over in it"),
    Field("ranks", "i", "its size; 0 where unknown"),
    Field("rank", "i", "of this process in it; -1 where unknown"),
)
COLLECTIVE = Section(
    "collective",
    "One collective, or one send or receive.",
    Field("number", "Q", "count in this process from 1; n is at index (n - 1) mod collectives"),
    Field("arrival_ns", "q", "monotonic time at which the host handed it over"),
    Field("begin_ns", "q", "monotonic time at which the device began it; 0 where unknown"),
    Field("end_ns", "q", "monotonic time of the last end of a part of it; 0 where unknown"),
    Field("communicator", "Q", "as in the table"),
    Field("sequence", "Q", "its number among those of the function in the communicator"),
    Field("size_bytes", "Q", "count times size of the type"),
    Field("kernels_begun", "H", "channels whose kernel began"),
    Field("kernels_ended", "H", "and ended"),
    Field("proxies_begun", "H", "parts that a network thread began"),
    Field("proxies_ended", "H", "and ended"),
    Field("rank", "i", "of this process in the communicator"),
    Field("ranks", "i", "of the communicator; 0 where unknown"),
    Field("peer", "i", "rank in the communicator that a send or a receive is with; else -1"),
    Field("channels", "H", "channels that it has; 0 where unknown"),
    Field("function", "H", "code of the function"),
)
COMMUNICATORS_OFFSET = 4096
RING_OFFSET = COMMUNICATORS_OFFSET + MAX_COMMUNICATORS * COMMUNICATOR.size


@dataclass(frozen=True, kw_only=True, slots=True)
class Launches:
    """Of one rank.

    Attributes:
        interface: version of the profiler interface.
        by_communicator: collectives that were handed over, by communicator.
        collectives: the newest ones, oldest first, as dicts by field name.
    """

    interface: int
    by_communicator: dict[str, int]
    collectives: list[dict[str, int]]


def read_launches(page: Path, *, with_collectives: bool = True) -> Launches:
    """What lies beside a page of the plugin.

    Raises:
        PageError: the file cannot be read; the text names the field.
        OSError: it is refused, or is not there.
    """
    path = page.with_suffix(SUFFIX)
    size = RING_OFFSET + MAX_COLLECTIVES * COLLECTIVE.size
    with open_foreign(path) as descriptor:
        data = os.pread(descriptor, size if with_collectives else RING_OFFSET, 0)
    head = unpack_head(HEADER, data, f"launches {path}", MAGIC, VERSION)
    if len(data) < RING_OFFSET or head["collectives"] != MAX_COLLECTIVES:
        raise PageError("truncated", f"launches {path} has {len(data)} bytes")
    table = data[COMMUNICATORS_OFFSET:RING_OFFSET]
    by_communicator, num_nameless = dict[str, int](), 0
    for communicator, launched, *_ in struct.iter_unpack(COMMUNICATOR.struct.format, table):
        if communicator:
            name = f"{communicator:#x}"
            by_communicator[name] = by_communicator.get(name, 0) + launched
            num_nameless += communicator < MAX_COMMUNICATORS
    if num_nameless > 1:  # an old interface hands on no identity: nobody knows who is in which
        by_communicator = {}
    return Launches(
        interface=head["interface"],
        by_communicator=by_communicator,
        collectives=_collectives(data[RING_OFFSET:]) if with_collectives else [],
    )


def _collectives(ring: bytes) -> list[dict[str, int]]:
    """Those whose number fits their place, oldest first."""
    rows = [
        unpack(COLLECTIVE, ring[at : at + COLLECTIVE.size])
        for at in range(0, len(ring) - COLLECTIVE.size + 1, COLLECTIVE.size)
        if ring[at : at + 8] != bytes(8)
    ]
    fitting = sorted(
        (row for row in rows if row["function"] < len(FUNCTIONS)), key=lambda row: row["number"]
    )
    newest = fitting[-1]["number"] if fitting else 0
    return [row for row in fitting if row["number"] > newest - MAX_COLLECTIVES]
