"""The one table of the rank page, from which follow writer, reader, C header and its docs.

A page is one fixed-size file: identity, heartbeat, two slots for what changes with every step, two
for what changes about once a second, and a ring of step rows. Everything is little-endian; words of
eight bytes are aligned to eight. Clocks are CLOCK_MONOTONIC in nanoseconds unless a name says wall;
the identity holds a pair of both to convert with.

A number that ranks tell per step is one entry at the end of ``EXTRAS``, one that they tell about
once a second an optional field at the end of ``PERIODIC``: neither sizes nor the version change.
What moves a field takes the next version, and pages of other versions are refused.
"""

import struct
from dataclasses import dataclass

from lockstep_catalogue.labels import ANOMALY, KIND, RESTORE_OUTCOME, STEP_PHASES, TROUBLE, WHERE
from lockstep_catalogue.training import CHECKPOINT_SECONDS, PART, STEP_SECONDS


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a section.

    Attributes:
        code: of Python's ``struct``.
        help: meaning, in a few words.
        count: length of an array; 1 for a single number.
        optional: a bit in the field ``present`` is set when the value is known; one for each item
            of an array.
        items: what each number of an array counts; an array may have room for more.
    """

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

    The last field is the checksum of those before it, unless there is only one.

    Args:
        size: bytes of the section, with room before the checksum for optional fields that come;
            0: as the fields need.

    Attributes:
        size: bytes that the fields take.
        presence: bit in the field ``present`` by optional field, or by item of an optional array.
        spans: of each field the name, the begin and end among the unpacked numbers, and its items.
        codes: struct code by field.
        items: what an array counts, by field.
        arrays: field by item, of optional arrays.
    """

    def __init__(self, name: str, help_: str, *fields: Field, size: int = 0) -> None:
        unused = size - sum(struct.calcsize("<" + field.format) for field in fields)
        if size and unused:
            fields = (*fields[:-1], Field("reserved", f"{unused}s", "zero"), fields[-1])
        self.name, self.help, self.fields = name, help_, fields
        self.struct = struct.Struct("<" + "".join(field.format for field in fields))
        self.size = self.struct.size
        self.offsets: dict[str, int] = {}
        self.spans: list[tuple[str, int, int, tuple[str, ...]]] = []
        offset = number = 0
        for field in fields:
            if field.name != "reserved":
                self.spans.append((field.name, number, number + field.count, field.items))
            number += field.count
            width = struct.calcsize("<" + field.code) if not field.code.endswith("s") else 1
            # Words are stored one by one into mapped memory; only an aligned store is never torn.
            assert offset % width == 0, f"{name}.{field.name} is not aligned"
            self.offsets[field.name] = offset
            offset += struct.calcsize("<" + field.format)
        self.names = tuple(self.offsets)
        optional = (field.items or (field.name,) for field in fields if field.optional)
        self.arrays = {
            item: field.name for field in fields if field.optional for item in field.items
        }
        self.codes = {field.name: field.code for field in fields}
        self.items = {field.name: field.items for field in fields}
        self.presence = {
            name: 1 << bit for bit, name in enumerate(name for names in optional for name in names)
        }

    def word(self, name: str) -> int:
        """Index of a field in the section as an array of eight-byte words."""
        return self.offsets[name] // 8


MAGIC = b"LKSTPAGE"
VERSION = 1

# The one order of phases. The code of a phase is its index; four bits of the heartbeat hold it. A
# row has those of STEP_PHASES, which are adjacent.
PHASES = ("init", *STEP_PHASES, "restore", "done", "failed")
COLLECTIVE_KINDS = KIND.values
CHECKPOINT_OUTCOMES = ("ok", "failed")
STEP_BUCKETS = STEP_SECONDS.buckets
CHECKPOINT_BUCKETS = CHECKPOINT_SECONDS.buckets
CHECKPOINT_BUCKET_ITEMS = (*(str(bound) for bound in CHECKPOINT_BUCKETS), "more")
RESTORE_OUTCOMES = RESTORE_OUTCOME.values
NONFINITE_IN = WHERE.values
ANOMALIES = ANOMALY.values
TROUBLES = TROUBLE.values
PARTS = PART.values
FINGERPRINTS = 8  # newest ones on a page, so that ranks read at different moments share a step
LATE_LOSSES = 8  # newest ones on a page
# Bit n of a row's flags is set when the n-th is true of the step.
# With ``device`` its times are the device's, which ``device_pending`` awaits: the host's stand.
ROW_FLAGS = (
    "loss_spike",
    "divergence",
    "rework",
    "hang",
    "nonfinite",
    "out_of_memory",
    "measured",
    "device",
    "device_pending",
)
MESH_AXES = ("dp", "fsdp", "pp", "tp", "cp", "ep")


