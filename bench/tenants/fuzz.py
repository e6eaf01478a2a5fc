"""Hostile inputs by the hundred thousand against a running agent and ledger.

``python bench/tenants/fuzz.py --seed N files`` and ``... events``; exit status 1 on any violation.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tenants import hostile, users, victim
from tenants.arena import ANSWER_SECONDS, Arena
from tenants.attacks import side_files

_JOBS, _RANKS = 16, 3
_BATCH_SECONDS = 0.4
_EVENTS = 100
_USERS = 16
_FIRST_UID = 4200
_PROGRESS_SECONDS = 5.0
_SCHEMA = users.REPOSITORY / "docs/formats/events.schema.json"
_OPERATIONS = struct.Struct("<8sIIIii")


def _samples() -> dict[str, Any]:
    """A good content of each kind of file beside a page; text is bytes, JSON a document."""
    ring = b"LKSTERR1" + struct.pack("<Q", 5) + b"hello".ljust(1 << 16, b"\0")
    error = {"version": 1, "source": "except_hook", "type": "E", "message": "m", "file": "f"}
    with tempfile.TemporaryDirectory() as folder:
        span = json.loads(side_files.span_line(Path(folder), "0.25"))
    entry = {"seq_id": 1, "time_created_ns": 1, "state": "started", "profiling_name": "nccl:x"}
    operations = _OPERATIONS.pack(b"LKSTPOPS", 1, 16, 48, 0, os.getpid())
    return {
        "0/rank-{}.stderr": ring,
        "0/rank-{}.error.json": error | {"line": 1, "function": "f", "traceback": "t", "time": 1.0},
        "0/rank-{}.spans.jsonl": span,
        "0/rank-{}.ops": operations + b"\0" * 5000,
        "0/rank-{}.stacks": b"Thread 0x1 (most recent call first):\n  File x, line 1 in f\n",
        "0/rank-{}.flight.json": {"version": "2.9", "entries": [entry], "pg_config": {}},
        "switches.json": {"version": 1, "hang_seconds": 60, "sample": 8, "off": False},
        "events.jsonl": {"id": "a", "kind": "hang", "job_id": "a", "attempt": 0, "time": 1.0},
    }


def _content(chance: random.Random, good: Any) -> bytes:
    if isinstance(good, bytes):
        return hostile.damaged(chance, good)
    text = hostile.text_of(chance, hostile.spoil(chance, good)) + "\n"
    data = text.encode("utf-8", "surrogatepass") * chance.choice((1, 1, 3))
    return hostile.damaged(chance, data) if chance.random() < 0.1 else data  # noqa: PLR2004  # a share or a figure of this line


def _lay(chance: random.Random, root: Path, batch: int) -> int:
    """Lays down some jobs of one user; the number of inputs."""
    laid = 0
    samples = _samples()
    for job in range(_JOBS):
        folder = root / "jobs" / f"fuzz-{batch}-{job}"
        (folder / "0").mkdir(parents=True)
        writers = [victim.rank(folder / "0", folder.name, rank, rows=4) for rank in range(_RANKS)]
        for rank, _writer in enumerate(writers):
            path = folder / "0" / f"rank-{rank:05d}.page"
            body = hostile.page(chance, path.read_bytes())
            with path.open("r+b") as file:
                file.write(body)
            names = [name for name in samples if rank == 0 or "{}" in name]
            for name in chance.sample(names, len(names) // 2):
                target = folder / name.format(f"{rank:05d}")
                if chance.random() < 0.08:  # noqa: PLR2004  # some
                    hostile.no_file(chance, target)
                else:
                    target.write_bytes(_content(chance, samples[name]))
                laid += 1
            laid += 1
    return laid


def _run_in_process(uid: int, act: Callable[[], int]) -> tuple[int, int]:
    """Acts as a user in a process that lives on; its pid, and what it counted."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            users.User(uid, uid).become()
            os.umask(0o022)
            signal.alarm(120)
            os.write(write, str(act()).encode())
            os.close(write)
            signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    with open(read, "rb") as file:  # noqa: PTH123  # by its descriptor
        text = file.read()
    assert text, "the fuzzer itself failed"
    return pid, int(text)


class Watch:
    """What was measured and what was violated."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.violations: Counter[str] = Counter()
        self.slowest_seconds = 0.0
        self.largest_bytes: Counter[str] = Counter()
        self._begin = self._reported = time.monotonic()

    def check(self, inputs: int, count: int) -> None:
        """Checks agent, ledger and the neighbour's job; says where it stands now and then."""
        begin = time.monotonic()
        if complaint := self.arena.complaint():
            self.violations[complaint[:200]] += 1
        self.slowest_seconds = max(self.slowest_seconds, self.arena.slowest_seconds)
        self.arena.slowest_seconds = 0.0
        for process, name in ((self.arena.agent, "agent"), (self.arena.ledger, "ledger")):
            if process.poll() is None:
                pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
                self.largest_bytes[name] = max(self.largest_bytes[name], pages * 4096)
        if begin - self._reported > _PROGRESS_SECONDS:
            self._reported = begin
            seconds = begin - self._begin
            print(f"{seconds:5.0f} s  {inputs:,} of {count:,}", file=sys.stderr, flush=True)

    @property
    def is_over(self) -> bool:
        """Whether a program has ended, so that no further input can be judged."""
        return any(p.poll() is not None for p in (self.arena.agent, self.arena.ledger))

    def table(self, inputs: int, kind: str, seed: int) -> str:
        """What was done and found."""
        rows = {
            "inputs": f"{inputs:,} {kind}, seed {seed}",
            "seconds": f"{time.monotonic() - self._begin:.0f}",
            "slowest answer": f"{self.slowest_seconds * 1e3:.0f} ms of {ANSWER_SECONDS * 1e3:.0f}",
            **{name: f"{size >> 20} MiB at most" for name, size in self.largest_bytes.items()},
            "violations": str(sum(self.violations.values())),
            **{f"{number} times": text for text, number in self.violations.most_common(10)},
        }
        return "\n".join(f"| {name} | {text} |" for name, text in rows.items())


