"""An agent and the alerting servers that watch the jobs of a bench, and the alerts that fired."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from run import LOCKSTEP

from lockstep_cli.small_server import free_port

_INTERVAL = "5s"


@contextmanager
def watched(root: Path, work: Path) -> Iterator[str]:
    """Watches the jobs under a root during the block; gives the address of the Prometheus."""
    address = f"127.0.0.1:{free_port()}"
    options = ("--listen", address, "--dir", str(root), "--state", str(work / "state"))
    command = (*LOCKSTEP, "agent", *options, "--scrape-interval", _INTERVAL, "--cluster", "bench")
    port, stack = free_port(), ("--dir", str(work / "stack"))
    up = (*LOCKSTEP, "stack", "up", *stack, "--target", address, "--interval", _INTERVAL)
    with (work / "agent.log").open("wb") as log:
        agent = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))
    try:
        subprocess.run([*up, "--prometheus-port", str(port)], check=True, stdout=subprocess.DEVNULL)
        yield f"http://127.0.0.1:{port}"
    finally:
        subprocess.run([*LOCKSTEP, "stack", "down", *stack], check=False, stdout=subprocess.DEVNULL)
        agent.terminate()
        agent.wait(30)


def alerts_by_job(prometheus: str) -> dict[str, set[str]]:
    """Names of all alerts that fired within the last hour, by job."""
    query = "max_over_time(ALERTS{alertstate='firing'}[1h])"
    url = f"{prometheus}/api/v1/query?query={quote(query)}"
    with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310  # our own server
        result = json.load(response)["data"]["result"]
    fired: dict[str, set[str]] = {}
    for series in result:
        labels = series["metric"]
        fired.setdefault(labels.get("job_id", ""), set()).add(labels["alertname"])
    return fired
