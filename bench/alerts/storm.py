"""5,000 alerts at once through an Alertmanager with the shipped routes; prints what a webhook gets.

``PYTHONPATH=bench python bench/alerts/storm.py``. They stand for four minutes, 64 in each post.
"""

import json
import subprocess
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import yaml

from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.routing import alertmanager_config
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_cli.small_server import free_port

_NUM_ALERTS, _BATCH = 5000, 64
_POSTS = ((0, 720), (180, 720), (240, 0))  # seconds of each, and how long its alerts then stand
_requests: dict[tuple[str, str], list[tuple[float, int, int]]] = defaultdict(list)


class _Inbox(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        message = json.loads(body)
        size = time.monotonic(), len(message["alerts"]), len(body)
        _requests[self.path, message["status"]].append(size)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def _alerts() -> list[dict[str, str]]:
    """A tenth are pages of jobs, half of which have one cause; the others are tickets of nodes."""
    tickets = [each.name for each in read_spec(spec_path()).alerts if each.severity == "warning"]
    found = []
    for number in range(_NUM_ALERTS):
        labels = {"cluster": "c1", "node": f"node-{number}", "job_id": f"job-{number}",
                  "alertname": tickets[number % len(tickets)], "severity": "warning"}  # fmt: skip
        if number % 10 == 0:
            labels |= {"alertname": "JobNotProgressing", "severity": "critical",
                       "incident": "power" if number % 20 else f"job-{number}"}  # fmt: skip
        found.append(labels)
    return found


def _post(client: httpx.Client, alerts: list[dict[str, str]], begin: float) -> None:
    for at, stands_seconds in _POSTS:
        time.sleep(max(begin + at - time.monotonic(), 0))
        now = datetime.now(UTC)
        end = (now + timedelta(seconds=stands_seconds)).isoformat()
        for first in range(0, len(alerts), _BATCH):
            some = alerts[first : first + _BATCH]
            batch = [{"labels": x, "startsAt": now.isoformat(), "endsAt": end} for x in some]
            client.post("/api/v2/alerts", json=batch).raise_for_status()


def main() -> None:
    """Starts both servers, and prints a line a receiver and status."""
    inbox = ThreadingHTTPServer(("127.0.0.1", 0), _Inbox)
    Thread(target=inbox.serve_forever, daemon=True).start()
    text = yaml.safe_dump(alertmanager_config(Delivery()))
    text = text.replace("127.0.0.1:9095", f"127.0.0.1:{inbox.server_port}")
    with tempfile.TemporaryDirectory() as folder:
        path, address = Path(folder, "alertmanager.yaml"), f"127.0.0.1:{free_port()}"
        path.write_text(text, encoding="utf-8")
        command = ["prometheus-alertmanager", f"--config.file={path}", f"--storage.path={folder}"]
        command += [f"--web.listen-address={address}", "--cluster.listen-address="]
        with subprocess.Popen([*command, "--log.level=error"]) as server:
            client = httpx.Client(base_url=f"http://{address}", timeout=60, trust_env=False)
            time.sleep(3)
            _post(client, _alerts(), begin := time.monotonic())
            time.sleep(100)
            metrics = client.get("/metrics").text
            peak = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
            server.terminate()
    for text, name in ((peak, "VmHWM:"), (metrics, "\nprocess_cpu_seconds_total ")):
        print(name.strip(), text.partition(name)[2].split("\n")[0])
    for (receiver, status), rows in sorted(_requests.items()):
        times, alerts, sizes = zip(*rows, strict=True)
        print(
            f"{receiver} {status}: {len(rows)} requests, {sum(alerts)} alerts, after"
            f" {min(times) - begin:.1f} to {max(times) - begin:.1f} s, largest {max(sizes):,} bytes"
        )


if __name__ == "__main__":
    main()
