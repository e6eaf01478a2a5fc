"""Attacks by the files beside a page: FIFOs, links, devices, sparse files and hostile JSON."""

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep_records.files.spans import Span, SpanSpool
from tenants.table import SLOW_TIER_SECONDS, Attack, Ground, attack, register

if TYPE_CHECKING:
    from tenants.arena import Arena

_SIDE_FILES = {
    "stderr": "0/rank-00000.stderr",
    "error": "0/rank-00000.error.json",
    "spans": "0/rank-00000.spans.jsonl",
    "operations": "0/rank-00000.ops",
    "stacks": "0/rank-00000.stacks",
    "flight_recorder": "0/rank-00000.flight.json",
    "switches": "switches.json",
    "events": "events.jsonl",
}
_DEPTH = 100_000
_MARK_SECONDS = 0.123456789


def _fifo(path: Path, _: Ground) -> None:
    os.mkfifo(path, 0o644)


def _zero_device(path: Path, _: Ground) -> None:
    path.symlink_to("/dev/zero")


def _sparse(path: Path, _: Ground) -> None:
    path.touch(0o644)
    os.truncate(path, 64 << 30)


def _private(path: Path, ground: Ground) -> None:
    path.symlink_to(ground.private)


def _deep(path: Path, _: Ground) -> None:
    path.write_bytes(b"[" * _DEPTH + b"]" * _DEPTH + b"\n")


def _digits(path: Path, _: Ground) -> None:
    digits = "9" * 400
    names = ("hang_seconds", "pause_seconds", "sample", "version", "start", "end", "step", "rank")
    body = dict.fromkeys((*names, "time", "line", "start_ns", "end_ns", "duration"), 0)
    path.write_text(json.dumps(body).replace(": 0", f": {digits}") + "\n", encoding="ascii")


def _archive_is_clean(arena: "Arena", _: str) -> str:
    found = [
        path.name
        for path in (arena.base / "agent" / "archive").rglob("*")
        if path.is_file() and arena.private_text in path.read_bytes()[: 1 << 20]
    ]
    return f"the archive holds the private file as {found}" if found else ""


_KINDS: dict[str, tuple[str, Callable[[Path, Ground], None]]] = {
    "fifo": ("a FIFO that nobody writes into", _fifo),
    "zero_device": ("a link to /dev/zero", _zero_device),
    "sparse": ("64 GiB of zeros in a sparse file", _sparse),
    "private": ("a link to a file of mode 0600 of another user", _private),
    "depth": (f"JSON of {_DEPTH:,} levels", _deep),
    "digits": ("JSON with integers of 400 digits", _digits),
}


def _laid(file: str, lay: Callable[[Path, Ground], None]) -> Callable[[Ground], None]:
    def act(ground: Ground) -> None:
        ground.page()
        lay(ground.jobs / ground.name / file, ground)

    return act


for _file, _path in _SIDE_FILES.items():
    for _kind, (_what, _lay) in _KINDS.items():
        _name = f"{_file}_as_{_kind}"
        register(
            Attack(
                _name,
                "side files",
                f"{_what} as {Path(_path).name}",
                _laid(_path, _lay),
                SLOW_TIER_SECONDS,
                _archive_is_clean if _kind == "private" else None,
            )
        )


@attack("side files", seconds=SLOW_TIER_SECONDS)
def switches_beyond_floats(ground: Ground) -> None:
    """Switches with 1e999, NaN, texts and lists as seconds."""
    for number, value in enumerate(("1e999", "NaN", '"x"', "[]", "-1", "1e-320", "null")):
        job = ground.job(f"{ground.name}-{number}")
        ground.page(0, job)
        (job / "switches.json").write_text(f'{{"hang_seconds": {value}}}', encoding="ascii")


def span_line(folder: Path, seconds: str) -> str:
    """A line of spans as a rank writes it, with any text as the duration of the slow step."""
    now_ns = time.time_ns()
    span = Span(
        name="slow_step",
        number=1,
        trace_id="1" * 32,
        span_id="2" * 16,
        parent_id="3" * 16,
        start_ns=now_ns - 1000,
        end_ns=now_ns,
        attributes={"seconds": _MARK_SECONDS},
    )
    path = folder / "sample.spans.jsonl"
    SpanSpool(path).write(span)
    text = path.read_text(encoding="utf-8")
    path.unlink()
    return text.replace(str(_MARK_SECONDS), seconds)


@attack("side files", seconds=2.0)
def spans_of_hostile_seconds(ground: Ground) -> None:
    """Slow steps that took 400 digits, 1e999, NaN, a text and a list of seconds."""
    for number, seconds in enumerate(("9" * 400, "1e999", "NaN", '"x"', "[]", "1e-320", "true")):
        page = ground.page(number, rows=4)
        line = span_line(ground.home, seconds)
        page.with_suffix(".spans.jsonl").write_text(line, encoding="utf-8")


@attack("side files", seconds=2.0)
def spans_of_hostile_ids(ground: Ground) -> None:
    """Slow steps whose trace id is a surrogate, a line end, a quote and 10,000 characters."""
    texts = ("\\ud800", "\\n", '\\"} 1\\nup 1', "x" * 10_000)
    for number, text in enumerate(texts):
        page = ground.page(number, rows=4)
        line = span_line(ground.home, "0.25").replace("1" * 32, text)
        page.with_suffix(".spans.jsonl").write_text(line, encoding="utf-8")


@attack("side files", seconds=SLOW_TIER_SECONDS)
def spans_of_hostile_text(ground: Ground) -> None:
    """Spans whose ids and times hold line ends, quotes, surrogates and 1e999."""
    page = ground.page()
    span = '{"name": "slow_step", "trace_id": "\\"} 1\\nup 1", "span_id": "\\ud800", '
    span += '"start": 1e999, "end": -1e999, "step": 1e308, "seconds": NaN}\n'
    page.with_name("rank-00000.spans.jsonl").write_text(span * 1000, encoding="ascii")


@attack("side files", seconds=SLOW_TIER_SECONDS, judge=_archive_is_clean)
def side_file_as_hard_link(ground: Ground) -> None:
    """A hard link to another user's private file as stderr, where the kernel allows it."""
    page = ground.page()
    with contextlib.suppress(OSError):
        os.link(ground.private, page.with_name("rank-00000.stderr"))


@attack("side files", seconds=2.0)
def thousands_of_side_files(ground: Ground) -> None:
    """20,000 stderr files beside one page."""
    page = ground.page()
    for number in range(20_000):
        path = page.with_name(f"rank-{number:05d}.stderr")
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


@attack("side files", seconds=SLOW_TIER_SECONDS)
def archive_flooded(ground: Ground) -> None:
    """Ten stderr files of 64 GiB each, sparse, for the archive to copy."""
    for number in range(10):
        page = ground.page(number)
        path = page.with_suffix(".stderr")
        path.touch(0o644)
        os.truncate(path, 64 << 30)
