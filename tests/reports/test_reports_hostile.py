"""Recordings made to hurt their reader are refused or bounded: in seconds, and in little memory."""

import gzip
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import page_path
from lockstep_records.page.layout import PHASES
from lockstep_records.page.writer import PageWriter, RankIdentity
from lockstep_reports.analysis.summary import step_losses
from lockstep_reports.command import report
from lockstep_reports.jobs_command import jobs
from lockstep_reports.readers.unpickled import json_values, plain_values

from .report_command import run_in_bounded_memory
from .synthetic_job import Slow, SyntheticJob

MOST_BYTES = 2 << 30
MOST_SECONDS = 30
HUGE = 1 << 31
CONTROL = "\x1b]0;title\x07\u202e\x9b31m"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def knot(depth: int = 40) -> list[Any]:
    """A list of few bytes that holds two to the power of ``depth`` values when written out."""
    value: list[Any] = ["x"]
    for _ in range(depth):
        value = [value, value]
    return value


def dump(**fields: Any) -> dict[str, Any]:
    entry = {"process_group": ("0", "default"), "collective_seq_id": 1, "state": "scheduled"}
    config = {"0": {"ranks": [0, 1], "desc": ""}}
    return {"pg_config": config, "pg_status": {}, "entries": [entry]} | fields


def profile(event: str, header: str = '"schemaVersion": 1') -> bytes:
    return f'{{{header}, "traceEvents": [{event}]}}'.encode()


def wide_parquet(folder: Path) -> bytes:
    """A few kilobytes that would be 1 TiB of text were it written out."""
    count, path = 1 << 20, folder / "wide"
    name = pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), ["f" * (1 << 20)])
    numbers = {n: np.zeros(count, np.int64) for n in ("dp_rank", "stage", "rank", "step", "seq_id")}
    times = {n: np.zeros(count) for n in ("start_ts", "duration")}
    pq.write_table(pa.table({**numbers, **times, "optype": name}), path)
    return path.read_bytes()


ENTRY = {"process_group": ("0", ""), "collective_seq_id": 1, "input_sizes": knot()}
RECORDINGS: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "a dump with a knot": (lambda _: pickle.dumps(dump(entries=[ENTRY])), "when written out"),
    "a dump with a knot as its name": (
        lambda _: pickle.dumps(dump(pg_config={"0": {"desc": knot()}})),
        "when written out",
    ),
    "a dump with a huge integer": (
        lambda _: pickle.dumps(dump(entries=[{"record_id": 1 << 70_000}])),
        "more than 64 bits",
    ),
    "a dump nested too deeply": (
        lambda _: b'{"pg_config": ' + b"[" * 500 + b"]" * 500 + b"}",
        "nested too deeply",
    ),
    "a dump of many small values": (
        lambda _: gzip.compress(b'{"pg_config": [' + b"[]," * (6 << 20) + b"[]]}"),
        "more than 8,388,608 values",
    ),
    "a dump of many opcodes": (
        lambda _: gzip.compress(b"\x80\x02X\x09\0\0\0pg_config0" + b"]0" * (3 << 20) + b"N."),
        "operations of pickle",
    ),
    "a dump of 2^31 ranks": (
        lambda _: pickle.dumps(dump(pg_config={"0": {"ranks": [0, HUGE]}})),
        "world size 2,147,483,649",
    ),
    "a profile nested too deeply": (
        lambda _: profile('{"name": ' + "[" * 100_000 + "]" * 100_000 + "}"),
        "nested too deeply",
    ),
    "a profile of ten million ranks": (
        lambda _: profile(
            '{"ph": "X", "name": "ProfilerStep#1", "ts": 1, "dur": 1}',
            '"distributedInfo": {"rank": 0, "world_size": 9999999}',
        ),
        "world size 9,999,999",
    ),
    "Parquet that unfolds": (wide_parquet, ""),
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_made_to_hurt_is_refused_in_bounds_of_memory(tmp_path: Path, name: str) -> None:
    make, reason = RECORDINGS[name]
    path = tmp_path / "recording_0"
    path.write_bytes(make(tmp_path))
    done = run_in_bounded_memory(path, MOST_BYTES, MOST_SECONDS)
    assert done.returncode == 2, done.stderr[-2000:]
    message = done.stderr.partition("Error: ")[2].strip()
    assert len(message.splitlines()) == 1
    assert reason in message


