"""What a cluster costs a Prometheus with the shipped rules as it grows: ``make bench-scale``.

A Prometheus scrapes a live simulated cluster of each size and evaluates the rules. Then a rank of
a job of all ranks becomes slow, at a scrape every 5 s, and ``lockstep top`` lists 1,000 jobs.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from lockstep_alerts.output import render, write_files
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.shipped import measured_path, spec_path
from lockstep_alerts.spec import read_spec
from lockstep_alerts.stack.servers import prometheus_config
from lockstep_catalogue import agent
from lockstep_reports.top.cluster import ClusterSource

from .archive import name_slow_rank
from .boards_on_cluster import check_boards, prometheus
from .cluster import Cluster, Job, name_nodes, slowed_job
from .fake_node import scrape_twice
from .fleet import Node, Template, labels_of, live, samples_of, scrape_configs, serving
from .remote_write import Samples, send

SECONDS = {16: 60, 64: 75, 128: 90, 256: 120, 512: 200}
"""How long each size runs; the faults of its jobs begin halfway."""
_FAST, _SLOW = Duration("5s"), Duration("15s")
_WARM_SECONDS, _FOUND_SECONDS, _TOP_SECONDS, _NUM_JOBS = 75, 60, 60, 1000
_PAGE = "JobLosing"


class Server:
    """A Prometheus that scrapes a live cluster and evaluates the shipped rules."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self._client = httpx.Client(base_url=url, timeout=120, trust_env=False)
        self.close = self._client.close

    def own(self) -> dict[str, float]:
        """What it says of itself, without labels or summed over them."""
        sums: dict[str, float] = defaultdict(float)
        for line in self._client.get("/metrics").text.splitlines():
            if not line.startswith("#"):
                stem, _, value = line.rpartition(" ")
                sums[stem.partition("{")[0]] += float(value)
        return sums

    def groups(self) -> list[dict[str, Any]]:
        """Its rule groups, each evaluated without error."""
        groups: list[dict[str, Any]] = self._client.get("/api/v1/rules").json()["data"]["groups"]
        errors = [x["lastError"] for each in groups for x in each["rules"] if x["health"] == "err"]
        assert not errors, errors
        return groups

    def firing(self, alert: str) -> list[dict[str, str]]:
        """The labels of an alert's instances that fire."""
        alerts = self._client.get("/api/v1/alerts").json()["data"]["alerts"]
        labels: list[dict[str, str]] = [x["labels"] for x in alerts if x["state"] == "firing"]
        return [each for each in labels if each["alertname"] == alert]


@contextmanager
def scraped(template: Template, cluster: Cluster, interval: Duration) -> Iterator[Server]:
    """A Prometheus that scrapes the cluster and evaluates the rules at an interval."""
    spec = read_spec(spec_path(), interval)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address = stack.enter_context(serving(template, cluster))
        write_files(folder, render(spec, Delivery()))
        config = prometheus_config(spec.windows, alertmanager="127.0.0.1:9", prometheus=address)
        config["scrape_configs"] = scrape_configs(cluster, address)
        url = stack.enter_context(prometheus(folder, config=config))
        yield stack.enter_context(closing(Server(url, folder)))


def measure(template: Template, num_nodes: int, seconds: float) -> dict[str, Any]:
    """The figures of one size."""
    begin = time.time() + num_nodes * 0.02
    cluster = live(num_nodes, begin, seconds, 15)
    with scraped(template, cluster, _SLOW) as server:
        time.sleep(max(begin + seconds / 3 - time.time(), 0))
        before, since = server.own(), time.time()
        took: dict[str, dict[str, float]] = defaultdict(dict)
        peak = 0.0
        while time.time() < begin + seconds:
            for group in server.groups():
                took[group["name"]][group["lastEvaluation"]] = group["evaluationTime"]
            now = server.own()
            peak = max(peak, now["process_resident_memory_bytes"])
            time.sleep(2.5)
        intervals = {each["name"]: each["interval"] for each in server.groups()}
        passed = time.time() - since
        figures = {
            name: (now[key] - before[key]) / passed
            for name, key in (
                ("cores", "process_cpu_seconds_total"),
                ("samples_per_second", "prometheus_tsdb_head_samples_appended_total"),
                ("created_per_second", "prometheus_tsdb_head_series_created_total"),
            )
        }
        return {
            "nodes": num_nodes, "seconds": seconds, "jobs": len(cluster.jobs), **figures,
            "series": now["prometheus_tsdb_head_series"], "resident_bytes": peak,
            "groups": {
                name: {
                    "interval": intervals[name],
                    # The first evaluation reads series that nothing has touched yet.
                    "mean": statistics.mean(list(x.values())[1:] or x.values()),
                    "max": max(x.values()),
                }
                for name, x in took.items()
            },
            "panels": _panel_seconds(server.url, cluster),
        }  # fmt: skip


def _panel_seconds(url: str, cluster: Cluster) -> dict[str, list[float]]:
    """Of each board, the seconds of its median and of its slowest panel over the run."""
    so_far = replace(cluster, times=cluster.times[cluster.times <= time.time()])
    return {
        board: [statistics.median(seconds), max(seconds)]
        for board, findings in check_boards(url, so_far).items()
        if (seconds := [each.seconds for each in findings])
    }


