"""The one table of the rank page, format v1: writer, reader and docs/format.md come from it.

A page is one fixed-size file: identity, pulse, two slots and a ring of step rows. Everything is
little-endian; words of eight bytes are aligned to eight. Clocks are CLOCK_MONOTONIC in
nanoseconds unless a name says wall; the identity holds a pair of both to convert with.
"""

import struct
from dataclasses import dataclass

from lockstep_catalogue.labels import KIND, OUTCOME, STEP_PHASES
from lockstep_catalogue.training import STEP_SECONDS

MAGIC = b"LKSTPAGE"
VERSION = 1

# The code of a phase is its place here; four bits of the pulse hold it. Those of a step row stand
# together, in the order of the row.
PHASES = (
    "init",
    "data",
    "forward",
    "backward",
    "sync",
    "optimizer",
    "checkpoint",
    "eval",
    "other",
    "restore",
    "done",
    "failed",
)
COLLECTIVE_KINDS = KIND.values
CHECKPOINT_OUTCOMES = OUTCOME.values
STEP_BUCKETS = STEP_SECONDS.buckets
MESH_AXES = ("dp", "fsdp", "pp", "tp", "cp", "ep")


@dataclass(frozen=True, slots=True)
class Field:
    """One field: struct code, how many of them, its meaning; optional ones have a presence bit."""

    name: str
    code: str
    help: str
    count: int = 1
    optional: bool = False
    items: tuple[str, ...] = ()

    @property
    def format(self) -> str:
        """The struct format of the whole field."""
        if self.code.endswith("s"):
            return self.code
        return f"{self.count}{self.code}" if self.count > 1 else self.code


class Section:
    """Fields in a row, with their offsets in bytes from the section's start.

    Attributes:
        size: bytes that the fields take.
        presence: bit of each optional field in the field ``present``.
    """

    def __init__(self, name: str, help_: str, *fields: Field) -> None:
        self.name, self.help, self.fields = name, help_, fields
        self.struct = struct.Struct("<" + "".join(field.format for field in fields))
        self.size = self.struct.size
        self.offsets: dict[str, int] = {}
        at = 0
        for field in fields:
            size = struct.calcsize("<" + field.format)
            width = struct.calcsize("<" + field.code) if not field.code.endswith("s") else 1
            assert at % width == 0, f"{name}.{field.name} is not aligned"
            self.offsets[field.name] = at
            at += size
        optional = [field.name for field in fields if field.optional]
        self.presence = {name: 1 << bit for bit, name in enumerate(optional)}

    def word(self, name: str) -> int:
        """Index of a field when the section is seen as words of eight bytes."""
        return self.offsets[name] // 8


def _text(name: str, size: int, help_: str) -> Field:
    return Field(name, f"{size}s", help_)


IDENTITY = Section(
    "identity",
    "Written once at birth, sealed by its checksum.",
    _text("magic", 8, "LKSTPAGE"),
    Field("version", "I", "format of the page; a reader takes only the versions it knows"),
    Field("row_count", "I", "rows in the ring"),
    Field("row_bytes", "I", "bytes of a row"),
    Field("slot_bytes", "I", "bytes of a slot"),
    Field("rank", "i", "global rank"),
    Field("local_rank", "i", "rank on its node"),
    Field("world_size", "i", "number of ranks"),
    Field("attempt", "i", "restarts of the job before this page, from 0"),
    Field("pid", "i", "process of the rank"),
    *(Field(axis, "i", f"coordinate on the {axis} axis, -1 where unused") for axis in MESH_AXES),
    Field("padding", "i", "zero"),
    Field("start_monotonic_ns", "q", "clock pair, taken together at birth: monotonic"),
    Field("start_wall_ns", "q", "clock pair, taken together at birth: wall, since the epoch"),
    _text("job_id", 128, "one training job over all its attempts"),
    _text("cluster", 64, "name of the cluster"),
    _text("project", 64, "who the job is accounted to"),
    _text("node", 128, "name of the machine"),
    _text("gpu_uuid", 64, "UUID of the rank's GPU, empty on a CPU"),
    _text("torch_version", 32, "version of torch, empty when unknown"),
    _text("nccl_version", 32, "version of NCCL, empty when there is none"),
    Field("checksum", "I", "CRC-32 of everything before it in the identity"),
)

