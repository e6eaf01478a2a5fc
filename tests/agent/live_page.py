"""A rank whose page a test drives step by step, through the real writer."""

import time
import zlib
from pathlib import Path
from typing import Any

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.files.jobs import page_path
from lockstep_records.page.layout import IDENTITY, PERIODIC, PHASES, SLOT, SLOT_OFFSETS, Section
from lockstep_records.page.writer import PageWriter, RankIdentity

STEP_SECONDS = {"data": 0.125, "forward": 0.25, "backward": 0.5, "sync": 0.0625, "optimizer": 0.25}
TOKENS_A_STEP = 1024
SAMPLES_A_STEP = 8
ALL_REDUCE_BYTES = 1 << 20


class LivePage:
    """One rank of a job; it belongs to this process until its pid is replaced.

    Its heartbeats may be on a clock ahead of the machine's: a machine that has just booted has no
    time of an hour ago.
    """

    def __init__(
        self,
        root: Path,
        *,
        rank: int = 0,
        attempt: int = 0,
        ahead_seconds: float = 0.0,
        **fields: Any,
    ) -> None:
        self._ahead_seconds = ahead_seconds
        identity: dict[str, Any] = {
            "job_id": "job",
            "world_size": 4,
            "local_rank": rank,
            "cluster": "east",
            "project": "speech",
            "node": "written-by-the-rank",
            "mesh": (("dp", rank),),
            **fields,
        }
        self.path = page_path(root, identity["job_id"], attempt, rank)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.writer = PageWriter(
            self.path,
            RankIdentity(rank=rank, attempt=attempt, **identity),
            rows=16,
            locks=False,  # tests replace the pid by that of another process
        )

    def phase(self, name: str, *, ago_seconds: float = 0.0) -> None:
        """Enters a phase, now or some time ago."""
        now_ns = time.monotonic_ns() + int((self._ahead_seconds - ago_seconds) * 1e9)
        self.writer.heartbeat(now_ns, PHASES.index(name))

    def set_optional(self, field: str, value: float) -> None:
        """Sets an optional field of the state, which the next commit makes readable."""
        self.writer.words[SLOT.word("present")] |= SLOT.presence[field]
        if isinstance(value, int):
            self.writer.signed[SLOT.word(field)] = value
        else:
            self.writer.floats[SLOT.word(field)] = value

    def add(self, field: str, number: int) -> None:
        self.writer.words[SLOT.word(field)] += number

    def step(self, number: int, *, loss: float | None = 2.5) -> None:
        for phase, seconds in STEP_SECONDS.items():
            self.writer.floats[SLOT.word("phase_seconds") + PHASES.index(phase)] += seconds
        seconds = sum(STEP_SECONDS.values())
        self.writer.count_step(number, seconds, TOKENS_A_STEP, SAMPLES_A_STEP)
        self.writer.count_collective("all_reduce", 2, ALL_REDUCE_BYTES, STEP_SECONDS["sync"])
        self.add("steps", 1)
        self.set_optional("step", number)
        if loss is not None:
            self.set_optional("loss", loss)
        self.commit()

    def row(self, number: int, *, seconds: float, waited: float = 0.0) -> None:
        """Writes the row of a step, spent in its forward pass and in waiting."""
        phases = {"forward": seconds - waited, "sync": waited}
        self.writer.append(
            step=number,
            start_ns=number,
            seconds=seconds,
            phase_seconds=[phases.get(phase, 0.0) for phase in STEP_PHASES],
            tokens=TOKENS_A_STEP,
            samples=1,
        )

    def share_parameters(self) -> None:
        """The rank has joined rounds and has exchanged parameters with a server."""
        for name, value in (("sync_rounds", 3), ("independent_rounds", 1), ("staleness_steps", 2)):
            self.writer.periodic.know(name, value)
        self.writer.periodic.know("synced_ns", time.monotonic_ns())
        self.writer.periodic.commit(1)

    def write_periodic(self) -> None:
        """Writes the periodic values; rank 3 has other parameters than its replicas."""
        periodic, rank = self.writer.periodic, self.writer.identity.rank
        for name in ("device_allocated_bytes", "device_reserved_bytes", "device_peak_bytes"):
            periodic.know(name, 1 << 30)
        periodic.know("resident_bytes", (rank + 1) << 20)
        periodic.know("flops_per_token", 6e6)
        periodic.know("peak_flops", 1e12)
        periodic.know("write_step", 2)
        periodic.know("write_seconds", 0.5 + rank)
        if rank:  # the kernel of rank 0 counts none
            periodic.know("run_queue_seconds", 0.25 * rank)
        periodic.count("checkpoint_bytes", number=4096)
        periodic.count("restores", "fallback")
        periodic.count("anomalies", "spike")
        periodic.count("part_errors", "memory", rank % 2)
        periodic.count("bus_bytes", "all_reduce", 4 * ALL_REDUCE_BYTES)
        periodic.count("device_steps")
        periodic.add("host_bound_seconds", STEP_SECONDS["sync"], "sync")
        periodic.count("fingerprints")
        periodic.words[PERIODIC.word("fingerprint_parameters")] = 7 if rank == 3 else 5
        periodic.commit(time.monotonic_ns())

    def commit(self) -> None:
        self.writer.commit(time.monotonic_ns())

    def damage_newest_slot(
        self, section: Section = SLOT, offsets: tuple[int, int] = SLOT_OFFSETS
    ) -> None:
        """Breaks the slot that counts; the older one stays good."""
        words = self.writer.words if section is SLOT else self.writer.periodic.words
        at = offsets[words[section.word("sequence")] & 1]
        checksum_at = at + section.offsets["checksum"]
        (byte,) = self.path.read_bytes()[checksum_at : checksum_at + 1]
        self._overwrite(checksum_at, bytes([byte ^ 1]))

    def replace_identity(self, **fields: int) -> None:
        """Replaces whole numbers of the identity, such as the pid by that of an ended process."""
        data = bytearray(self.path.read_bytes()[: IDENTITY.size])
        for name, value in fields.items():
            at = IDENTITY.offsets[name]
            data[at : at + 4] = value.to_bytes(4, "little")
        checksum_at = IDENTITY.offsets["checksum"]
        data[checksum_at : checksum_at + 4] = zlib.crc32(data[:checksum_at]).to_bytes(4, "little")
        self._overwrite(0, bytes(data))

    def truncate(self) -> None:
        """Cuts the file off; nobody may write into its mapping from then on."""
        self.writer.close()
        with self.path.open("r+b") as file:
            file.truncate(IDENTITY.size + 1)

    def _overwrite(self, at: int, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(data)
