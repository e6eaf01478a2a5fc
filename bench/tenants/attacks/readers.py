"""Attacks on people who read: report, jobs, top and page over hostile folders."""

import json
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from lockstep_records.page.layout import IDENTITY, PERIODIC, SLOT
from lockstep_reports.readers.traces import NEEDED
from tenants.table import Attack, Ground, attack, register

if TYPE_CHECKING:
    from tenants.arena import Arena

_CONTROLS = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b"


def _report(arena: "Arena", _: str) -> str:
    return arena.report_on(arena.root / "jobs" / arena.attack)


def _report_as_root(arena: "Arena", _: str) -> str:
    return arena.report_on(arena.root / "jobs" / arena.attack, as_root=True)


def _jobs(arena: "Arena", _: str) -> str:
    return arena.command_is_clean("jobs", "--dir", arena.root)


def _top(arena: "Arena", _: str) -> str:
    return arena.command_is_clean("top", "--once", arena.root / "jobs" / arena.attack)


def _page(arena: "Arena", _: str) -> str:
    page = arena.root / "jobs" / arena.attack / "0" / "rank-00000.page"
    return arena.command_is_clean("page", page)


def _controls(ground: Ground) -> None:
    # A page whose own names hold them is refused as a whole; beside a good page they are read.
    page = ground.page()
    names = dict.fromkeys(("project", "node", "queue", "job_class"), _CONTROLS.encode())
    ground.patch(ground.page(3), IDENTITY, "s", torch_version=b"\x1b[2J", **names)
    error = {"version": 1, "source": "except_hook", "type": _CONTROLS, "message": _CONTROLS}
    error |= {"file": _CONTROLS, "line": 1, "function": "f", "traceback": _CONTROLS, "time": 1.0}
    page.with_name("rank-00000.error.json").write_text(json.dumps(error), encoding="utf-8")
    text = f"RuntimeError: {_CONTROLS}\n".encode() * 20
    ring = b"LKSTERR1" + struct.pack("<Q", len(text)) + text.ljust(1 << 16, b"\0")
    page.with_name("rank-00000.stderr").write_bytes(ring)
    event = ground.event("rank_ended", fields={"rank": 0, "exit_code": 1, "exception": _CONTROLS})
    end = ground.event("job_finished", fields={"outcome": "failed", "reason": _CONTROLS})
    lines = json.dumps(event) + "\n" + json.dumps(end) + "\n"
    (page.parents[1] / "events.jsonl").write_text(lines, encoding="utf-8")


for _name, _judge in (("report", _report), ("jobs", _jobs), ("top", _top), ("page", _page)):
    register(
        Attack(
            f"{_name}_of_controls",
            "reports",
            f"lockstep {_name} over pages, errors and events full of terminal control characters",
            _controls,
            0.0,
            _judge,
        )
    )


def _fifos(ground: Ground) -> None:
    page = ground.page()
    for name in ("stderr", "error.json", "spans.jsonl", "ops", "stacks", "flight.json"):
        os.mkfifo(page.with_name(f"rank-00000.{name}"), 0o644)
    os.mkfifo(page.parents[1] / "events.jsonl", 0o644)
    os.mkfifo(page.parents[1] / "switches.json", 0o644)


for _name, _judge in (("report", _report), ("jobs", _jobs), ("top", _top)):
    register(
        Attack(
            f"{_name}_of_fifos",
            "reports",
            f"lockstep {_name} over a job whose side files are FIFOs",
            _fifos,
            0.0,
            _judge,
        )
    )


@attack("reports", seconds=0.0, judge=_report_as_root)
def report_of_links(ground: Ground) -> None:
    """Root reports on a job whose side files are links to another user's private file."""
    page = ground.page()
    for name in ("stderr", "error.json", "stacks"):
        page.with_name(f"rank-00000.{name}").symlink_to(ground.private)
    event = ground.event("rank_ended", fields={"rank": 0, "exit_code": 1, "first": True})
    (page.parents[1] / "events.jsonl").write_text(json.dumps(event) + "\n", encoding="utf-8")


@attack("reports", seconds=0.0, judge=_report)
def report_of_a_huge_world(ground: Ground) -> None:
    """A report on pages that claim 2^31 - 1 ranks."""
    for number in range(4):
        ground.patch(ground.page(number), IDENTITY, "i", world_size=2**31 - 1)


@attack("reports", seconds=0.0, judge=_report)
def report_of_hostile_numbers(ground: Ground) -> None:
    """A report on pages of NaN, infinities and 2^64 - 1."""
    words = (b"\xff" * 8, struct.pack("<d", float("inf")), struct.pack("<d", 1.7e308), b"\0" * 8)
    for number, word in enumerate(words):
        page = ground.page(number)
        ground.fill(page, SLOT, word)
        ground.fill(page, PERIODIC, word)