def count_series(template: Template) -> dict[str, Any]:
    """Series of a node with a job: by what they are of, and of each rank."""
    cluster = live(16, time.time(), 600, 15)
    lines = Node(template, cluster, 0).text(time.time() + 10).decode().splitlines()
    stems = [line for line in lines if not line.startswith("#")]
    sources = Counter(stem.split("_")[1] for stem in stems)
    of_rank = [stem for stem in stems if 'rank="1"' in stem and "owner_info" not in stem]
    return {"sources": dict(sources), "a_node": len(stems), "a_rank": len(of_rank)}


def sample_bytes(template: Template) -> float:
    """Bytes of a sample on disk: two hours of a node, as a block."""
    begin = float(int(time.time()) - 7200)
    cluster = live(16, begin, 7200, 15)
    node, values = Node(template, cluster, 0), defaultdict(list)
    for moment in cluster.times:
        for stem, value in samples_of(node.text(moment).decode()):
            values[stem].append(value)
    series = [
        Samples({"__name__": stem.partition("{")[0], **labels_of(stem)}, np.array(x))
        for stem, x in values.items()
        if len(x) == len(cluster.times)
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with prometheus(folder, "--web.enable-admin-api") as url:
            number = send(url, cluster.times, series)
            httpx.post(f"{url}/api/v1/admin/tsdb/snapshot", timeout=120).raise_for_status()
            files = [x for x in (folder / "data/snapshots").rglob("*") if x.is_file()]
            return sum(x.stat().st_size for x in files) / number


def find_straggler(template: Template, num_nodes: int) -> dict[str, float]:
    """Seconds from the first slow step of a rank to the page, which names whom a report does."""
    begin = time.time() + num_nodes * 0.02
    cluster = live(num_nodes, begin, 2 * _WARM_SECONDS, 5)
    job = slowed_job(num_nodes)
    cluster = replace(cluster, jobs=(job,))
    with scraped(template, cluster, _FAST) as server:
        time.sleep(max(cluster.halfway - time.time(), 0))
        early = server.firing(_PAGE)
        assert not early, early
        while not (found := server.firing(_PAGE)):
            assert time.time() < cluster.halfway + 3 * _FOUND_SECONDS, "the straggler is not found"
            time.sleep(0.25)
        seconds = time.time() - cluster.halfway
        print(f"{num_nodes * 8} ranks, scrapes every {_FAST}: {seconds:.0f} s to {found}")
        slowest = max(each["evaluationTime"] / each["interval"] for each in server.groups())
    named = name_slow_rank(job)
    print(f"a report from the archive of {job.world_size:,} ranks names {named}")
    assert [{name: page.get(name) for name in named} for page in found] == [named], found
    return {"nodes": num_nodes, "seconds": seconds, "slowest_group_share": slowest}


def list_jobs(template: Template) -> dict[str, float]:
    """Seconds of `lockstep top --cluster` with a job on each of many nodes, median of ten."""
    begin = time.time() + _NUM_JOBS * 0.01
    nodes = name_nodes(_NUM_JOBS)
    jobs = tuple(
        Job(job_id=f"job-{number}", project=f"team-{number % 20}", queue="large",
            job_class="production", nodes=(node,), slow_rank=1 if number % 50 == 0 else None)
        for number, node in enumerate(nodes)
    )  # fmt: skip
    cluster = replace(live(16, begin, _TOP_SECONDS, 15), nodes=nodes, jobs=jobs)
    jobs_alone = Template.__new__(Template)
    jobs_alone.comments = template.comments
    of_node = {agent.AGENT_INFO.name, agent.AGENT_TICK.name}
    jobs_alone.lines = [
        x for x in template.lines
        if x[0] in of_node or ("job_id" in x[1] and x[1].get("rank", "0") in "01")
    ]  # fmt: skip
    with scraped(jobs_alone, cluster, _SLOW) as server:
        time.sleep(max(begin + _TOP_SECONDS - time.time(), 0))
        took = []
        with closing(ClusterSource(server.url)) as source:
            for _ in range(10):
                began = time.perf_counter()
                rows = source.poll().rows
                took.append(time.perf_counter() - began)
    print(f"top of {len(rows)} jobs: median {statistics.median(took):.2f} s, {max(took):.2f} s")
    return {"jobs": len(rows), "seconds": statistics.median(took), "slowest": max(took)}


def main() -> None:
    """Measures, prints the table, and writes the figures where it is told to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SECONDS))
    parser.add_argument("--only-sizes", action="store_true", help="no straggler, no top")
    parser.add_argument("--write", action="store_true", help="keep the figures in alerts")
    options = parser.parse_args()
    began = time.monotonic()
    template = Template(*scrape_twice())
    load = os.getloadavg()[0]
    figures: dict[str, Any] = {"load": load, "series": count_series(template), "sizes": []}
    figures["bytes_a_sample"] = sample_bytes(template)
    print(figures["series"], figures["bytes_a_sample"])
    for num_nodes in options.nodes:
        figures["sizes"].append(measure(template, num_nodes, SECONDS.get(num_nodes, 90)))
        print(json.dumps(figures["sizes"][-1]))
    if not options.only_sizes:
        figures["straggler"] = find_straggler(template, max(options.nodes))
        figures["top"] = list_jobs(template)
    if options.write:
        measured_path().write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
