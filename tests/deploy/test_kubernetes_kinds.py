"""Components that need kinds of others: cert-manager's and OpenShift's, on a real control plane."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from servers import wait_until

from lockstep_cli.deploy.command import deploy
from lockstep_cli.deploy.kubernetes import read_settings

from .test_kubernetes_lab import GPUS, OWN, items, nodes_with_agents, values_of
from .test_kubernetes_objects import LAB, write

GUIDE = Path(__file__).parents[2] / "docs" / "pods.md"
_KINDS = (
    "configmaps,secrets,serviceaccounts,roles,rolebindings,services,persistentvolumeclaims,"
    "daemonsets,deployments,jobs,certificates.cert-manager.io,issuers.cert-manager.io,"
    "podmonitors,servicemonitors,prometheusrules,alertmanagerconfigs"
)
pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not (LAB / "kinds").exists(), reason="not there; make kubernetes-lab brings them"
    ),
]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("component", "words"),
    [
        ("cert-manager", "the CRDs of cert-manager"),
        ("prometheus-operator", "the CRDs of the Prometheus operator"),
        ("runtime-class", "the RuntimeClass nvidia"),
    ],
)
def test_the_command_says_what_its_parts_need(tmp_path: Path, component: str, words: str) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"components: [{component}]\n")
    options = [f"--settings={settings}", f"--to={tmp_path / 'site'}"]
    result = CliRunner().invoke(deploy, ["kubernetes", *options])
    assert result.exit_code == 0
    assert words in result.output


@pytest.fixture(name="kinds", scope="module")
def _kinds(kubectl: Callable[..., str]) -> None:
    paths = [*(LAB / "kinds").glob("*.yaml"), *(LAB / "operator-crds").glob("*.yaml")]
    for folder in {path.parent for path in paths}:
        kubectl("apply", "--server-side", "-f", folder)
    texts = [path.read_text() for path in paths]
    names = {re.findall(r"^  name: (\S+)", text, re.MULTILINE)[0] for text in texts}

    def are_served() -> bool:
        conditions = [
            condition
            for each in items(kubectl, "customresourcedefinitions")
            if each["metadata"]["name"] in names
            for condition in each["status"].get("conditions") or ()
        ]
        found = [each for each in conditions if each["type"] == "Established"]
        return len(found) == len(names) and all(each["status"] == "True" for each in found)

    wait_until(are_served, 90)


@pytest.mark.release
@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("name", ["cert-manager", "openshift", "operator"])
def test_a_variant_with_kinds_of_others_goes_in_by_every_way_and_leaves_nothing(
    kubectl: Callable[..., str], name: str
) -> None:
    values = values_of(name)
    folder, namespace = write(values), read_settings(values).namespace
    for way in (("apply", "--server-side", "-k"), ("apply", "-k"), ("apply", "-k")):
        kubectl(*way, folder)
    kubectl("delete", "--wait", "-k", folder)
    kubectl("create", "namespace", namespace)
    release = ("lockstep", f"--namespace={namespace}")
    chart = (release[0], folder, release[1], f"--values={values}")
    kubectl("helm", "install", *chart)
    if name == "cert-manager":
        [certificate] = items(kubectl, "certificates.cert-manager.io", "-A")
        [issuer] = items(kubectl, "issuers.cert-manager.io", "-A")
        assert certificate["spec"]["issuerRef"]["name"] == issuer["metadata"]["name"]
        assert f"lockstep-ledger.{namespace}.svc" in certificate["spec"]["dnsNames"]
    kubectl("helm", "upgrade", *chart, "--set", "cluster=west")
    kubectl("helm", "rollback", *release, "1")
    kubectl("helm", "uninstall", *release)
    left = items(kubectl, _KINDS, f"-n={namespace}")
    assert {each["metadata"]["name"] for each in left} <= OWN
    kubectl("delete", "--wait", "namespace", namespace)
    everywhere = items(kubectl, "clusterroles,clusterrolebindings")
    assert not {
        each["metadata"]["name"] for each in everywhere if "lockstep" in str(each["metadata"])
    }


@pytest.mark.cluster
def test_three_commands_of_the_guide_lead_from_nothing_to_a_watched_job(
    kubectl: Callable[..., str], tmp_path: Path
) -> None:
    counted = re.findall(r"^(\w.+?) +# (\d) of 3", GUIDE.read_text(), re.MULTILINE)
    assert [number for _, number in counted] == ["1", "2", "3"]
    settings, site = tmp_path / "settings.yaml", tmp_path / "site"
    settings.write_text("cluster: east\n")
    first, *others = (
        command.replace("FILE", str(settings)).replace("FOLDER", str(site)).split()
        for command, _ in counted
    )
    assert first[:2] == ["lockstep", "deploy"]
    assert CliRunner().invoke(deploy, first[2:]).exit_code == 0
    for program, *words in others:
        assert program == "kubectl"
        kubectl(*words)
    wait_until(lambda: nodes_with_agents(kubectl) == GPUS | {"cpu-1": "cpu-nodes"}, 90)
    wait_until(lambda: len(items(kubectl, "pods", "-l=batch.kubernetes.io/job-name")) == 2, 90)
    [agent] = [each for each in items(kubectl, "daemonsets", "-n=lockstep")
               if each["metadata"]["name"] == "lockstep-agent-gpu"]  # fmt: skip
    [container] = agent["spec"]["template"]["spec"]["containers"]
    watched = "/var/lib/kubelet/pods/*/volumes/kubernetes.io~empty-dir/lockstep"
    assert watched in json.dumps(container)
    for pod in items(kubectl, "pods", "-l=batch.kubernetes.io/job-name"):
        [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == "lockstep"]
        assert volume["emptyDir"]["medium"] == "Memory"
        assert pod["spec"].get("nodeName") in {*GPUS, "cpu-1"}
    kubectl("delete", "--wait", "-k", site)
    kubectl("delete", "--wait", "-f", site / "examples" / "job.yaml")