def test_a_layout_with_a_knot_of_aliases_is_refused_by_a_sentence(tmp_path: Path) -> None:
    trace, meta = tmp_path / "trace-x.csv", tmp_path / "meta.yaml"
    trace.write_text("dp_rank,stage,rank,step,optype,start_ts,duration,seq_id\n")
    trace.write_text(trace.read_text() + "0,0,0,0,optimizer,0.0,0.1,0\n")
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    meta.write_text("\n".join([*lines, "dp_size: *a39"]))
    result = CliRunner().invoke(report, [str(trace), "--meta", str(meta), "--json", "-"])
    assert result.exit_code == 2
    assert "more than 50,000 values" in " ".join(result.output.split())


def test_a_page_that_claims_2_to_the_31_ranks_costs_a_sentence(page_root: Path) -> None:
    path = page_path(page_root, "huge", 0, 0)
    path.parent.mkdir(parents=True)
    identity = RankIdentity(
        job_id="huge", rank=0, local_rank=0, world_size=HUGE - 1, attempt=0, node="n"
    )
    page = PageWriter(path, identity, rows=4)
    page.heartbeat(1, PHASES.index("done"))
    page.close()
    result = CliRunner().invoke(report, ["huge", "--json", "-"])
    assert result.exit_code == 2
    assert "world size 2,147,483,647 of huge is not from 1 to 1,048,576" in result.output


@pytest.mark.timeout(20)
def test_many_slow_steps_at_no_distance_are_grouped_in_seconds() -> None:
    draw = np.random.default_rng(1)
    seconds = np.where(draw.random(200_000) < 0.2, 2.0 + draw.random(200_000), 1.0)
    losses = step_losses(seconds, np.arange(len(seconds)))
    assert sum(loss.count for loss in losses) == np.count_nonzero(seconds > 1.5)


def test_knots_are_refused_and_large_plain_dumps_are_not() -> None:
    with pytest.raises(ValueError, match="when written out"):
        plain_values(pickle.dumps(knot()))
    assert len(plain_values(pickle.dumps([dump() for _ in range(20_000)]))) == 20_000
    assert json_values(json.dumps(dump()).encode())["entries"]
    with pytest.raises(ValueError, match="64 bits"):
        json_values(b"[" + b"9" * 400 + b"]")


def test_control_characters_of_others_reach_no_format(page_root: Path, tmp_path: Path) -> None:
    folder = SyntheticJob(job_id="c", slow=(Slow(rank=2),)).write(page_root)
    fields = {"rank": 0, "exit_code": None, "signal": f"S{CONTROL}", "first": True}
    append_event(folder, Event(kind="rank_ended", job_id="c", attempt=0, fields=fields))
    end = {"outcome": "failed", "cause": "exception", "reason": f"It failed: {CONTROL}"}
    append_event(folder, Event(kind="attempt_ended", job_id="c", attempt=0, fields=end))
    page, markdown = tmp_path / "r.html", tmp_path / "r.md"
    result = CliRunner().invoke(report, ["c", "--html", str(page), "--markdown", str(markdown)])
    assert result.exit_code == 0, result.output
    body = page.read_text().rpartition("</script>")[2]
    for text in (result.output, markdown.read_text(), body, CliRunner().invoke(jobs).output):
        assert not OBEYED.search(text)
    log = tmp_path / "train.log"
    log.write_text(f"[rank1]: RuntimeError: CUDA out of memory {CONTROL}\nstep 1\n")
    result = CliRunner().invoke(
        report, [str(log), "--html", str(page), "--markdown", str(markdown)]
    )
    assert result.exit_code == 0, result.output
    for text in (result.output, markdown.read_text(), page.read_text()):
        assert not OBEYED.search(text)
