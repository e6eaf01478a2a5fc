"""Two shards, each scraping every other node, write to VictoriaMetrics: alerts are as of one."""

import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import yaml
from simulated_cluster.cluster import Cluster
from simulated_cluster.fake_node import scrape_twice
from simulated_cluster.fleet import Template, live, scrape_configs, serving

from lockstep_alerts.alert import RULES_FILES
from lockstep_alerts.output import ROUTES_FILE, render, write_files
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_alerts.stack.servers import end, is_ready, prometheus_config, start, wait_for
from lockstep_alerts.writers import Target, render_for
from lockstep_cli.small_server import free_port

SECONDS = 5
WARM_SECONDS, FOUND_SECONDS, AWAY_SECONDS = 60, 180, 60
PAGES = {("JobNotProgressing", "speech-small"), ("JobLosing", "pretrain-70b")}
SPEC = read_spec(spec_path(), Duration(f"{SECONDS}s"))


class Servers:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.urls: dict[str, str] = {}

    def url(self, name: str) -> str:
        """Where a server listens, or will."""
        return self.urls.setdefault(name, f"http://127.0.0.1:{free_port()}")

    def run(self, name: str, command: str, ready: str) -> subprocess.Popen[bytes]:
        """Starts a server and waits until it answers."""
        log = self.folder / f"{name}.log"
        process = start(tuple(command.split()), log)
        self._stack.callback(end, process)
        assert wait_for(lambda: is_ready(self.url(name), ready), 30), log
        return process

    def prometheus(
        self, name: str, scrapes: list[object], **more: object
    ) -> subprocess.Popen[bytes]:
        """A Prometheus with scrapes of its own and the rules, or without them."""
        folder, listen = self.folder / name, self.url(name).removeprefix("http://")
        config = prometheus_config(SPEC.windows, alertmanager=listen, prometheus=listen)
        config |= {"scrape_configs": scrapes, "alerting": {}, **more}
        write_files(folder, {"prometheus.yaml": yaml.safe_dump(config)})
        command = f"prometheus --config.file={folder}/prometheus.yaml --storage.tsdb.path={folder}"
        return self.run(name, f"{command} --web.listen-address={listen}", "/-/ready")

    def global_tier(self) -> None:
        """VictoriaMetrics, vmalert, Alertmanager and a pager."""
        store, manager, pager = map(self.url, ("store", "alertmanager", "pager"))
        listens = {name: self.url(name).removeprefix("http://") for name in self.urls}
        pager_port = pager.rpartition(":")[2]
        program = f"{sys.executable} -m lockstep_alerts.stack.pager"
        self.run("pager", f"{program} --port {pager_port} --dir {self.folder}", "/pages")
        program = shutil.which("alertmanager") or "prometheus-alertmanager"
        files = f"--config.file={self.folder / ROUTES_FILE} --storage.path={self.folder}/manager"
        address = f"--web.listen-address={listens['alertmanager']} --cluster.listen-address="
        self.run("alertmanager", f"{program} {files} {address}", "/-/ready")
        flags = f"-search.latencyOffset={SECONDS}s -dedup.minScrapeInterval={SECONDS}s"
        files = f"-storageDataPath={self.folder}/store -httpListenAddr={listens['store']}"
        self.run("store", f"victoria-metrics {files} {flags}", "/health")
        flags = f"-datasource.url={store} -remoteWrite.url={store} -remoteRead.url={store}"
        flags += f" -notifier.url={manager} -rule={self.folder}/{RULES_FILES}"
        listen = self.url("vmalert").removeprefix("http://")
        self.run("vmalert", f"vmalert {flags} -httpListenAddr={listen}", "/health")


def pages_of(url: str) -> set[tuple[str, str]]:
    """Name and job of the critical alerts that a Prometheus or a vmalert fires."""
    alerts = httpx.get(f"{url}/api/v1/alerts", trust_env=False, timeout=30).json()["data"]["alerts"]
    return {
        (each["labels"]["alertname"], each["labels"].get("job_id", ""))
        for each in alerts
        if each["state"] == "firing" and each["labels"]["severity"] == "critical"
    }


def simulated_cluster() -> Cluster:
    """Sixteen nodes with jobs on both shards; a rank of the largest becomes slow, another hangs."""
    cluster = live(16, time.time(), 2 * WARM_SECONDS, SECONDS)
    first, second, third, *others = cluster.jobs
    first = replace(first, nodes=first.nodes + second.nodes)
    return replace(cluster, jobs=(first, replace(third, diverges=False), *others))


@pytest.mark.server
@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("vmalert") is None, reason="not on PATH: vmalert")
def test_shards_page_as_one_prometheus_and_a_lost_one_accuses_nobody(tmp_path: Path) -> None:
    template = Template(*scrape_twice())
    with ExitStack() as stack:
        servers = Servers(tmp_path, stack)
        rendered = render(SPEC, Delivery(pager_base=servers.url("pager")))
        target = Target(lacks=("keep_firing_for",), labels={}, key_store="lockstep")
        write_files(tmp_path, rendered | render_for(target, rendered))
        cluster = simulated_cluster()
        address = stack.enter_context(serving(template, cluster))
        servers.global_tier()
        rules = f"{tmp_path}/{RULES_FILES}"
        servers.prometheus("one", scrape_configs(cluster, address), rule_files=[rules])
        write = {"remote_write": [{"url": f"{servers.url('store')}/api/v1/write"}]}
        shards = [replace(cluster, nodes=cluster.nodes[number::2]) for number in range(2)]
        agents = [scrape_configs(shard, address)[: 2 - x] for x, shard in enumerate(shards)]
        # The first shard scrapes the ledger too.
        processes = [
            servers.prometheus(f"shard-{number}", scrapes, rule_files=[], **write)
            for number, scrapes in enumerate(agents)
        ]
        time.sleep(max(cluster.halfway - time.time(), 0))

        def pages() -> list[set[tuple[str, str]]]:
            return [pages_of(servers.url(name)) for name in ("one", "vmalert")]

        assert pages() == [set(), set()]
        assert wait_for(lambda: pages() == [PAGES, PAGES], FOUND_SECONDS), pages()
        end(processes[1])
        assert not wait_for(lambda: not pages_of(servers.url("vmalert")) <= PAGES, AWAY_SECONDS)
        servers.prometheus("shard-1", agents[1], rule_files=[], **write)
        assert not wait_for(lambda: not pages_of(servers.url("vmalert")) <= PAGES, AWAY_SECONDS)
        assert pages() == [PAGES, PAGES]
        sent = httpx.get(f"{servers.url('pager')}/pages", trust_env=False).json()
        incidents = [x["group_labels"]["incident"] for x in sent if x["receiver"] == "pager"]
        assert sorted(incidents) == sorted(job_id for _, job_id in PAGES), "each page once"
