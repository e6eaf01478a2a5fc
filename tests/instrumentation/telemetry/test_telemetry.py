"""Traces: what a restarted job sends to a real OTLP receiver, and what a dead one costs."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from servers import Answered, Answering, captured, serving

import lockstep
from lockstep.telemetry.export import JobSpans, Outbox, exporter_of
from lockstep_records.files.jobs import job_folder
from lockstep_records.files.spans import read_spans, trace_of


@dataclass
class Received:
    """Spans as dicts, with the attributes of their resource, and the stderr of the job."""

    endpoint: str = ""
    status: int = 200
    stderr: str = ""
    spans: list[dict[str, Any]] = field(default_factory=list)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"] == name]

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for group in request.resource_spans:
            resource = _plain(group.resource.attributes)
            for span in (span for scope in group.scope_spans for span in scope.spans):
                self.spans.append(
                    {
                        "name": span.name,
                        "trace_id": span.trace_id.hex(),
                        "span_id": span.span_id.hex(),
                        "parent_id": span.parent_span_id.hex(),
                        "start_ns": span.start_time_unix_nano,
                        "end_ns": span.end_time_unix_nano,
                        "failed": span.status.code == span.status.STATUS_CODE_ERROR,
                        "resource": resource,
                        "attributes": _plain(span.attributes),
                    }
                )


def _plain(attributes: Any) -> dict[str, Any]:
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value"))
        for attribute in attributes
    }


class Receiver(Answering):
    """An OTLP receiver, which takes spans unless its status says that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.received = Received(f"http://{self.target}")

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> Answered:
        if self.received.status == 200:
            zipped = request.headers.get("Content-Encoding") == "gzip"
            self.received.take(gzip.decompress(body) if zipped else body)
        return self.received.status, ExportTraceServiceResponse().SerializeToString(), {}


@contextmanager
def receiver() -> Iterator[Received]:
    with serving(Receiver()) as server:
        yield server.received


LOOP = """
import logging, os, time
import lockstep

monitor = lockstep.attach()
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
with monitor.phase("restore"):
    time.sleep(0.01)
for step in range(40):
    monitor.enter_phase("forward")
    time.sleep(0.03 if step == 30 else 0.003)
    monitor.step(loss=1.0)
    if step == 20:
        logging.getLogger("loop").warning("evaluating")
        with monitor.phase("eval"):
            time.sleep(0.005)
        try:
            with monitor.checkpoint(step):
                if attempt == "0" and rank == "1":
                    raise OSError("disk full")
        except OSError:
            time.sleep(0.1)
            raise SystemExit(3)
monitor.close()
"""
OUTSIDE = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


def run(root: Path, job_id: str, loop: str, *options: str, **environment: str) -> tuple[int, str]:
    """Exit status and stderr of ``lockstep run`` of a loop."""
    script = root / f"{job_id}.py"
    script.write_text(loop)
    command = [sys.executable, "-m", "lockstep_cli.main", "run", "--dir", str(root)]
    completed = captured(
        [*command, "--job-id", job_id, *options, str(script)],
        env={**os.environ, **environment},
        timeout=50,
    )
    return completed.returncode, completed.stderr


@pytest.fixture(name="received", scope="module")
def _received(module_memory: Path) -> Received:
    """A job of two ranks, restarted once, whose launcher was itself started inside a trace."""
    with receiver() as received:
        exit_code, stderr = run(
            module_memory,
            "job-a",
            LOOP,
            *("--nproc-per-node", "2", "--max-restarts", "1", "--cluster", "east", "--log-json"),
            OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint,
            OTEL_RESOURCE_ATTRIBUTES="team=speech",
            LOCKSTEP_NODE="node-7",
            TRACEPARENT=OUTSIDE,
        )
        assert exit_code == 0, stderr
        received.stderr = stderr
    return received


@pytest.mark.distributed
def test_a_restarted_job_is_one_trace_below_the_span_that_started_it(received: Received) -> None:
    assert {span["trace_id"] for span in received.spans} == {"ab" * 16}
    (job,) = received.named("job")
    assert job["parent_id"] == "cd" * 8
    assert not job["failed"]
    attempts = received.named("attempt")
    assert [span["parent_id"] for span in attempts] == [job["span_id"]] * 2
    assert [span["failed"] for span in attempts] == [True, False]


@pytest.mark.distributed
def test_every_span_is_sent_once_and_has_its_parent(received: Received) -> None:
    ids = [span["span_id"] for span in received.spans]
    assert len(ids) == len(set(ids))
    assert {span["parent_id"] for span in received.spans} <= {*ids, "cd" * 8}
    ranks = {span["span_id"]: span["resource"] for span in received.named("rank")}
    assert len(ranks) == 4
    for name in ("initialisation", "restore", "checkpoint", "evaluation", "slow_step"):
        for span in received.named(name):
            assert span["resource"] == ranks[span["parent_id"]]


