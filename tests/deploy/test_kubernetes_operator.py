"""The real Prometheus operator selects what is shipped, and routes pages to the pager.

What it writes for its Prometheus and its Alertmanager is read: the objects of kube-prometheus-stack
stand in by the fields that decide, its selectors and its route of last resort.
"""

import base64
import gzip
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from servers import wait_until

from lockstep_cli.deploy.kubernetes import missing_keys

from .conftest import call_lab
from .test_kubernetes_lab import values_of
from .test_kubernetes_objects import LAB, Loader, write

pytestmark = [
    pytest.mark.release,
    pytest.mark.server,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not (LAB / "bin" / "prometheus-operator").exists(),
        reason="not built; make kubernetes-lab builds it",
    ),
]
_SELECTED = {"matchLabels": {"release": "kube-prometheus-stack"}}
_MONITORING = {"name": "stack", "namespace": "monitoring"}
# The stack notifies nobody of what no AlertmanagerConfig takes.
_LAST_RESORT = {"route": {"receiver": "null"}, "receivers": [{"name": "null"}]}
_STACK: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "monitoring"}},
    {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _MONITORING | {"name": "alertmanager-stack"},
        "stringData": {"alertmanager.yaml": json.dumps(_LAST_RESORT)},
    },
    {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "Prometheus",
        "metadata": _MONITORING,
        "spec": {
            f"{kind}{what}": _SELECTED if what == "Selector" else {}
            for kind in ("podMonitor", "serviceMonitor", "rule")
            for what in ("Selector", "NamespaceSelector")
        },
    },
    {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "Alertmanager",
        "metadata": _MONITORING,
        "spec": {
            "version": "v0.25.0",
            "alertmanagerConfigSelector": {},
            "alertmanagerConfigNamespaceSelector": {},
        },
    },
]


@pytest.fixture(name="site", scope="module")
def _site(lab: Path, kubectl: Callable[..., str]) -> Path:
    """Objects of an installation that the operator has taken."""
    call_lab("operator", lab)
    site = write(values_of("operator"))
    kubectl("apply", "--server-side", "-k", site)
    access = json.dumps({"stringData": missing_keys({}, "lockstep")})
    kubectl(
        "patch", "secret", "lockstep-access", "-n=lockstep", "--type=merge", f"--patch={access}"
    )
    kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(_STACK))
    return site


def _generated(kubectl: Callable[..., str], secret: str, key: str) -> Any:
    """A configuration that the operator has written; empty before it has."""
    found = kubectl("get", "secret", secret, "-n=monitoring", "--ignore-not-found", "--output=json")
    data = json.loads(found or "{}").get("data", {})
    if key not in data:
        return {}
    return yaml.load(gzip.decompress(base64.b64decode(data[key])), Loader)  # noqa: S506  # a safe loader


def test_the_operators_prometheus_scrapes_agents_and_ledger_with_their_credentials(
    kubectl: Callable[..., str], site: Path
) -> None:
    assert site.exists()
    secret = kubectl("get", "secret", "lockstep-access", "-n=lockstep", "--output=json")
    held = {key: base64.b64decode(text) for key, text in json.loads(secret)["data"].items()}

    def scrapes() -> dict[str, Any]:
        config = _generated(kubectl, "prometheus-stack", "prometheus.yaml.gz")
        return {each["job_name"]: each for each in config.get("scrape_configs", ())}

    names = {
        "podMonitor/lockstep/lockstep-agent/0": "scrape",
        "serviceMonitor/lockstep/lockstep-ledger/0": "reader",
    }
    wait_until(lambda: names.keys() <= scrapes().keys(), 90)
    get = ("get", "secret", "prometheus-stack-tls-assets-0", "-n=monitoring", "--output=json")
    assets = json.loads(kubectl(*get))["data"]
    for name, key in names.items():
        scrape = scrapes()[name]
        assert scrape["scheme"] == "https"
        assert scrape["honor_labels"] is True
        assert scrape["authorization"]["credentials"] == held[key].decode()
        assert scrape["tls_config"]["server_name"] == "lockstep"
        file = Path(scrape["tls_config"]["ca_file"]).name
        assets = kubectl(
            "get", "secret", "-n=monitoring", "--output=json", "prometheus-stack-tls-assets-0"
        )
        assert base64.b64decode(json.loads(assets)["data"][file]) == held["ca.crt"]


def test_the_operators_prometheus_evaluates_every_rule(
    kubectl: Callable[..., str], site: Path
) -> None:
    def names_of(groups: list[dict[str, Any]]) -> list[str]:
        return [rule.get("alert") or rule["record"] for group in groups for rule in group["rules"]]

    paths = sorted(site.glob("components/prometheus-operator/rules/*.prometheusrule.yaml"))
    groups = [each for path in paths for each in yaml.safe_load(path.read_text())["spec"]["groups"]]

    def taken() -> list[str]:
        maps = kubectl(
            "get", "configmaps", "-n=monitoring", "-l=prometheus-name=stack", "--output=json"
        )
        texts = [text for each in json.loads(maps)["items"] for text in each["data"].values()]
        return [name for text in texts for name in names_of(yaml.safe_load(text)["groups"])]

    wait_until(lambda: sorted(taken()) == sorted(names_of(groups)), 90)


def test_the_operators_alertmanager_sends_a_page_to_the_pager_and_a_ticket_to_the_tickets(
    kubectl: Callable[..., str], site: Path, tmp_path: Path
) -> None:
    assert site.exists()

    def config() -> Any:
        return _generated(kubectl, "alertmanager-stack-generated", "alertmanager.yaml.gz")

    wait_until(lambda: len(config().get("receivers", ())) > 1, 90)
    path = tmp_path / "alertmanager.yaml"
    path.write_text(yaml.safe_dump(config()))

    def receiver(*labels: str) -> str:
        command = ["amtool", "config", "routes", "test", f"--config.file={path}", *labels]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    stalled = ("alertname=JobNotProgressing", "cluster=east", "job_id=llm")
    critical, warning = "severity=critical", "severity=warning"
    assert receiver(*stalled, critical, "namespace=lockstep") == "lockstep/lockstep/pager"
    assert receiver(*stalled, warning, "namespace=lockstep") == "lockstep/lockstep/tickets"
    assert receiver(*stalled, critical) == "null"
