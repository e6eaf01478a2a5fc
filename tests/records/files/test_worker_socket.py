"""Which of torch's Flight Recorders is asked, and what an empty one is worth."""

import json
import logging
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from lockstep.hangs.worker_server import flight_recorder_settings
from lockstep_records.files.worker_socket import query_flight_recorder

EMPTY = {"comm_lib_version": "", "nccl_comm_state": {}, "pg_config": {}, "pg_status": {}}
LAUNCHED = EMPTY | {"pg_status": {"0": {"last_enqueued_collective": "7"}}}
ENTRIES = EMPTY | {"entries": [{"record_id": 3}]}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"fr_trace_json": EMPTY, "dump_nccl_trace_json": LAUNCHED}, LAUNCHED),
        ({"fr_trace_json": ENTRIES, "dump_nccl_trace_json": EMPTY}, ENTRIES),
        ({"fr_trace_json": ENTRIES}, ENTRIES),  # a build without NCCL
        ({"fr_trace_json": EMPTY, "dump_nccl_trace_json": EMPTY}, None),
        ({"fr_trace_json": [], "dump_nccl_trace_json": "no JSON of ours"}, None),
        ({}, None),
    ],
)
def test_a_dump_counts_where_it_holds_collectives_and_an_empty_one_is_said_to_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answers: dict[str, object], expected: object
) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the library's name
            answer = answers.get(self.path.removeprefix("/handler/"))
            body = json.dumps(answer).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

        def address_string(self) -> str:
            return ""

    path = tmp_path / "rank-00003.sock"
    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with caplog.at_level(logging.WARNING, logger="lockstep"):
            dump = query_flight_recorder(path)
        server.shutdown()
    assert (None if dump is None else json.loads(dump)) == expected
    assert ("of rank-00003 is empty" in caplog.text) == (expected is None and bool(answers))


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_the_flight_recorder_is_on_unless_the_user_has_said_how(name: str) -> None:
    assert flight_recorder_settings({})[name] == "2000"
    assert flight_recorder_settings({name: "0"}) == {}
