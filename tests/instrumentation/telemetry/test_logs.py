"""JSON logs: every line has job, attempt, rank, step and trace."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep_records.files.spans import trace_of

ENVIRONMENT = {"RANK": "1", "WORLD_SIZE": "4", "LOCKSTEP_JOB_ID": "job-a"}


@pytest.fixture(name="stream")
def _stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Where a root logger of the test's own writes."""
    root, level = logging.getLogger(), logging.getLogger().level
    stream = io.StringIO()

    class OwnHandlers(list[logging.Handler]):
        """Handlers of this test only: pytest adds its own at every phase of a test."""

        def append(self, handler: logging.Handler) -> None:
            if getattr(handler, "stream", None) is stream:
                super().append(handler)

    monkeypatch.setattr(root, "handlers", OwnHandlers())
    yield stream
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_job_attempt_rank_and_trace(stream: io.StringIO) -> None:
    lockstep.json_logs(stream=stream, environment=ENVIRONMENT)
    logging.getLogger("mine").info("read %d shards", 3, extra={"seconds": 1.5})
    (line,) = lines(stream)
    trace = trace_of("job-a", ENVIRONMENT)
    assert line["message"] == "read 3 shards"
    assert (line["job_id"], line["attempt"], line["rank"]) == ("job-a", 0, 1)
    assert (line["trace_id"], line["span_id"]) == (trace.trace_id, trace.span_id(0, 1))
    assert line["seconds"] == 1.5
    assert line["level"] == "INFO"
    assert line["time"].endswith("Z")


def test_a_line_has_the_last_completed_step_after_the_end(root: Path, stream: io.StringIO) -> None:
    lockstep.json_logs(stream=stream, environment=ENVIRONMENT)
    monitor = lockstep.attach(root=root, environment=ENVIRONMENT, rows=64)
    log = logging.getLogger("mine")
    log.info("before")
    monitor.step(step=41)
    log.info("within")
    monitor.close()
    log.info("after")
    assert [line.get("step") for line in lines(stream)] == [None, 41, 41]


def test_an_exception_is_in_its_line(stream: io.StringIO) -> None:
    lockstep.json_logs(stream=stream, environment=ENVIRONMENT)
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logging.getLogger("mine").exception("no such thing")
    (line,) = lines(stream)
    assert "ZeroDivisionError" in line["exception"]


def test_a_second_call_writes_no_line_twice(stream: io.StringIO) -> None:
    for _ in range(2):
        lockstep.json_logs(stream=stream, environment=ENVIRONMENT)
    logging.getLogger("mine").info("once")
    assert len(lines(stream)) == 1


def test_a_value_that_json_does_not_know_is_text(stream: io.StringIO) -> None:
    lockstep.json_logs(stream=stream, environment=ENVIRONMENT)
    logging.getLogger("mine").info("at", extra={"where": Path("/data"), "rank": 7})
    (line,) = lines(stream)
    assert line["where"] == "/data"
    assert line["rank"] == 1


def test_the_launcher_can_turn_json_on(root: Path, stream: io.StringIO) -> None:
    logging.getLogger().addHandler(logging.StreamHandler(stream))
    environment = {**ENVIRONMENT, "LOCKSTEP_LOG_JSON": "1"}
    monitor = lockstep.attach(root=root, environment=environment, rows=64)
    monitor.step(step=5)
    logging.getLogger("mine").warning("hot")
    (line,) = lines(stream)
    assert (line["rank"], line["step"]) == (1, 5)
