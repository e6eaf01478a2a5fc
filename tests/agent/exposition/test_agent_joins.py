"""Joins in a real Prometheus that scrapes the agent by the shipped configuration."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
import yaml
from servers import wait_until

from lockstep_agent.options import Options
from lockstep_alerts.stack.servers import prometheus_config
from lockstep_catalogue import fabric, gpu, incidents, training
from lockstep_catalogue.gpu import GPU_OWNER_INFO, PORT_OWNER_INFO
from lockstep_catalogue.windows import ScrapeWindows
from lockstep_cli.gameday.fake_node import FakeNode, Tree, h100

from ..fake_tree import fill_cgroups
from ..live_page import LivePage
from ..running_agent import running_agent

UUID = "GPU-00000000-0000-0000-0000-{:012d}"
pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]


@dataclass(frozen=True)
class Prometheus:
    """A server that scrapes one agent every second."""

    url: str

    def query(self, expression: str) -> list[dict[str, str]]:
        """Labels of the result, with the value as ``value``."""
        answer = httpx.get(
            f"{self.url}/api/v1/query", params={"query": expression}, trust_env=False
        ).json()
        assert answer["status"] == "success", answer
        return [row["metric"] | {"value": row["value"][1]} for row in answer["data"]["result"]]

    def wait_for(self, expression: str, **labels: str) -> dict[str, str]:
        """The only row of the result, once it has these labels."""
        rows: list[dict[str, str]] = []

        def is_there() -> bool:
            rows[:] = self.query(expression)
            return len(rows) == 1 and labels.items() <= rows[0].items()

        wait_until(is_there, 60, lambda: (expression, labels, rows), pause=0.2)
        return rows[0]


@pytest.fixture(name="prometheus")
def _prometheus(
    root: Path,
    options: Options,
    node: FakeNode,
    tmp_path: Path,
    serve_prometheus: Callable[[Path], AbstractContextManager[str]],
) -> Iterator[Prometheus]:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not on PATH")
    node.gpus[:] = [h100() for _ in range(2)]
    FakeNode.__post_init__(node)
    Tree(tmp_path / "sys", gpus=2, infiniband=2)
    fill_cgroups(tmp_path / "sys")
    LivePage(root, gpu_uuid=UUID.format(0), queue="batch", job_class="pretraining").step(1)
    log = tmp_path / "kmsg"
    log.write_text("4,1,1000000,-;NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus.\n")
    settings = replace(options, sysfs=tmp_path / "sys", kmsg=log, cluster="east")
    with running_agent(settings) as (_, agent_url):
        agent = agent_url.removeprefix("http://").removesuffix("/metrics")
        with serve_prometheus(write_config(tmp_path, agent)) as url:
            yield Prometheus(url)


def write_config(folder: Path, agent: str) -> Path:
    """The shipped configuration with scrapes every second, and the agent as its target."""
    config = prometheus_config(
        ScrapeWindows(1), alertmanager="127.0.0.1:9", prometheus="127.0.0.1:9"
    )
    # What a cluster adds to its targets: the agent's labels must win over them.
    labels = {"node": "target", "pod": "the-agents-own", "namespace": "lockstep"}
    targets = [{"targets": [agent], "labels": labels}]
    (folder / "targets.json").write_text(json.dumps(targets))
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_gpu_port_xid_and_job_join_in_one_step_also_while_the_gpu_hangs(
    prometheus: Prometheus, node: FakeNode
) -> None:
    owner = {"cluster": "east", "node": "node-7", "job_id": "job", "rank": "0"}
    of_gpu = (
        "* on (cluster, node, uuid) group_left (job_id, rank, pod, namespace)"
        f" {GPU_OWNER_INFO.name}"
    )
    of_address = (
        f"* on (cluster, node, pci_bus_id) group_left (job_id, rank, pod) {GPU_OWNER_INFO.name}"
    )
    of_port = f"* on (cluster, node, device) group_left (job_id, rank, pod) {PORT_OWNER_INFO.name}"
    up = f'({gpu.GPU_UP.name}{{gpu="0"}}) {of_gpu}'
    row = prometheus.wait_for(up, **owner, value="1")
    assert "pod" not in row, "nobody's pod holds the GPU, the agent's least of all"
    assert "namespace" not in row
    xid = f'{incidents.GPU_XID_INCIDENTS.name}{{xid="79"}} {of_address}'
    assert prometheus.wait_for(xid, **owner, xid="79")["value"] == "1"
    ports = prometheus.query(f"{fabric.PORT_UP.name} {of_port}")
    assert ports
    assert all(owner.items() <= port.items() for port in ports)
    job = (
        f"{training.STEPS.name} * on (cluster, node, job_id)"
        f" group_left (queue, class) {training.JOB_INFO.name}"
    )
    prometheus.wait_for(job, **{**owner, "queue": "batch", "class": "pretraining"})
    node.change(0, hang=1)
    hung = f'{gpu.GPU_STATE_INFO.name}{{gpu_state="hung"}} {of_gpu}'
    prometheus.wait_for(hung, **owner, gpu="0", uuid=UUID.format(0))
    prometheus.wait_for(up, **owner, value="0")
    assert prometheus.query(xid), "the Xid of a GPU that hangs names its job"
    # `!=` also matches a series that has no such label.
    for stranger in ('node!="node-7"', 'cluster!="east"'):
        assert prometheus.query(f'{{__name__=~"lockstep_.*", {stranger}}}') == []