def fuzz_files(arena: Arena, seed: int, count: int) -> tuple[Watch, int]:
    """Pages and all side files, many in each tick of a live agent."""
    watch, inputs, batch = Watch(arena), 0, 0
    while inputs < count and not watch.is_over:
        chance = random.Random(seed * 1_000_003 + batch)
        uid = _FIRST_UID + batch % _USERS
        pid, laid = _run_in_process(uid, partial(_lay, chance, arena.root, batch))
        inputs += laid
        # One in twenty lies until the slow tiers have read it.
        time.sleep(_BATCH_SECONDS if batch % 20 else 10 * _BATCH_SECONDS)
        watch.check(inputs, count)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for folder in (arena.root / "jobs").glob("fuzz-*"):
            shutil.rmtree(folder, ignore_errors=True)
        batch += 1
    return watch, inputs


def _good_events() -> list[dict[str, Any]]:
    """One event of each kind with every field of the schema."""
    schema = json.loads(_SCHEMA.read_text(encoding="utf-8"))
    samples = {"string": "x", "integer": 1, "number": 1.5, "boolean": True, "array": [1]}
    samples["object"] = {"productive": 1.0}
    found = []
    for rule in schema["allOf"]:
        fields = rule["then"]["properties"]["fields"]["properties"]
        content = {}
        for name, field in fields.items():
            kind = field.get("type", "string")
            kind = kind if isinstance(kind, str) else kind[0]
            content[name] = field["enum"][0] if "enum" in field else samples[kind]
        kind = rule["if"]["properties"]["kind"]["const"]
        found.append({"kind": kind, "attempt": 0, "fields": content})
    return found


def _body(chance: random.Random, good: list[dict[str, Any]], batch: int) -> bytes:
    events = []
    wild = chance.random() < 0.5  # noqa: PLR2004  # half of them
    for number in range(_EVENTS):
        event: dict[str, Any] = dict(chance.choice(good))
        event |= {"id": f"fuzz-{batch}-{number}", "job_id": f"fuzz-{chance.randrange(50)}"}
        event["time"] = time.time() - chance.random() * 100
        if chance.random() < 0.1:  # noqa: PLR2004  # some name the neighbour's job
            event["job_id"] = "victim"
        events.append(hostile.text_of(chance, hostile.spoil(chance, event), wild=wild))
    frame = {"version": 1, "cluster": "east", "node": "node-7"}
    if chance.random() < 0.05:  # noqa: PLR2004  # few
        frame = hostile.spoil(chance, frame)
    begin = hostile.text_of(chance, frame, wild=wild)[:-1]
    text = f'{begin}, "events": [{",".join(events)}]}}'
    body = text.encode("utf-8", "surrogatepass")
    return hostile.damaged(chance, body) if chance.random() < 0.02 else body  # noqa: PLR2004  # a share or a figure of this line


def _post(body: bytes, arena: Arena, watch: Watch) -> None:
    """Posts a body; no answer may be late or of the ledger's own failure."""
    begin = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", arena.ledger_port, timeout=5)
    headers = {"Authorization": f"Bearer {arena.launcher_token}", "Connection": "close"}
    headers["Content-Type"] = "application/json"
    try:
        connection.request("POST", "/api/events", body, headers)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        watch.violations[f"no answer: {error!r}"[:100]] += 1
        return
    finally:
        connection.close()
    seconds = time.monotonic() - begin
    if status >= http.client.INTERNAL_SERVER_ERROR:
        watch.violations[f"an answer {status}"] += 1
    if status < http.client.BAD_REQUEST:
        watch.slowest_seconds = max(watch.slowest_seconds, seconds)
        if seconds > ANSWER_SECONDS:
            watch.violations["a delivery is answered late"] += 1


def fuzz_events(arena: Arena, seed: int, count: int) -> tuple[Watch, int]:
    """Deliveries of a hundred hostile events each to a live ledger."""
    watch, inputs, batch = Watch(arena), 0, 0
    good = _good_events()
    while inputs < count and not watch.is_over:
        chance = random.Random(seed * 1_000_003 + batch)
        _post(_body(chance, good, batch), arena, watch)
        inputs += _EVENTS
        if batch % 5 == 0 or inputs >= count:
            watch.check(inputs, count)
        batch += 1
    return watch, inputs


def main() -> int:
    """Runs one of the two; prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("files", "events"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--plain-tokens", action="store_true", help="tokens without a scope")
    parser.add_argument("--code", type=Path, help="checkout to attack; default this one")
    chosen = parser.parse_args()
    users.CODE[0] = chosen.code or users.CODE[0]
    users.make_reachable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    arena = Arena(scopes=not chosen.plain_tokens)
    try:
        arena.settle()
        run = fuzz_files if chosen.kind == "files" else fuzz_events
        watch, inputs = run(arena, chosen.seed, chosen.count)
        print(watch.table(inputs, chosen.kind, chosen.seed))
    finally:
        arena.close()
    return 1 if watch.violations else 0


if __name__ == "__main__":
    sys.exit(main())