def _events(ground: Ground, lines: Callable[[], bytes]) -> None:
    ground.page()
    (ground.jobs / ground.name / "events.jsonl").write_bytes(lines())


@attack("reports", seconds=0.0, judge=_report)
def report_of_a_million_events(ground: Ground) -> None:
    """A report on a job with a million events."""
    line = json.dumps(ground.event("node_event", fields={"sign": "xid"})).encode() + b"\n"
    _events(ground, lambda: line * 300_000)


@attack("reports", seconds=0.0, judge=_report)
def report_of_deep_events(ground: Ground) -> None:
    """A report on a job with events of 100,000 levels, surrogates and 400 digits."""
    lines = b"[" * 100_000 + b'\n{"id": "\\ud800", "kind": "hang", "job_id": "x", "attempt": 0, '
    _events(ground, lambda: lines + b'"time": 1e999, "fields": {"missing": ' + b"9" * 400 + b"}}\n")


def _operations(path: Path, rows: int, extra: int = 0, **options: Any) -> None:
    """Operations of which a few kilobytes decode to hundreds of megabytes, or of many columns."""
    ones, words = pa.array([1.0] * rows), pa.array(["gc"] * rows).dictionary_encode()
    columns = {name: words if name == "optype" else ones for name in NEEDED}
    table = pa.table(columns | {f"c{number}": ones for number in range(extra)})
    pq.write_table(table, path, compression="zstd", **options)


def _footer(path: Path) -> None:
    """A footer longer than its file."""
    pq.write_table(pa.table({"a": [1]}), path)
    path.write_bytes(path.read_bytes()[:-8] + b"\xff\xff\xff\x7fPAR1")


def _nested(path: Path) -> None:
    kind: pa.DataType = pa.int8()
    for _ in range(100):
        kind = pa.list_(kind)
    pq.write_table(pa.table({"a": pa.array([None], kind)}), path)


def _pairs(path: Path) -> None:
    """Tuples that double forty times."""
    pairs = b"".join(b"h%ch%c\x86\x94" % (i, i) for i in range(40))
    path.write_bytes(b"\x80\x04}(X\x09\0\0\0pg_config)\x94" + pairs + b"u.")


def _keys(path: Path) -> None:
    """Keys of one hash."""
    keys = (b"\x8a\x0a" + (i * (2**61 - 1)).to_bytes(10, "little") + b"K\0" for i in range(60_000))
    path.write_bytes(b"\x80\x04}(X\x09\0\0\0pg_configK\0" + b"".join(keys) + b"u.")


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("jobs/a/rank-00000.page", bytes(10**8))
        for number in range(20_000):
            file.writestr(f"../../etc/x{number}", b"")


def _window(path: Path) -> None:
    options = zstandard.ZstdCompressionParameters(window_log=30)
    coder = zstandard.ZstdCompressor(compression_params=options).compressobj()
    path.write_bytes(coder.compress(b"x" * 10**8) + coder.flush())


def _tar(path: Path) -> None:
    link = tarfile.TarInfo("jobs/a")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    with tarfile.open(path, "w") as file:
        file.addfile(link)
        file.addfile(tarfile.TarInfo("jobs/a/passwd"))


_ENCODED: dict[str, tuple[str, Callable[[Path], None]]] = {
    "T087": ("x.parquet", partial(_operations, rows=6_000_000)),
    "P3": ("x.parquet", partial(_operations, rows=1, extra=20_000)),
    "P4": ("x.parquet", _nested), "P5": ("x.parquet", _footer),
    "P7": ("x.parquet", partial(_operations, rows=20_000, row_group_size=1)),
    "T090": ("x.pkl", _pairs), "T090a": ("x.pickle", _keys), "T091": ("x.zip", _zip),
    "T095": ("x.tar", _tar), "Z4": ("x.json.zst", _window),
}  # fmt: skip


def _lay(name: str, write: Callable[[Path], None]) -> Callable[[Ground], None]:
    return lambda ground: write(ground.job() / name)


def _decoded(name: str) -> Callable[["Arena", str], str]:
    return lambda arena, _: arena.report_on(arena.root / "jobs" / arena.attack / name)


for _name, (_file, _write) in _ENCODED.items():
    what = f"{_file}: small when encoded, large when decoded"
    act, judge = _lay(_file, _write), _decoded(_file)
    register(Attack(f"{_name}_encoded_size", "encoded_size", what, act, 0.0, judge))