def _by(items: tuple[str, ...], name: str, code: str, help_: str) -> Field:
    return Field(name, code, help_, len(items), items=items)


def _text(name: str, size: int, help_: str) -> Field:
    return Field(name, f"{size}s", help_)


IDENTITY = Section(
    "identity",
    "Written once at creation, protected by its checksum.",
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
    Field("periodic_bytes", "I", "bytes of a periodic slot"),
    Field("start_monotonic_ns", "q", "clock pair, read together at creation: monotonic"),
    Field("start_wall_ns", "q", "clock pair, read together at creation: wall, since the epoch"),
    _text("job_id", 128, "one training job over all its attempts"),
    _text("cluster", 64, "name of the cluster"),
    _text("project", 64, "who the job is accounted to"),
    _text("node", 128, "name of the machine"),
    _text("gpu_uuid", 64, "UUID of the rank's GPU, empty on a CPU"),
    _text("torch_version", 32, "version of torch, empty when unknown"),
    _text("nccl_version", 32, "version of NCCL, empty when there is none"),
    Field("locked", "I", "1 where the process holds a POSIX record lock on the page's first byte"),
    _text("queue", 64, "queue or partition of the scheduler, empty when unknown"),
    _text("job_class", 64, "class or quality of service of the job, empty when unknown"),
    Field("launch_key", "I", "same on the ranks that one launcher of the node started together"),
    Field("checksum", "I", "CRC-32 of everything before it in the identity"),
)

HEARTBEAT = Section(
    "heartbeat",
    "One word, replaced by a single aligned store when a phase begins; it needs no checksum.",
    Field(
        "phase_start",
        "Q",
        "monotonic nanoseconds at which the phase began x 16 + code of the phase",
    ),
)

SLOT = Section(
    "slot",
    "State after a completed step; two of them alternate, the newest valid one counts.",
    Field("sequence", "Q", "number of this write, from 1; its last bit is the index of the slot"),
    Field("present", "Q", "bit n is set when the n-th optional field is known"),
    Field("step", "q", "last completed step, as the job counts", optional=True),
    Field("written_ns", "q", "monotonic time of the write"),
    Field("loss", "d", "last loss reported", optional=True),
    Field("gradient_norm", "d", "last gradient norm reported", optional=True),
    Field("learning_rate", "d", "last learning rate reported", optional=True),
    Field("checkpoint_step", "q", "step of the last durable checkpoint", optional=True),
    Field("checkpoint_wall_ns", "q", "wall clock when it was durable", optional=True),
    Field("steps", "Q", "steps completed in this attempt, equal to the rows written"),
    Field("samples", "Q", "samples trained on"),
    Field("tokens", "Q", "tokens trained on"),
    Field("nonfinite_steps", "Q", "steps whose loss or gradient norm was NaN or infinite"),
    Field("internal_errors", "Q", "errors of the monitor that it caught"),
    _by(PHASES, "phase_seconds", "d", "seconds by phase"),
    _by(CHECKPOINT_OUTCOMES, "checkpoints", "Q", "checkpoint attempts by outcome"),
    _by(COLLECTIVE_KINDS, "collectives", "Q", "collectives by kind"),
    _by(COLLECTIVE_KINDS, "collective_bytes", "Q", "bytes handed to collectives by kind"),
    _by(
        COLLECTIVE_KINDS,
        "collective_seconds",
        "d",
        "exposed seconds from this rank's arrival to completion, by kind",
    ),
    Field("step_seconds_sum", "d", "sum of the durations of steps"),
    Field(
        "step_buckets",
        "Q",
        "steps by duration: above the bound before, up to the bucket's own",
        len(STEP_BUCKETS) + 1,
        items=(*(str(bound) for bound in STEP_BUCKETS), "more"),
    ),
    Field("settled_steps", "Q", "rows whose seconds are in the totals: all before that number"),
    Field("checksum", "Q", "CRC-32 of everything before it in the slot"),
)


