"""The objects of Kubernetes: kustomize and Helm render the same, and what is refused says why."""

import atexit
import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import msgspec
import pytest
import yaml
from click.testing import CliRunner

from lockstep_cli.deploy.command import deploy
from lockstep_cli.deploy.kubernetes import Settings, missing_keys, read_settings

TREE = Path(__file__).parents[2] / "deploy" / "kubernetes"
VARIANTS = sorted((TREE / "ci").glob("*-values.yaml"))
LAB = Path(
    os.environ.get("LOCKSTEP_KUBERNETES_LAB", Path.home() / ".cache" / "lockstep-kubernetes-lab")
)
CUSTOM = {"PodMonitor", "ServiceMonitor", "PrometheusRule", "AlertmanagerConfig", "Issuer"}
ANNOTATION_BYTES = 262_144
Objects = dict[tuple[str, str], dict[str, Any]]


def program(name: str) -> str:
    path = shutil.which(name, path=f"{LAB / 'bin'}:{os.environ['PATH']}")
    if path is None:
        pytest.skip(f"{name} is not built; make kubernetes-lab")
    return path


class Loader(yaml.CSafeLoader):
    """A loader to which the operator of a matcher is a text, as to Kubernetes."""


Loader.add_constructor("tag:yaml.org,2002:value", lambda _, node: node.value)


