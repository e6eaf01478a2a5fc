"""A neighbour's job that lives and never changes: four ranks, their side files and events."""

import json
import os
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any

from lockstep_records.page.layout import PHASES, SLOT
from lockstep_records.page.writer import PageWriter, RankIdentity

RANKS = 4
STEPS = 64
SECRET = "the-neighbours-own-words"  # noqa: S105  # what an attacker is after
_STEP_SECONDS = 0.25
_ROWS = 128
_NEVER_SECONDS = 86_400.0
_MANY = 4096


def events(job_id: str, began: float) -> bytes:
    """The events that a launcher would have written."""
    fields = {"num_nodes": 1, "world_size": RANKS, "num_gpus": RANKS, "project": "speech"}
    lines = (
        ("job_started", {**fields, "price_per_gpu_hour": 2.0, "currency": "EUR"}),
        ("attempt_started", {"ranks": list(range(RANKS)), "num_gpus": RANKS}),
        ("checkpoint_durable", {"step": 50, "seconds": 1.5}),
    )
    return b"".join(
        json.dumps(
            {
                "id": f"{job_id}-{number}",
                "kind": kind,
                "job_id": job_id,
                "attempt": 0,
                "time": began + number,
                "node": "node-7",
                "cluster": "east",
                "fields": content,
            }
        ).encode()
        + b"\n"
        for number, (kind, content) in enumerate(lines)
    )


def now_ns() -> int:
    """Clock of the page."""
    return time.monotonic_ns()


def wall_seconds() -> float:
    """Clock of the events."""
    return time.time()


def rank(
    folder: Path, job_id: str, number: int, *, rows: int | None = None, **texts: Any
) -> PageWriter:
    """Writes the page of one rank with some steps."""
    names = {"cluster": "east", "project": "speech", "node": "node-7", **texts}
    writer = PageWriter(
        folder / f"rank-{number:05d}.page",
        RankIdentity(
            job_id=job_id,
            rank=number,
            local_rank=number,
            world_size=RANKS if number < RANKS else _MANY,
            mesh=(("dp", number),),
            **names,
        ),
        rows=rows or _ROWS,
    )
    _steps(writer)
    return writer


def _steps(writer: PageWriter) -> None:
    now_ns = time.monotonic_ns()
    period_ns = int(_STEP_SECONDS * 1e9)
    for step in range(STEPS):
        begin_ns = now_ns - (STEPS - step) * period_ns
        parts = (0.01, 0.1, 0.1, 0.02, 0.02, 0.0, 0.0, 0.0)
        writer.append(
            step=step,
            start_ns=begin_ns,
            seconds=_STEP_SECONDS,
            phase_seconds=parts,
            loss=2.5,
            gradient_norm=1.0,
            tokens=1024,
            samples=8,
        )
        writer.count_step(step, _STEP_SECONDS, 1024, 8)
    writer.words[SLOT.word("present")] |= SLOT.presence["step"]
    writer.signed[SLOT.word("step")] = STEPS - 1
    writer.commit(now_ns)
    # The attacks take minutes, in which the neighbour's ranks stand still without a hang.
    for name in ("hang_timeout_seconds", "pause_timeout_seconds"):
        writer.periodic.know(name, _NEVER_SECONDS)
    writer.periodic.commit(now_ns)
    writer.heartbeat(now_ns, PHASES.index("forward"))


def _side_files(folder: Path) -> None:
    text = f"{SECRET}\n".encode()
    ring = b"LKSTERR1" + struct.pack("<Q", len(text)) + text.ljust(1 << 16, b"\0")
    (folder / "rank-00000.stderr").write_bytes(ring)
    (folder / "rank-00000.stderr").chmod(0o640)


def main() -> None:
    """Writes the job, starts a process a rank and sleeps until it is ended."""
    root, job_id = Path(sys.argv[1]), sys.argv[2]
    os.umask(0o027)
    job = root / "jobs" / job_id
    for path in (job, job / "0"):
        path.mkdir()
        path.chmod(0o2750)
    (job / "events.jsonl").write_bytes(events(job_id, time.time() - STEPS))
    for number in range(RANKS):
        if os.fork() == 0:
            _writer = rank(job / "0", job_id, number)
            if number == 0:
                _side_files(job / "0")
            (job / f"ready-{number}").touch()
            signal.pause()
            os._exit(0)
    while len(list(job.glob("ready-*"))) < RANKS:
        time.sleep(0.02)
    for path in job.glob("ready-*"):
        path.unlink()
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