PERIODIC = Section(
    "periodic",
    "What changes less often than every step; two of them alternate, the newest valid one counts.",
    Field("sequence", "Q", "number of this write, from 1; its last bit is the index of the slot"),
    Field("present", "Q", "bit n is set when the n-th optional field is known"),
    Field("written_ns", "q", "monotonic time of the write"),
    Field("process_seconds", "d", "age of the process at the page's creation", optional=True),
    Field("step_before", "q", "highest step that an earlier attempt completed", optional=True),
    Field("flops_per_token", "d", "model FLOPs per token, as configured", optional=True),
    Field("peak_flops", "d", "peak FLOP/s of this rank's device, as configured", optional=True),
    _by(NONFINITE_IN, "nonfinite", "Q", "occurrences of NaN or an infinity, by value"),
    _by(ANOMALIES, "anomalies", "Q", "spikes and divergences of the loss that began"),
    _by(ANOMALIES, "anomaly_now", "Q", "1 during an anomaly, else 0"),
    Field("device_allocated_bytes", "Q", "of the GPU, in tensors", optional=True),
    Field("device_reserved_bytes", "Q", "of the GPU, held by the allocator", optional=True),
    Field("device_peak_bytes", "Q", "highest allocated so far", optional=True),
    Field("resident_bytes", "Q", "of the host, by the process", optional=True),
    Field("resident_peak_bytes", "Q", "highest resident so far", optional=True),
    Field("allocator_retries", "Q", "times that the GPU's allocator freed its cache and retried"),
    Field("out_of_memory", "Q", "allocations that failed"),
    Field("requested_bytes", "Q", "requested by the last allocation that failed", optional=True),
    Field("collections", "Q", "runs of Python's garbage collector"),
    Field("collection_seconds", "d", "seconds in these runs"),
    Field("measured_steps", "Q", "steps in which the monitor timed its own calls"),
    Field("measured_seconds", "d", "seconds in the monitor's own calls in those steps"),
    Field("checkpoint_blocking_seconds", "d", "seconds that steps waited for checkpoints"),
    Field("checkpoint_persisting_seconds", "d", "seconds from start to end of writing checkpoints"),
    Field("checkpoint_bytes", "Q", "bytes that this rank wrote, where known"),
    Field("checkpoints_verified", "Q", "checkpoints that were read back and found valid"),
    Field("write_step", "q", "step of the checkpoint written last", optional=True),
    Field("write_seconds", "d", "seconds that this rank wrote it", optional=True),
    _by(RESTORE_OUTCOMES, "restores", "Q", "restores by outcome"),
    Field("restore_seconds", "d", "seconds in restores"),
    Field("passed_over", "Q", "invalid checkpoints that a restore skipped"),
    Field("restore_requested", "q", "step that the last restore was to load", optional=True),
    Field("restored_step", "q", "step that it loaded, 0 for a fresh start", optional=True),
    _by(STEP_PHASES, "rework_seconds", "d", "seconds of steps completed before, by phase"),
    _by(STEP_PHASES, "hang_seconds", "d", "seconds of steps that hung, by phase"),
    Field("fingerprints", "Q", "number taken; fingerprint n is at index n mod the array's length"),
    Field("fingerprint_step", "q", "step of each", FINGERPRINTS),
    Field("fingerprint_parameters", "Q", "sum of the bits of sampled parameters", FINGERPRINTS),
    Field("fingerprint_gradients", "Q", "sum of the bits of sampled gradients", FINGERPRINTS),
    _by(TROUBLES, "troubles", "Q", "problems around the monitor, by kind"),
    _by(COLLECTIVE_KINDS, "bus_bytes", "Q", "bytes x the factor of bus bandwidth, by kind"),
    _by(STEP_PHASES, "host_bound_seconds", "d", "seconds the device waited for the host, by phase"),
    Field("device_steps", "Q", "steps whose seconds in the totals are the device's"),
    Field("device_dropped", "Q", "steps and values of a device that were given up"),
    Field("late_losses", "Q", "losses read from a device after their step; same index rule"),
    Field("late_loss_step", "q", "step of each", LATE_LOSSES),
    Field("late_loss", "d", "loss of that step", LATE_LOSSES),
    _by(PARTS, "part_errors", "Q", "errors of a part of the monitor, which is off from the first"),
    Field("hang_timeout_seconds", "d", "the rank's own time-out of a hang", optional=True),
    Field("pause_timeout_seconds", "d", "the same in a planned pause", optional=True),
    Field("checkpoints_invalid", "Q", "checkpoints that were read back and found invalid"),
    *(
        _by(
            CHECKPOINT_BUCKET_ITEMS,
            f"checkpoint_{writing}_buckets",
            "Q",
            f"checkpoints by {writing} seconds: above the bound before, up to the bucket's own",
        )
        for writing in ("blocking", "persisting")
    ),
    Field("launch_bound_steps", "Q", "device steps of which the host held up a tenth or more"),
    Field("device_stride", "Q", "each n-th step is timed on the device", optional=True),
    Field("run_queue_seconds", "d", "the loop's waits for a core", optional=True),
    Field("loader_workers", "Q", "processes that fetch for the loop", optional=True),
    Field("batches_ahead", "Q", "in the making and ready there, at most", optional=True),
    Field("sync_rounds", "q", "takings over of shared parameters", optional=True),
    Field("independent_rounds", "q", "of them without other ranks", optional=True),
    Field("synced_ns", "q", "monotonic time of the last of them", optional=True),
    Field("staleness_steps", "q", "updates that the last one lacked", optional=True),
    Field("staleness_sum", "q", "the same, summed over all of them", optional=True),
    Field("unseen", "q", "bit n: after its first steps the rank does not see ...", optional=True),
    Field("unphased_ratio", "d", "share of these steps that lies in no phase", optional=True),
    Field("checksum", "Q", "CRC-32 of everything before it in the slot"),
    size=2048,
)

