"""Measures what the rules cost a Prometheus that holds a simulated cluster: seconds an evaluation.

The series reach a little into the future, so that rules are evaluated live over fresh samples.
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import yaml

from . import list_series, simulated
from .boards_on_cluster import prometheus
from .remote_write import send
from .rules import RULES

_BEFORE_SECONDS, _AHEAD_SECONDS = 900, 570
_SETTLE_SECONDS, _MEASURED_SECONDS, _POLL_SECONDS = 75, 150, 2.5
_MOST_RULES = 10


def _core_seconds(client: httpx.Client) -> float:
    [line] = [x for x in client.get("/metrics").text.splitlines() if x.startswith("process_cpu_s")]
    return float(line.split()[1])


def _groups(client: httpx.Client) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = client.get("/api/v1/rules").json()["data"]["groups"]
    return groups


def _watch(client: httpx.Client, end: float) -> dict[tuple[str, str], dict[str, float]]:
    """Seconds of each evaluation until a time, of groups and of rules, by its timestamp."""
    seconds: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    while time.time() < end:
        for group in _groups(client):
            for kind, each in (("group", group), *(("rule", rule) for rule in group["rules"])):
                assert each.get("health") != "err", (each["name"], each["lastError"])
                seconds[kind, each["name"]][each["lastEvaluation"]] = each["evaluationTime"]
        time.sleep(_POLL_SECONDS)
    return seconds


def _mean(values: dict[str, float]) -> float:
    # The first evaluation after the load reads series that nothing has touched yet.
    return statistics.mean(list(values.values())[1:] or values.values())


def measure(url: str, folder: Path, num_nodes: int) -> None:
    """Fills the Prometheus at an address, loads the rules, and prints what they take."""
    begin = time.time()
    cluster = simulated(
        num_nodes=num_nodes,
        end=begin + _AHEAD_SECONDS,
        range_seconds=_BEFORE_SECONDS + _AHEAD_SECONDS,
    )
    number, took = send(url, cluster.times, list_series(cluster)), time.time() - begin
    print(f"{num_nodes} nodes, {num_nodes * 8} ranks: {number} samples in {took:.0f} s")
    assert took + _SETTLE_SECONDS + _MEASURED_SECONDS < _AHEAD_SECONDS, "use fewer nodes"
    config = {
        "global": {"evaluation_interval": "15s"},
        "rule_files": [f"{RULES}/lockstep*.rules.yaml"],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
        client.post("/-/reload").raise_for_status()
        time.sleep(_SETTLE_SECONDS)
        before = _core_seconds(client)
        seconds = _watch(client, time.time() + _MEASURED_SECONDS)
        cores = (_core_seconds(client) - before) / _MEASURED_SECONDS
        groups = _groups(client)
    total = 0.0
    for group in groups:
        values = seconds["group", group["name"]]
        share = _mean(values) / group["interval"]
        total += share
        print(
            f"{group['name']}: {len(group['rules'])} rules every {group['interval']:g} s, mean"
            f" {_mean(values):.3f} s, longest {max(values.values()):.3f} s, {share:.2%}"
        )
    print(f"all groups together: {total:.2%} of their intervals; {cores:.2f} cores")
    means = [(_mean(values), name) for (kind, name), values in seconds.items() if kind == "rule"]
    for mean, name in sorted(means, reverse=True)[:_MOST_RULES]:
        print(f"{mean:9.4f} s  {name}")


def main() -> None:
    """Measures on a Prometheus of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=128)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with prometheus(folder, "--web.enable-lifecycle") as url:
            measure(url, folder, options.nodes)


if __name__ == "__main__":
    main()