@cache
def write(values: Path) -> Path:
    """The folder that the command writes for a variant."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-objects-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = ["kubernetes", "--settings", str(values), "--to", str(folder)]
    result = CliRunner().invoke(deploy, command)
    assert result.exit_code == 0, result.output
    return folder


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text: str) -> Objects:
    parts = [part for part in yaml.load_all(text, Loader) if part]
    found = {(part["kind"], part["metadata"]["name"]): part for part in parts}
    assert len(found) == len(parts)
    return found


@cache
def _built(folder: Path) -> str:
    return run(program("kustomize"), "build", folder)


def built(folder: Path) -> Objects:
    return objects(_built(folder))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("values", VARIANTS, ids=lambda path: path.name)
def test_helm_renders_what_kustomize_renders(values: Path) -> None:
    folder = write(values)
    by_kustomize = built(folder)
    namespace = read_settings(values).namespace
    command = (program("helm"), "template", "lockstep", folder, "--namespace", namespace)
    by_helm = objects(run(*command, "--values", values))
    # Helm does not create the namespace of its own release.
    del by_kustomize["Namespace", namespace]
    assert by_helm.keys() == by_kustomize.keys()
    for key, expected in by_kustomize.items():
        helm = by_helm[key]
        # Of objects without a namespace Helm fills it in at the installation.
        helm["metadata"].setdefault("namespace", expected["metadata"].get("namespace"))
        expected["metadata"].setdefault("namespace", None)
        assert helm == expected, key


@pytest.mark.timeout(180)
@pytest.mark.parametrize("values", VARIANTS, ids=lambda path: path.name)
def test_every_variant_fits_the_schemas_and_the_bounds_of_a_cluster(values: Path) -> None:
    settings = read_settings(values)
    found = built(write(values))
    for (kind, name), each in found.items():
        # Client-side apply keeps the whole object in an annotation.
        assert len(json.dumps(each)) < ANNOTATION_BYTES, name
        if kind not in CUSTOM | {"Certificate"}:
            kubernetes_validate.validate(each, "1.34", strict=True)
        if kind in {"DaemonSet", "Deployment", "CronJob"}:
            template = each["spec"].get("jobTemplate", each)["spec"]["template"]
            [container] = template["spec"]["containers"]
            cluster = next(var for var in container["env"] if "CLUSTER" in var["name"])
            assert cluster["value"] == settings.cluster
            assert container["image"].startswith(settings.registry)
    assert ("PersistentVolumeClaim" in {kind for kind, _ in found}) == (
        "ledger-postgres" not in settings.components
    )


def test_all_but_agents_are_restricted_as_podsecurity_says() -> None:
    found = built(write(TREE / "ci" / "default-values.yaml"))
    names = {("Deployment", "lockstep-ledger"), ("Deployment", "lockstep-ledger-feed")}
    found |= built(write(TREE / "ci" / "operator-values.yaml"))
    for key in names | {("Job", "lockstep-access"), ("CronJob", "lockstep-canary")}:
        spec = found[key]["spec"]
        pod = spec.get("jobTemplate", {"spec": spec})["spec"]["template"]["spec"]
        assert not {"hostNetwork", "hostPID"} & pod.keys()
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any("hostPath" in volume for volume in pod["volumes"])
        for container in pod["containers"]:
            may = container["securityContext"]
            assert may["allowPrivilegeEscalation"] is False
            assert may["readOnlyRootFilesystem"] is True
            assert may["capabilities"] == {"drop": ["ALL"]}


def test_all_that_a_pod_mounts_of_the_secret_the_job_makes() -> None:
    found = built(write(TREE / "ci" / "operator-values.yaml"))
    of_job = missing_keys({}, "lockstep").keys()
    used = set()
    for each in found.values():
        pod = each.get("spec", {}).get("template", {}).get("spec", {})
        for volume in pod.get("volumes", ()):
            if volume.get("secret", {}).get("secretName") == "lockstep-access":  # its name
                used |= {item["key"] for item in volume["secret"]["items"]}
    text = json.dumps([each for key, each in found.items() if key[0].endswith("Monitor")])
    assert '"name": "lockstep-access", "key": "scrape"' in text or "scrape" in text
    assert used | {"reader"} <= of_job
    role = found["Role", "lockstep-access"]
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": ["lockstep-access"],
            "verbs": ["get", "patch"],
        }
    ]


def test_every_alert_carries_the_namespace_by_which_the_operator_routes() -> None:
    found = built(write(TREE / "ci" / "operator-values.yaml"))
    rules = [each for (kind, _), each in found.items() if kind == "PrometheusRule"]
    alerts = [
        rule
        for each in rules
        for group in each["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert alerts
    assert {rule["labels"]["namespace"] for rule in alerts} == {"lockstep"}
    assert all(each["metadata"]["labels"]["release"] == "kube-prometheus-stack" for each in rules)
    assert ("AlertmanagerConfig", "lockstep") in found


def test_a_second_run_of_the_job_changes_nothing_and_fills_what_was_deleted() -> None:
    first = missing_keys({}, "research")
    assert {"tls.key", "tls.crt", "ca.crt", "writers", "readers", "scrape"} <= first.keys()
    held = {key: text.encode() for key, text in first.items()}
    assert missing_keys(held, "research") == {}
    del held["writers"]
    assert missing_keys(held, "research") == {"writers": first["writers"]}
    assert not missing_keys({}, "research", tokens_only=True).keys() & {"tls.key", "ca.crt"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clustre: east", "clustre"),
        ("cluster: ''", "cluster"),
        ("cluster: a b", "cluster"),
        ("namespace: Lockstep", "namespace"),
        ("registry: https://x", "registry"),
        ("components: [gke, gkee]", "'gkee' is none of"),
        ("components: ../x", "components"),
        ("components: [../../base]", "components"),
        ("labels: {release: 1}", "labels"),
        ("{", "--settings"),
        ("- 1", "--settings"),
        ("!!python/object/apply:os.system [x]", "--settings"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_nothing_is_written(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    command = ["kubernetes", "--settings", str(path), "--to", str(tmp_path / "out")]
    result = CliRunner().invoke(deploy, command)
    assert (result.exit_code, result.exception.__class__) == (2, SystemExit)
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_a_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    result = CliRunner().invoke(deploy, ["kubernetes", "--to", str(tmp_path)])
    assert result.exit_code == 2
    assert "holds other files" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_charts_schema_and_values_are_those_of_the_settings() -> None:
    [schema] = msgspec.json.schema_components([Settings], ref_template="#/$defs/{name}")[1].values()
    committed = json.loads((TREE / "values.schema.json").read_text())
    assert committed == {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema
    values = yaml.safe_load((TREE / "values.yaml").read_text())
    assert values == msgspec.to_builtins(Settings())


EXAMPLES = sorted((TREE / "examples").glob("*.yaml"))


def pod_specs(document: Any) -> list[dict[str, Any]]:
    """Every pod that a document of any kind describes."""
    if isinstance(document, list):
        return [found for each in document for found in pod_specs(each)]
    if not isinstance(document, dict):
        return []
    own = [document] if "containers" in document else []
    return own + [found for each in document.values() for found in pod_specs(each)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_mounts_the_volumes_and_is_restricted(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    pods = pod_specs(documents)
    assert pods or path.name == "trainjob.yaml"
    for pod in pods:
        [pages] = [each for each in pod["volumes"] if each["name"] == "lockstep"]
        assert pages["emptyDir"]["medium"] == "Memory"
        [container] = pod["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts == {"lockstep": "/run/lockstep", "lockstep-pod": "/etc/lockstep/pod"}
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not any("hostPath" in volume for volume in pod["volumes"])
        assert pod["terminationGracePeriodSeconds"] > 30
    for document in documents:
        if document["apiVersion"] in {"v1", "batch/v1"}:
            kubernetes_validate.validate(document, "1.34", strict=True)