EXTRAS = {
    "sequence_min": "tokens of the rank's shortest sequence",
    "sequence_max": "tokens of the rank's longest sequence",
    "sequence_squares": "sum of the squared lengths of sequences",
    "host_bound_seconds": "of own work: the device waited for the host",
    "run_queue_seconds": "the loop's threads waited for a core since the row that has them before",
    "core_seconds": "these threads had a core since then",
    "stopped_seconds": "the process was stopped since the row before",
    "collection_seconds": "Python collected garbage since the row before",
}
"""Numbers that not every step has, with their meaning; the index in a row is that of the entry."""
MAX_EXTRAS = 19

ROW = Section(
    "row",
    "One step. Phases are contiguous, so their seconds add up to the step.",
    Field("number", "I", "rows in this attempt, modulo 2^32; row n is at index n mod row_count"),
    Field("flags", "I", f"bits from 0: {', '.join(ROW_FLAGS)}"),
    Field("step", "q", "step, as the job counts"),
    Field("start_ns", "q", "monotonic time at which the step began"),
    Field("first_arrival_ns", "q", "arrival at the step's first collective", optional=True),
    Field(
        "last_arrival_ns",
        "q",
        "end of the step's last collective minus all its waiting; of a single one the arrival",
        optional=True,
    ),
    Field("seconds", "f", "duration of the step"),
    _by(STEP_PHASES, "phase_seconds", "f", "seconds by phase"),
    Field("loss", "f", "training loss of this rank", optional=True),
    Field("gradient_norm", "f", "gradient norm before clipping", optional=True),
    Field("tokens", "I", "tokens of this rank"),
    Field("samples", "I", "samples of this rank"),
    Field("present", "I", "bit n is set when the n-th optional field is known, then the extras"),
    Field("extras", "d", "numbers by index", MAX_EXTRAS, optional=True, items=tuple(EXTRAS)),
    Field("checksum", "Q", "CRC-32 of everything before it in the row"),
)
ROW_NUMBERS = 1 << 32
"""From there on the number in a row begins at 0 again."""
MAX_STEP_SECONDS = 30 * 86400.0
ROW_DOMAINS: dict[str, tuple[float, float]] = {
    "flags": (0, (1 << len(ROW_FLAGS)) - 1),
    "step": (0, 1 << 48),
    **dict.fromkeys(("start_ns", "first_arrival_ns", "last_arrival_ns"), (-(1 << 62), 1 << 62)),
    **dict.fromkeys(("seconds", "phase_seconds"), (0, MAX_STEP_SECONDS)),
    **{name: (0, MAX_STEP_SECONDS if name.endswith("_seconds") else 1e18) for name in EXTRAS},
}
"""Lowest and highest value by field, or by item of the extras; others may have any number.

A row with a known value outside, or one that is NaN, is damaged.
"""

HEARTBEAT_OFFSET = 4096
SLOT_OFFSETS = (8192, 12288)
PERIODIC_OFFSETS = (16384, 20480)
RING_OFFSET = 24576
DEFAULT_ROWS = 65_536
MAX_ROWS = 1 << 20
PLUGIN_PAGE = ".nccl.page"
"""End of the name of a page that NCCL's plugin writes; that of ``attach`` lies beside it."""

assert IDENTITY.size <= HEARTBEAT_OFFSET
assert SLOT.size <= SLOT_OFFSETS[1] - SLOT_OFFSETS[0]
assert PERIODIC.size <= PERIODIC_OFFSETS[1] - PERIODIC_OFFSETS[0]
assert ROW.size & (ROW.size - 1) == 0  # no row crosses a page of memory


def page_bytes(rows: int) -> int:
    """Size of a page with that many rows, in bytes."""
    return RING_OFFSET + rows * ROW.size
