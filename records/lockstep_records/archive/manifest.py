"""Manifests: the parts of a job in an archive, one a node, so that no two agents write one file.

``URL/jobs/JOB_ID/nodes/NODE/manifest.json``, beside it ``events.jsonl`` and the tables in
``ATTEMPT/``: ``steps-000000004096.parquet`` from that row on, ``operations-...`` of the same steps,
and ``ranks.parquet`` once the attempt has ended.
"""

import re
from itertools import pairwise
from typing import Annotated, Literal

import msgspec

from lockstep_records.files.jobs import MAX_PAGES

MAX_MANIFEST_BYTES = 16 << 20
_ATTEMPT = re.compile(r"[0-9]{1,9}")
EVENTS, MANIFEST, RANKS = "events.jsonl", "manifest.json", "ranks"
_VERSION = 1
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
MAX_ROWS = 1 << 22
"""Of a file, all ranks together, so that a report can hold it."""
TableName = Literal["steps", "operations", "ranks"]


class Stretch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of rows, and which of each rank; ``rows`` are of all together, steps those of rows."""

    table: TableName
    first_row: Count
    end_row: Count
    rows: Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]
    size_bytes: Count
    first_step: int = 0
    last_step: int = -1

    @property
    def name(self) -> str:
        """Its file in the folder of the attempt."""
        return table_name(self.table, self.first_row)


class AttemptPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node has of an attempt; ``is_complete`` says that nothing is to come."""

    world_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    ranks: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_PAGES)] = ()
    stretches: tuple[Stretch, ...] = ()
    is_complete: bool = False

    @property
    def end_row(self) -> int:
        """Number of the first row that is in no file of steps."""
        return max((each.end_row for each in self.stretches if each.table == "steps"), default=0)


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a node has of a job; attempts by number, and whether it has events beside."""

    job_id: str
    node: str
    version: int = _VERSION
    attempts: dict[str, AttemptPart] = {}
    has_events: bool = False


class _Versioned(msgspec.Struct):
    version: int = _VERSION


def table_name(table: str, first_row: int) -> str:
    """The file of a table in the folder of an attempt."""
    return f"{table}.parquet" if table == RANKS else f"{table}-{first_row:012d}.parquet"


def decode_manifest(data: bytes, job_id: str, folder: str) -> Manifest:
    """The manifest in a node's folder of that job; ValueError, without its file, for another."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError(f"it has more than {MAX_MANIFEST_BYTES:,} bytes")
    version = msgspec.json.decode(data, type=_Versioned).version
    if version != _VERSION:
        raise ValueError(f"it is of version {version}, of another Lockstep than this one")
    manifest = msgspec.json.decode(data, type=Manifest)
    if (manifest.job_id, manifest.node) != (job_id, folder):
        raise ValueError(f"it is of node {manifest.node!r} of job {manifest.job_id!r}")
    for number, part in manifest.attempts.items():
        if not _ATTEMPT.fullmatch(number):
            raise ValueError(f"attempt {number!r} is not a number")
        spans = sorted((s.table, s.first_row, s.end_row) for s in part.stretches)
        if any(s[0] == t[0] and t[1] < s[2] for s, t in pairwise(spans)):
            raise ValueError(f"two files of attempt {number} have the same rows")
        if any(rank >= part.world_size for rank in part.ranks):
            raise ValueError(f"attempt {number} has a rank outside its {part.world_size:,}")
    return manifest
