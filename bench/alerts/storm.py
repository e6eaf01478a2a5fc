"""A storm of 5,000 alerts through a real Alertmanager with the shipped routes.

``PYTHONPATH=bench python bench/alerts/storm.py``; a Prometheus that evaluates every 15 s is played:
it posts all alerts that fire every three minutes, 64 a request, and each end once.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import yaml
from simulated_cluster.fake_node import free_port

from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.routing import alertmanager_config
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

_BATCH = 64
_STANDS_SECONDS, _LAST_SECONDS = 240, 100


class _Inbox(BaseHTTPRequestHandler):
    """Counts what a webhook gets; ``seen``: receiver, time, number of alerts, bytes, status."""

    seen: list[tuple[str, float, int, int, str]] = []  # noqa: RUF012  # one inbox

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        told = json.loads(body)
        row = (self.path, time.monotonic(), len(told["alerts"]), len(body), told["status"])
        self.seen.append(row)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def storm(number: int) -> list[dict[str, str]]:
    """A tenth are pages of jobs, half of them with one cause; the rest tickets of nodes."""
    tickets = [x for x in read_spec(spec_path()).alerts if x.severity == "warning"]
    found = []
    for index in range(number):
        place = {"cluster": "c1", "node": f"node-{index:05d}", "job_id": f"job-{index}"}
        if index % 10 == 0:
            incident = "power" if index % 20 else place["job_id"]
            page = {"alertname": "JobNotProgressing", "severity": "critical", "incident": incident}
            found.append(place | page)
        else:
            alert = tickets[index % len(tickets)]
            route = {"route": alert.route} if alert.route else {}
            found.append(place | {"alertname": alert.name, "severity": "warning"} | route)
    return found


def main() -> None:
    """Prints requests, their times and sizes by receiver, and what Alertmanager takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alerts", type=int, default=5000)
    alerts = storm(parser.parse_args().alerts)
    inbox = ThreadingHTTPServer(("127.0.0.1", 0), _Inbox)
    Thread(target=inbox.serve_forever, daemon=True).start()
    config: dict[str, Any] = alertmanager_config(Delivery())
    for receiver in config["receivers"]:
        for webhook in receiver.get("webhook_configs", ()):
            webhook["url"] = f"http://127.0.0.1:{inbox.server_port}/{receiver['name']}"
    with tempfile.TemporaryDirectory() as folder:
        path, port = Path(folder, "alertmanager.yaml"), free_port()
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        command = ["prometheus-alertmanager", f"--config.file={path}", f"--storage.path={folder}",
                   f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
                   "--log.level=error"]  # fmt: skip
        server = subprocess.Popen(command)
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
        time.sleep(3)
        begin = time.monotonic()
        for at, keeps in ((0, 720), (_STANDS_SECONDS - 60, 720), (_STANDS_SECONDS, 0)):
            time.sleep(max(begin + at - time.monotonic(), 0))
            now, began = datetime.now(UTC), time.monotonic()
            times = {
                "startsAt": now.isoformat(), "endsAt": (now + timedelta(seconds=keeps)).isoformat()
            }  # fmt: skip
            for first in range(0, len(alerts), _BATCH):
                batch = [{"labels": x, **times} for x in alerts[first : first + _BATCH]]
                client.post("/api/v2/alerts", json=batch).raise_for_status()
            print(f"posted in {time.monotonic() - began:.2f} s")
        time.sleep(_LAST_SECONDS)
        own = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines())
        status = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
        [peak] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
        server.terminate()
        server.wait()
    print(
        f"memory at most {int(peak) / 1024:.0f} MB, {own['process_cpu_seconds_total']} s of a core"
    )
    for (to, status), requests in sorted(Counter((x[0], x[4]) for x in _Inbox.seen).items()):
        rows = [x for x in _Inbox.seen if (x[0], x[4]) == (to, status)]
        after = [x[1] - begin for x in rows]
        print(
            f"{to} {status}: {requests} requests, {sum(x[2] for x in rows)} alerts,"
            f" {min(after):.1f} to {max(after):.1f} s, largest {max(x[3] for x in rows):,} bytes"
        )


if __name__ == "__main__":
    main()
