"""Components that need kinds of others: cert-manager's and OpenShift's, on a real control plane."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from lockstep_cli.deploy.command import deploy
from lockstep_cli.deploy.kubernetes import read_settings

from .conftest import eventually
from .test_kubernetes_lab import GPUS, OWN, items, nodes_with_agents, values_of
from .test_kubernetes_objects import LAB, built, write

README = Path(__file__).parents[2] / "README.md"
_KINDS = (
    "configmaps,secrets,serviceaccounts,roles,rolebindings,services,persistentvolumeclaims,"
    "daemonsets,deployments,jobs,certificates.cert-manager.io,issuers.cert-manager.io,"
    "podmonitors,servicemonitors,prometheusrules,alertmanagerconfigs"
)
_SECURITY = "securitycontextconstraints.security.openshift.io"
# As OpenShift has them: the widest constraint, and the role by which an account may use it.
_PRIVILEGED: list[dict[str, Any]] = [
    {
        "apiVersion": "security.openshift.io/v1",
        "kind": "SecurityContextConstraints",
        "metadata": {"name": "privileged"},
        **dict.fromkeys(
            ("allowHostDirVolumePlugin", "allowHostIPC", "allowHostNetwork", "allowHostPID",
             "allowHostPorts", "allowPrivilegedContainer"), True,
        ),
        "allowedCapabilities": ["*"],
        "defaultAddCapabilities": None,
        "requiredDropCapabilities": None,
        "priority": None,
        "readOnlyRootFilesystem": False,
        "volumes": ["*"],
        **{name: {"type": "RunAsAny"}
           for name in ("fsGroup", "runAsUser", "seLinuxContext", "supplementalGroups")},
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "system:openshift:scc:privileged"},
        "rules": [{"apiGroups": ["security.openshift.io"], "resourceNames": ["privileged"],
                   "resources": ["securitycontextconstraints"], "verbs": ["use"]}],
    },
]  # fmt: skip
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.server,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not (LAB / "kinds").exists(), reason="not there; make kubernetes-lab brings them"
    ),
]


@pytest.fixture(name="of_cert_manager", scope="module")
def _of_cert_manager(tmp_path_factory: pytest.TempPathFactory) -> Path:
    values = tmp_path_factory.mktemp("values") / "values.yaml"
    values.write_text("components: [cert-manager]\n")
    return values


def test_a_kind_that_is_missing_is_said_at_the_installation(
    kubectl: Callable[..., str], of_cert_manager: Path
) -> None:
    folder = write(of_cert_manager)
    refusal = kubectl("apply", "--server-side", "-k", folder, fails=True)
    assert 'no matches for kind "Issuer" in version "cert-manager.io/v1"' in refusal
    assert "ensure CRDs are installed first" in refusal
    kubectl("delete", "--wait", "namespace", "lockstep")
    kubectl("delete", "clusterrole,clusterrolebinding", "lockstep-ledger-feed")
    kubectl("create", "namespace", "lockstep")
    release = ("lockstep", folder, "--namespace=lockstep", f"--values={of_cert_manager}")
    refusal = kubectl("helm", "install", *release, fails=True)
    assert 'no matches for kind "Certificate" in version "cert-manager.io/v1"' in refusal
    assert items(kubectl, "daemonsets,deployments,jobs", "-n=lockstep") == []
    kubectl("delete", "--wait", "namespace", "lockstep")


@pytest.mark.parametrize(
    ("component", "words"),
    [
        ("cert-manager", "the CRDs of cert-manager"),
        ("prometheus-operator", "the CRDs of the Prometheus operator"),
        ("runtime-class", "the RuntimeClass nvidia"),
    ],
)
def test_the_command_says_what_a_component_needs(
    tmp_path: Path, component: str, words: str
) -> None:
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

    eventually(are_served)


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


@pytest.mark.usefixtures("kinds")
def test_openshift_gives_the_privileged_constraint_to_the_agent_and_to_nobody_else(
    kubectl: Callable[..., str],
) -> None:
    kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(_PRIVILEGED))
    folder = write(values_of("openshift"))
    for way in (("apply", "--server-side", "-k"), ("apply", "-k")):
        kubectl(*way, folder)
        eventually(lambda: nodes_with_agents(kubectl) == GPUS | {"cpu-1": "cpu-nodes"})
    may = ("auth", "can-i", "use", f"{_SECURITY}/privileged", "--namespace=lockstep")
    accounts = [
        each["metadata"]["name"] for each in items(kubectl, "serviceaccounts", "-n=lockstep")
    ]
    assert "lockstep-agent" in accounts
    for name in accounts:
        account = f"--as=system:serviceaccount:lockstep:{name}"
        kubectl(*may, account, fails=name != "lockstep-agent")
    kubectl("delete", "--wait", "-k", folder)


def test_on_openshift_all_but_the_agents_fit_the_constraint_of_every_account() -> None:
    # restricted-v2 takes users and groups of the namespace's own range, and no path of the node.
    pods = [
        (name, each["spec"]["template"]["spec"])
        for (kind, name), each in built(write(values_of("openshift"))).items()
        if kind in {"Deployment", "Job"}
    ]
    assert {name for name, _ in pods} == {
        "lockstep-ledger",
        "lockstep-ledger-feed",
        "lockstep-access",
    }
    for _, pod in pods:
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert not any("hostPath" in volume for volume in pod.get("volumes", ()))
        contexts = [pod["securityContext"], *(c["securityContext"] for c in pod["containers"])]
        for context in contexts:
            assert not {"runAsUser", "runAsGroup", "fsGroup"} & context.keys()
        for container in contexts[1:]:
            assert container["capabilities"] == {"drop": ["ALL"]}
            assert container["allowPrivilegeEscalation"] is False


def test_three_commands_of_the_readme_lead_from_nothing_to_a_watched_job(
    kubectl: Callable[..., str], tmp_path: Path
) -> None:
    counted = re.findall(r"^(\w.+?) +# (\d) of 3", README.read_text(), re.MULTILINE)
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
    eventually(lambda: nodes_with_agents(kubectl) == GPUS | {"cpu-1": "cpu-nodes"})
    eventually(lambda: len(items(kubectl, "pods", "-l=batch.kubernetes.io/job-name")) == 2)
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