PULSE = Section(
    "pulse",
    "One word, replaced by a single aligned store at every boundary mark; no checksum needed.",
    Field("mark", "Q", "monotonic nanoseconds of the last mark x 16 + code of the phase it began"),
)

SLOT = Section(
    "slot",
    "State after a completed step; two of them alternate, the newest valid one counts.",
    Field("sequence", "Q", "number of this write, from 1; its last bit tells which slot it is in"),
    Field("present", "Q", "bit n is set when the n-th optional field is known"),
    Field("step", "q", "last completed step, as the job counts", optional=True),
    Field("written_ns", "q", "monotonic time of the write"),
    Field("loss", "d", "last loss told", optional=True),
    Field("gradient_norm", "d", "last gradient norm told", optional=True),
    Field("learning_rate", "d", "last learning rate told", optional=True),
    Field("checkpoint_step", "q", "step of the last durable checkpoint", optional=True),
    Field("checkpoint_wall_ns", "q", "wall clock when it was durable", optional=True),
    Field("steps", "Q", "steps completed in this attempt, which is also the rows written"),
    Field("samples", "Q", "samples trained on"),
    Field("tokens", "Q", "tokens trained on"),
    Field("nonfinite_steps", "Q", "steps whose loss or gradient norm was NaN or infinite"),
    Field("internal_errors", "Q", "errors of the monitor that were swallowed"),
    Field("phase_seconds", "d", "seconds by phase", len(PHASES), items=PHASES),
    Field(
        "checkpoints",
        "Q",
        "attempts by outcome",
        len(CHECKPOINT_OUTCOMES),
        items=CHECKPOINT_OUTCOMES,
    ),
    Field("collectives", "Q", "collectives by kind", len(COLLECTIVE_KINDS), items=COLLECTIVE_KINDS),
    Field(
        "collective_bytes",
        "Q",
        "bytes handed to collectives by kind",
        len(COLLECTIVE_KINDS),
        items=COLLECTIVE_KINDS,
    ),
    Field(
        "collective_seconds",
        "d",
        "exposed seconds from own arrival to completion by kind",
        len(COLLECTIVE_KINDS),
        items=COLLECTIVE_KINDS,
    ),
    Field("step_seconds_sum", "d", "sum of the durations of steps"),
    Field(
        "step_buckets",
        "Q",
        "steps by duration: at most the bucket's bound, and more than the last",
        len(STEP_BUCKETS) + 1,
        items=(*(str(bound) for bound in STEP_BUCKETS), "more"),
    ),
    Field("checksum", "Q", "CRC-32 of everything before it in the slot"),
)

ROW = Section(
    "row",
    "One step. Phases are contiguous, so their seconds add up to the step.",
    Field(
        "number",
        "Q",
        "count of rows in this attempt, from 0; row n stands at place n mod row_count",
    ),
    Field("step", "q", "step, as the job counts"),
    Field("start_ns", "q", "monotonic time at which the step began"),
    Field("first_arrival_ns", "q", "arrival at the step's first collective", optional=True),
    Field(
        "last_arrival_ns",
        "q",
        "end of the step's last collective less all its waiting; of a single one the arrival",
        optional=True,
    ),
    Field("seconds", "f", "duration of the step"),
    *(Field(f"{phase}_seconds", "f", f"seconds in {phase}") for phase in STEP_PHASES),
    Field("loss", "f", "training loss of this rank", optional=True),
    Field("gradient_norm", "f", "gradient norm before clipping", optional=True),
    Field("tokens", "I", "tokens of this rank"),
    Field("samples", "I", "samples of this rank"),
    Field("present", "I", "bit n is set when the n-th optional field is known"),
    _text("reserved", 28, "zero"),
    Field("checksum", "I", "CRC-32 of everything before it in the row"),
)

PULSE_OFFSET = 4096
SLOT_OFFSETS = (8192, 12288)
RING_OFFSET = 16384
DEFAULT_ROWS = 65_536
MAX_ROWS = 1 << 20

assert IDENTITY.size <= PULSE_OFFSET
assert SLOT.size <= SLOT_OFFSETS[1] - SLOT_OFFSETS[0]
assert ROW.size % 8 == 0


def page_bytes(rows: int) -> int:
    """Size of a page with that many rows, in bytes."""
    return RING_OFFSET + rows * ROW.size
