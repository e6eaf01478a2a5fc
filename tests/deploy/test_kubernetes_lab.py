"""The objects on a real control plane: none is refused, every node has its agent, none stays."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from click.testing import CliRunner
from servers import wait_until

from lockstep_cli.deploy import kubernetes
from lockstep_cli.deploy.command import deploy

from .test_kubernetes_objects import EXAMPLES, LAB, TREE, write

# Variants without kinds that this control plane lacks.
RELEASE = pytest.mark.release
PLAIN = [
    pytest.param("default", marks=pytest.mark.cluster),
    *(pytest.param(name, marks=RELEASE) for name in ("gke", "plain-postgres", "talos")),
]
OWN = {"kube-root-ca.crt", "default"}
pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not (LAB / "bin" / "kubectl").exists(), reason="not built; make kubernetes-lab builds it"
    ),
]


def values_of(name: str) -> Path:
    return TREE / "ci" / f"{name}-values.yaml"


def items(kubectl: Callable[..., str], *words: str) -> list[dict[str, Any]]:
    found = json.loads(kubectl("get", *words, "--output=json"))["items"]
    assert isinstance(found, list)
    return found


def nodes_with_agents(kubectl: Callable[..., str]) -> dict[str, str]:
    pods = items(kubectl, "pods", "-n=lockstep", "-l=app.kubernetes.io/name=lockstep-agent")
    return {
        pod["spec"].get("nodeName", ""): pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp")
    }


GPUS = dict.fromkeys(("gpu-1", "gpu-2", "gpu-3"), "gpu-nodes")


@pytest.mark.parametrize("name", PLAIN)
def test_kustomize_is_applied_by_both_ways_and_leaves_nothing(
    kubectl: Callable[..., str], name: str
) -> None:
    folder = write(values_of(name))
    kubectl("apply", "--server-side", "-k", folder)
    wait_until(lambda: nodes_with_agents(kubectl) == GPUS | {"cpu-1": "cpu-nodes"}, 90)
    kubectl("delete", "--wait", "-k", folder)
    kubectl("apply", "-k", folder)
    kubectl("apply", "-k", folder)
    wait_until(lambda: nodes_with_agents(kubectl) == GPUS | {"cpu-1": "cpu-nodes"}, 90)
    kubectl("delete", "--wait", "-k", folder)
    names = {
        each["metadata"]["name"] for each in items(kubectl, "clusterroles,clusterrolebindings")
    }
    assert not {each for each in names if each.startswith("lockstep")}


@pytest.mark.parametrize("name", PLAIN)
def test_helm_installs_upgrades_rolls_back_and_leaves_nothing(
    kubectl: Callable[..., str], name: str
) -> None:
    folder = write(values_of(name))
    kubectl("create", "namespace", "lockstep")
    kubectl("label", "namespace", "lockstep", "pod-security.kubernetes.io/enforce=privileged")
    release = ("lockstep", "--namespace=lockstep")
    kubectl("helm", "install", release[0], folder, release[1], "--values", values_of(name))
    wait_until(lambda: nodes_with_agents(kubectl) == GPUS | {"cpu-1": "cpu-nodes"}, 90)
    upgrade = ("helm", "upgrade", release[0], folder, release[1], "--values", values_of(name))
    kubectl(*upgrade, "--set", "cluster=east")
    [agent] = [each for each in items(kubectl, "daemonsets", "-n=lockstep", "-l=x!=y")
               if each["metadata"]["name"] == "lockstep-agent-gpu"]  # fmt: skip
    assert agent["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] == "east"
    kubectl("helm", "rollback", *release, "1")
    kubectl("helm", "uninstall", *release)
    kinds = "configmaps,secrets,serviceaccounts,roles,rolebindings,services,persistentvolumeclaims"
    left = items(kubectl, f"{kinds},resourcequotas,networkpolicies", "-n=lockstep")
    assert {each["metadata"]["name"] for each in left} <= OWN
    kubectl("delete", "--wait", "namespace", "lockstep")


@pytest.mark.cluster
def test_a_missing_runtime_class_makes_no_pod_and_the_class_makes_all(
    kubectl: Callable[..., str], tmp_path: Path
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("components: [runtime-class]\n")
    folder = write(values)
    kubectl("apply", "--server-side", "-k", folder)
    wait_until(lambda: nodes_with_agents(kubectl) == {"cpu-1": "cpu-nodes"}, 90)
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia",
               "metadata": {"name": "nvidia"}}  # fmt: skip
    kubectl("apply", "-f", "-", text=json.dumps(runtime))
    wait_until(lambda: nodes_with_agents(kubectl) == GPUS | {"cpu-1": "cpu-nodes"}, 90)
    kubectl("delete", "--wait", "-k", folder)
    kubectl("delete", "runtimeclass", "nvidia")


@pytest.mark.cluster
def test_the_job_fills_its_secret_by_its_own_role_and_may_do_nothing_else(
    kubectl: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl("apply", "--server-side", "-k", write(values_of("default")))
    [cluster] = json.loads(kubectl("config", "view", "--raw", "--output=json"))["clusters"][:1]
    url = httpx.URL(cluster["cluster"]["server"])
    given = cluster["cluster"]
    encoded = given.get("certificate-authority-data", "")
    held = base64.b64decode(encoded) or Path(given["certificate-authority"]).read_bytes()
    (tmp_path / "ca.crt").write_bytes(held)
    token = kubectl("create", "token", "lockstep-access", "-n=lockstep")
    (tmp_path / "token").write_text(token)
    (tmp_path / "namespace").write_text("lockstep")
    monkeypatch.setattr(kubernetes, "_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", url.host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(url.port))

    def fill(secret: str) -> Any:
        return CliRunner().invoke(deploy, ["access", f"--secret={secret}"])

    first = fill("lockstep-access")
    assert "scrape" in first.output, first.exception
    before = kubectl("get", "secret", "lockstep-access", "-n=lockstep", "--output=json")
    assert fill("lockstep-access").output == "added nothing\n"
    # An upgrade keeps what the Job has written.
    kubectl("apply", "--server-side", "-k", write(values_of("default")))
    after = kubectl("get", "secret", "lockstep-access", "-n=lockstep", "--output=json")
    assert json.loads(after)["data"] == json.loads(before)["data"]
    refused = fill("another")
    assert (refused.exit_code, "403" in refused.output) == (2, True), refused.output
    kubectl("delete", "--wait", "-k", write(values_of("default")))


@pytest.mark.cluster
def test_training_pods_are_admitted_by_restricted_podsecurity(kubectl: Callable[..., str]) -> None:
    kubectl("create", "namespace", "vision")
    kubectl("label", "namespace", "vision", "pod-security.kubernetes.io/enforce=restricted")
    [path] = [path for path in EXAMPLES if path.name == "job.yaml"]
    kubectl("apply", "-n=vision", "-f", path)
    wait_until(lambda: len(items(kubectl, "pods", "-n=vision")) == 2, 90)
    job = next(each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == "Job")
    pod = job["spec"]["template"]["spec"]
    pod["volumes"][0] = {"name": "lockstep", "hostPath": {"path": "/run/lockstep"}}
    refused = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "host"}, "spec": pod}
    text = kubectl("apply", "-n=vision", "-f", "-", text=json.dumps(refused), fails=True)
    assert "violates PodSecurity" in text
    kubectl("delete", "--wait", "namespace", "vision")