@pytest.mark.distributed
def test_what_happens_once_in_a_while_has_a_span_in_every_attempt(received: Received) -> None:
    for name in ("initialisation", "restore", "evaluation", "checkpoint"):
        attempts_and_ranks = [
            (span["resource"]["lockstep.attempt"], span["resource"]["lockstep.rank"])
            for span in received.named(name)
        ]
        assert {(0, 1), (1, 0), (1, 1)} <= set(attempts_and_ranks)
    failed = [span for span in received.named("checkpoint") if span["failed"]]
    assert [span["resource"]["lockstep.rank"] for span in failed] == [1]
    for restore in received.named("restore"):
        assert restore["end_ns"] - restore["start_ns"] >= 10_000_000


@pytest.mark.distributed
def test_only_slow_steps_have_spans_of_their_own(received: Received) -> None:
    slow = [s for s in received.named("slow_step") if s["attributes"]["lockstep.step"] == 30]
    assert {span["resource"]["lockstep.rank"] for span in slow} == {0, 1}
    for span in slow:
        assert span["attributes"]["lockstep.forward_seconds"] >= 0.03
        assert span["attributes"]["lockstep.median_seconds"] < 0.02
    assert len(received.named("slow_step")) <= 4 * 12


@pytest.mark.distributed
def test_resources_name_job_attempt_rank_node_and_cluster(received: Received) -> None:
    for span in received.named("restore"):
        resource = span["resource"]
        assert resource["lockstep.job_id"] == "job-a"
        assert resource["lockstep.cluster"] == "east"
        assert resource["host.name"] == "node-7"
        assert resource["team"] == "speech"
        assert resource["service.name"] == "lockstep"


@pytest.mark.distributed
def test_json_logs_lead_to_the_spans_of_their_ranks(received: Received) -> None:
    lines = [json.loads(line) for line in received.stderr.splitlines() if line.startswith("{")]
    logged = [line for line in lines if line["message"] == "evaluating"]
    ranks = {span["span_id"]: span["resource"] for span in received.named("rank")}
    assert {(line["attempt"], line["rank"]) for line in logged} >= {(0, 1), (1, 0), (1, 1)}
    for line in logged:
        assert line["trace_id"] == "ab" * 16
        assert line["step"] == 20
        assert line["rank"] == ranks[line["span_id"]]["lockstep.rank"]
        assert line["attempt"] == ranks[line["span_id"]]["lockstep.attempt"]


def spooled(root: Path, job_id: str, num_checkpoints: int) -> JobSpans:
    monitor = lockstep.attach(root=root, environment={"LOCKSTEP_JOB_ID": job_id}, rows=64)
    for step in range(num_checkpoints):
        with monitor.checkpoint(step):
            pass
    monitor.close()
    return JobSpans(job=job_folder(root, job_id), trace=trace_of(job_id, {}), cluster="east")


def test_what_the_receiver_does_not_take_is_offered_until_it_does(root: Path) -> None:
    spans = spooled(root, "job-b", num_checkpoints=3)
    with receiver() as received:
        outbox = Outbox(OTLPSpanExporter(endpoint=f"{received.endpoint}/v1/traces", timeout=1))
        received.status = 400
        outbox.offer(spans.read())
        assert outbox.waiting == 4
        received.status = 200
        outbox.offer(spans.read())
        outbox.offer(spans.read())
        assert outbox.waiting == 0
    assert len(received.spans) == 4


@pytest.mark.distributed
def test_a_receiver_that_is_dead_delays_no_step_and_loses_no_span(root: Path) -> None:
    loop = LOOP.replace("raise OSError", "pass #")
    exit_code, stderr = run(root, "job-c", loop, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert exit_code == 0
    assert "telemetry had not finished" in stderr or "could not be exported" in stderr
    spans = read_spans(job_folder(root, "job-c") / "0" / "rank-00000.spans.jsonl")
    ends = [span.end_ns for span in spans if span.name != "slow_step"]
    assert len(ends) == 4
    assert (ends[-1] - ends[0]) / 1e9 < 2.0


@pytest.mark.distributed
def test_a_rank_that_is_killed_leaves_complete_spans(root: Path) -> None:
    loop = root / "killed.py"
    loop.write_text(
        "import lockstep\nmonitor = lockstep.attach()\nprint('on', flush=True)\n"
        "while True:\n    with monitor.checkpoint():\n        pass\n"
    )
    environment = {**os.environ, "LOCKSTEP_JOB_ID": "job-d", "LOCKSTEP_DIR": str(root)}
    with subprocess.Popen(
        [sys.executable, loop], env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        path = job_folder(root, "job-d") / "0" / "rank-00000.spans.jsonl"
        deadline = time.monotonic() + 40
        while len(read_spans(path)) < 100 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    numbers = [span.number for span in read_spans(path)]
    assert len(numbers) >= 100
    assert numbers == list(range(numbers[0], numbers[-1] + 1))


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "TRACEPARENT": OUTSIDE[:-1] + "0"},
    ],
)
def test_no_exporter_starts_where_traces_are_off(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    assert exporter_of(tmp_path, "east", environment) == ()


def test_the_training_process_never_loads_opentelemetry() -> None:
    program = "import sys, lockstep; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [b"False"]
