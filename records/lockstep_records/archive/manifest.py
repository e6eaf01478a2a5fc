"""Manifests: the parts of a job in an archive, one a node, so that no two agents write one file.

``URL/jobs/JOB_ID/nodes/NODE/manifest.json``, beside it ``events.jsonl`` and the tables in
``ATTEMPT/``: ``steps-000000004096.parquet`` from that row on, ``operations-...`` of the same steps,
and ``ranks.parquet`` once the attempt has ended.

``URL/jobs/JOB_ID/thinned.json`` says what thinning left of attempts, for all nodes in one file.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Annotated, Literal, TypeVar

import msgspec

from lockstep_records.files.jobs import JOB_ID, MAX_PAGES

MAX_MANIFEST_BYTES = 16 << 20
_ATTEMPT = re.compile(r"[0-9]{1,9}")
EVENTS, MANIFEST, RANKS, THINNED = "events.jsonl", "manifest.json", "ranks", "thinned.json"
FINDINGS = "findings.json"
"""In the folder of an attempt: what its analysis found before it was thinned."""
_VERSION = 1
Decoded = TypeVar("Decoded")
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
MAX_ROWS = 1 << 22
"""Of a file, all ranks together, so that a report can hold it."""
TableName = Literal["steps", "operations", "ranks", "minutes"]


class Stretch(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A file of rows, and which of each rank; ``rows`` are of all together, steps those of rows.

    A file that ``is_part`` has those rows of the stretch that thinning left.
    """

    table: TableName
    first_row: Count
    end_row: Count
    rows: Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]
    size_bytes: Count
    first_step: int = 0
    last_step: int = -1
    is_part: bool = False

    @property
    def name(self) -> str:
        """Its file in the folder of the attempt."""
        return self.is_part * "part-" + table_name(self.table, self.first_row)


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


class ThinnedAttempt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left of an attempt: parts by node, in place of those of the manifests.

    ``intact`` are first and last step of each stretch whose rows are all there; ``num_thinned`` is
    how many other steps there were; ``findings_crc`` is the CRC-32 of its ``FINDINGS``.
    """

    nodes: dict[str, AttemptPart]
    findings_crc: Count = 0
    intact: tuple[tuple[int, int], ...] = ()
    num_thinned: Count = 0


class ThinnedJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The attempts of a job that were thinned, by number.

    ``is_clean`` says that the files in their place are gone; ``time`` is seconds since the epoch.
    """

    job_id: str
    version: int = _VERSION
    time: Count
    is_clean: bool = False
    attempts: dict[str, ThinnedAttempt] = {}

    def replace_parts(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        """The manifests of the nodes, with what is left of thinned attempts."""
        by_node = {manifest.node: manifest for manifest in manifests}
        for number, attempt in self.attempts.items():
            for node, part in attempt.nodes.items():
                old = by_node.get(node) or Manifest(job_id=self.job_id, node=node)
                attempts = {**old.attempts, number: part}
                by_node[node] = msgspec.structs.replace(old, attempts=attempts)
        return [by_node[node] for node in sorted(by_node)]


def table_name(table: str, first_row: int) -> str:
    """The file of a table in the folder of an attempt."""
    return f"{table}.parquet" if table == RANKS else f"{table}-{first_row:012d}.parquet"


def decode_manifest(data: bytes, job_id: str, folder: str) -> Manifest:
    """The manifest in a node's folder of that job; ValueError, without its file, for another."""
    manifest = _decode(data, Manifest)
    if (manifest.job_id, manifest.node) != (job_id, folder):
        raise ValueError(f"it is of node {manifest.node!r} of job {manifest.job_id!r}")
    _check_attempts(manifest.attempts)
    return manifest


def decode_thinned(data: bytes, job_id: str) -> ThinnedJob:
    """What was thinned of that job; ValueError, without its file, for another."""
    thinned = _decode(data, ThinnedJob)
    if thinned.job_id != job_id:
        raise ValueError(f"it is of job {thinned.job_id!r}")
    for number, attempt in thinned.attempts.items():
        if not all(map(JOB_ID.fullmatch, attempt.nodes)):
            raise ValueError(f"attempt {number} has a node whose name is none")
        for part in attempt.nodes.values():
            _check_attempts({number: part})
    return thinned


def _decode(data: bytes, kind: type[Decoded]) -> Decoded:
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError(f"it has more than {MAX_MANIFEST_BYTES:,} bytes")
    version = msgspec.json.decode(data, type=_Versioned).version
    if version != _VERSION:
        raise ValueError(f"it is of version {version}, of another Lockstep than this one")
    return msgspec.json.decode(data, type=kind)


def _check_attempts(attempts: Mapping[str, AttemptPart]) -> None:
    for number, part in attempts.items():
        if not _ATTEMPT.fullmatch(number):
            raise ValueError(f"attempt {number!r} is not a number")
        spans = sorted((s.table, s.first_row, s.end_row) for s in part.stretches)
        if any(s[0] == t[0] and t[1] < s[2] for s, t in pairwise(spans)):
            raise ValueError(f"two files of attempt {number} have the same rows")
        if any(rank >= part.world_size for rank in part.ranks):
            raise ValueError(f"attempt {number} has a rank outside its {part.world_size:,}")
