"""The table of attacks: each is a function of the attacker, with a judge where one is needed."""

import contextlib
import json
import os
import socket
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep_records.page.layout import (
    IDENTITY,
    PERIODIC,
    PERIODIC_OFFSETS,
    SLOT,
    SLOT_OFFSETS,
    Section,
)

from . import victim

if TYPE_CHECKING:
    from .arena import Arena

# Seconds after which the agent has read what an attack laid down.
TICK_SECONDS = 1.0
DELIVERY_SECONDS = 2.0
SLOW_TIER_SECONDS = 11.0
PLACES = ((IDENTITY, (0,)), (SLOT, SLOT_OFFSETS), (PERIODIC, PERIODIC_OFFSETS))


@dataclass
class Ground:
    """What an attacker knows and holds: the folder of jobs, the addresses and a launcher's token.

    It is used in a process of the attacker only, which lives until the attack is undone.
    """

    root: Path
    home: Path
    private: Path
    agent_port: int
    ledger_port: int
    token: str
    victim_pids: tuple[int, ...]
    name: str
    pager_port: int = 0
    boards_port: int = 0
    held: list[Any] = field(default_factory=list)
    obtained: str = ""

    @property
    def jobs(self) -> Path:
        """Folder in which every user may start jobs."""
        return self.root / "jobs"

    def job(self, name: str = "", mode: int = 0o755) -> Path:
        """Creates a job of the attacker with the first attempt."""
        path = self.jobs / (name or self.name)
        (path / "0").mkdir(parents=True)
        for each in (path, path / "0"):
            each.chmod(mode)
        return path

    def page(
        self, number: int = 0, job: Path | None = None, *, rows: int | None = None, **texts: Any
    ) -> Path:
        """A valid page of a living rank of the attacker, as its own job's."""
        job = job or (self.jobs / self.name if (self.jobs / self.name).is_dir() else self.job())
        writer = victim.rank(job / "0", texts.pop("job_id", job.name), number, rows=rows, **texts)
        writer.heartbeat(victim.now_ns(), 2)
        self.held.append(writer)
        return job / "0" / f"rank-{number:05d}.page"

    def patch(self, path: Path, section: Section, code: str, /, **values: Any) -> None:
        """Replaces fields of a section, under valid checksums; ``code`` is that of ``struct``."""
        offsets = dict(PLACES)[section]
        # Closing any descriptor of the page would end the writer's lock.
        descriptor = os.open(path, os.O_RDWR)
        self.held.append(descriptor)
        for at in offsets:
            data = bytearray(os.pread(descriptor, section.size, at))
            for name, value in values.items():
                packed = value if isinstance(value, bytes) else struct.pack("<" + code, value)
                start = section.offsets[name]
                data[start : start + len(packed)] = packed
            self._seal(data, section)
            os.pwrite(descriptor, bytes(data), at)

    def fill(self, path: Path, section: Section, word: bytes) -> None:
        """Fills every word of a section behind its two first ones, under valid checksums."""
        offsets = dict(PLACES)[section]
        descriptor = os.open(path, os.O_RDWR)
        self.held.append(descriptor)
        end = section.offsets["checksum"]
        for at in offsets:
            data = bytearray(os.pread(descriptor, section.size, at))
            data[8:end] = word * ((end - 8) // len(word))
            self._seal(data, section)
            os.pwrite(descriptor, bytes(data), at)

    @staticmethod
    def _seal(data: bytearray, section: Section) -> None:
        at = section.offsets["checksum"]
        data[at:] = zlib.crc32(data[:at]).to_bytes(section.size - at, "little")

    def event(self, kind: str = "node_event", **changes: Any) -> dict[str, Any]:
        """A valid event of the attacker's job, with changes."""
        return {
            "id": f"{self.name}-{len(self.held)}-{kind}",
            "kind": kind,
            "job_id": self.name,
            "attempt": 0,
            "time": victim.wall_seconds() - 1,
            "fields": {},
            **changes,
        }

    def spool(self, *lines: str | bytes) -> None:
        """Writes lines into the events of the attacker's job."""
        path = self.job() / "events.jsonl"
        begin = json.dumps(self.event("job_started", id=f"{self.name}-start")).encode()
        encoded = [line.encode() if isinstance(line, str) else line for line in lines]
        path.write_bytes(b"".join(line + b"\n" for line in (begin, *encoded)))
        path.chmod(0o644)

    def connect(self, port: int, source: str = "127.0.0.2") -> socket.socket:
        """A connection from an address of the attacker's own, kept until the end."""
        connection = socket.create_connection(
            ("127.0.0.1", port), timeout=2, source_address=(source, 0)
        )
        self.held.append(connection)
        return connection

    def send(self, port: int, data: bytes, *, read: bool = True) -> bytes:
        """Sends raw bytes; the answer, or nothing where there is none in two seconds."""
        connection = self.connect(port)
        answer = b""
        with contextlib.suppress(OSError):
            connection.sendall(data)
            while read and (part := connection.recv(65536)):
                answer += part
        return answer

    def post(
        self, body: bytes, *, token: str | None = None, headers: tuple[str, ...] = ()
    ) -> bytes:
        """Posts a body to the ledger; the whole answer."""
        words = [
            "POST /api/events HTTP/1.1",
            f"Host: 127.0.0.1:{self.ledger_port}",
            f"Authorization: Bearer {self.token if token is None else token}",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *(headers or ("Content-Type: application/json",)),
        ]
        return self.send(self.ledger_port, "\r\n".join(words).encode() + b"\r\n\r\n" + body)

    def deliver(self, *lines: str | bytes) -> bytes:
        """Posts events as a delivery of the node."""
        encoded = [line.encode() if isinstance(line, str) else line for line in lines]
        begin = b'{"version": 1, "cluster": "east", "node": "node-7", "events": ['
        return self.post(begin + b",".join(encoded) + b"]}")


Act = Callable[[Ground], None]
# What a judge finds wrong beyond what is checked after every attack; nothing where all is well.
Judge = Callable[["Arena", str], str]


@dataclass(frozen=True)
class Attack:
    """One attack; its name is that of its function."""

    name: str
    surface: str
    what: str
    act: Act
    seconds: float = TICK_SECONDS
    judge: Judge | None = None


ATTACKS: dict[str, Attack] = {}


def register(attack: Attack) -> None:
    """Adds an attack to the table; its name must be new."""
    assert attack.name not in ATTACKS, attack.name
    ATTACKS[attack.name] = attack


def attack(
    surface: str, *, seconds: float = TICK_SECONDS, judge: Judge | None = None
) -> Callable[[Act], Act]:
    """Enters a function of the attacker into the table; its docstring says what it does."""

    def enter(act: Act) -> Act:
        what = (act.__doc__ or "").strip().rstrip(".")
        register(Attack(act.__name__, surface, what, act, seconds, judge))
        return act

    return enter
