"""Measures what the rules cost a Prometheus that holds a simulated cluster: seconds an evaluation.

The series reach a little into the future, so that rules are evaluated live over fresh samples.
"""

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import click
import httpx
import yaml
from rich.console import Console
from rich.table import Table

from .cluster import Cluster, simulated
from .job_series import job_series
from .ledger_series import ledger_series
from .node_series import node_series
from .remote_write import send

RULES = Path(__file__).parents[2] / "alerts" / "generated"
_BEFORE_SECONDS = 900
_AHEAD_SECONDS = 570
_READY_SECONDS = 60
_SETTLE_SECONDS = 75
_POLL_SECONDS = 2.5


def _write_config(folder: Path, rules: Path | None) -> None:
    config: dict[str, Any] = {"global": {"evaluation_interval": "15s"}}
    if rules is not None:
        config["rule_files"] = [f"{rules.resolve()}/lockstep*.rules.yaml"]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


@contextmanager
def _prometheus(program: str, folder: Path) -> Iterator[tuple[httpx.Client, int]]:
    """A Prometheus that takes remote writes; its client, and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--web.enable-remote-write-receiver",
        "--web.enable-lifecycle",
    ]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as server,
        httpx.Client(base_url=f"http://{address}", timeout=120, trust_env=False) as client,
    ):
        try:
            _wait_until_ready(client, server)
            yield client, server.pid
        finally:
            server.terminate()


def _wait_until_ready(client: httpx.Client, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            if client.get("/-/ready").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise click.ClickException("Prometheus did not become ready")


def _fill(client: httpx.Client, cluster: Cluster) -> int:
    """Writes every series of the cluster; returns how many samples they have."""
    series = chain(job_series(cluster), node_series(cluster), ledger_series(cluster))
    return send(str(client.base_url), cluster.times, series)


def _groups(client: httpx.Client) -> list[dict[str, Any]]:
    groups = client.get("/api/v1/rules").json()["data"]["groups"]
    assert isinstance(groups, list)
    return groups


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _watch(
    client: httpx.Client, end: float
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Seconds of each evaluation until a time, by group and by rule, each with its timestamp."""
    by_group: dict[str, dict[str, float]] = defaultdict(dict)
    by_rule: dict[str, dict[str, float]] = defaultdict(dict)
    while time.time() < end:
        for group in _groups(client):
            by_group[group["name"]][group["lastEvaluation"]] = group["evaluationTime"]
            for rule in group["rules"]:
                if rule["health"] == "err":
                    raise click.ClickException(f"{rule['name']}: {rule['lastError']}")
                by_rule[rule["name"]][rule["lastEvaluation"]] = rule["evaluationTime"]
        time.sleep(_POLL_SECONDS)
    return by_group, by_rule


def _mean(values: dict[str, float]) -> float:
    # The first evaluation after the load reads series that nothing has touched yet.
    steady = list(values.values())[1:] or list(values.values())
    return sum(steady) / len(steady)


def _print_groups(groups: list[dict[str, Any]], by_group: dict[str, dict[str, float]]) -> float:
    table = Table("group", "rules", "interval", "mean", "longest", "share of the interval")
    total = 0.0
    for group in groups:
        seconds, interval = by_group[group["name"]], group["interval"]
        share = _mean(seconds) / interval
        total += share
        cells = (f"{interval:g} s", f"{_mean(seconds):.3f} s", f"{max(seconds.values()):.3f} s")
        table.add_row(group["name"], str(len(group["rules"])), *cells, f"{share:.2%}")
    Console(width=100).print(table)
    return total


@click.command()
@click.option("--nodes", type=click.IntRange(16, 1024), default=128, show_default=True)
@click.option("--seconds", type=click.IntRange(20, 400), default=150, show_default=True)
@click.option("--rules", type=click.Path(path_type=Path, exists=True), default=RULES)
@click.option("--heaviest", type=click.IntRange(0, 100), default=10, show_default=True)
@click.option("--program", default="prometheus", show_default=True, help="Prometheus to measure.")
def main(nodes: int, seconds: int, rules: Path, heaviest: int, program: str) -> None:
    """Fill a Prometheus with a simulated cluster, load the rules, and print what they take."""
    executable = shutil.which(program)
    if executable is None:
        raise click.UsageError(f"--program {program}: is not on PATH; install prometheus")
    folder = Path(tempfile.mkdtemp(prefix="rule-cost-"))
    _write_config(folder, None)
    try:
        with _prometheus(executable, folder) as (client, pid):
            _measure(client, pid, folder, nodes=nodes, seconds=seconds, rules=rules, top=heaviest)
    finally:
        shutil.rmtree(folder)


def _measure(
    client: httpx.Client, pid: int, folder: Path, *, nodes: int, seconds: int, rules: Path, top: int
) -> None:
    begin = time.time()
    cluster = simulated(
        num_nodes=nodes,
        end=begin + _AHEAD_SECONDS,
        range_seconds=_BEFORE_SECONDS + _AHEAD_SECONDS,
    )
    number = _fill(client, cluster)
    head = client.get("/api/v1/status/tsdb").json()["data"]["headStats"]["numSeries"]
    took = time.time() - begin
    print(f"{nodes} nodes, {nodes * 8} ranks: {head} series, {number} samples in {took:.0f} s")
    if took + _SETTLE_SECONDS + seconds > _AHEAD_SECONDS:
        raise click.ClickException("the series end before the measurement; use fewer nodes")
    _write_config(folder, rules)
    client.post("/-/reload").raise_for_status()
    time.sleep(_SETTLE_SECONDS)
    before, wall = _processor_seconds(pid), time.time()
    by_group, by_rule = _watch(client, time.time() + seconds)
    busy = (_processor_seconds(pid) - before) / (time.time() - wall)
    groups = _groups(client)
    share = _print_groups(groups, by_group)
    rule_names = [rule for group in groups for rule in group["rules"]]
    firing = sum(len(rule.get("alerts", ())) for rule in rule_names)
    print(f"{len(rule_names)} rules, {firing} alerts pending or firing")
    print(f"all groups together: {share:.2%} of their intervals; processor: {busy:.2f} cores")
    means = sorted(((_mean(values), name) for name, values in by_rule.items()), reverse=True)
    for mean, name in means[:top]:
        print(f"{mean:9.4f} s  {name}")
    print(json.dumps({"share": round(share, 4), "cores": round(busy, 3)}), file=sys.stderr)


if __name__ == "__main__":
    main()
