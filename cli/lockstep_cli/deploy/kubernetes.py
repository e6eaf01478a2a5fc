"""Write the objects of a cluster, for kustomize and for Helm, from one file of settings."""

import base64
import json
import os
import secrets
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import click
import httpx
import msgspec
import yaml

from lockstep_cli.deploy.shipped import check_way, shipped_folder
from lockstep_cli.options import bad_input
from lockstep_records.text.yaml_documents import read_yaml

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKENS = ("scrape", "agent", "scheduler", "reader")
_DAYS = "3650"


@click.command("access")
@click.option(
    "--secret", required=True, help="Name of the Secret, which is there and may be empty."
)
@click.option("--tokens-only", is_flag=True, help="Another program makes the certificate.")
def deploy_access(*, secret: str, tokens_only: bool) -> None:
    """Add the tokens and the certificate that a Secret lacks; what it has stays."""
    if not _ACCOUNT.is_dir():
        raise click.UsageError(f"{_ACCOUNT} lacks a service account; run it in a pod")
    with bad_input(httpx.HTTPError, KeyError):
        added = _complete(secret, tokens_only=tokens_only)
    click.echo(f"added {', '.join(sorted(added)) or 'nothing'}")


def _complete(secret: str, *, tokens_only: bool) -> dict[str, str]:
    namespace = (_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    host, port = (os.environ[f"KUBERNETES_SERVICE_{name}"] for name in ("HOST", "PORT"))
    token = (_ACCOUNT / "token").read_text(encoding="utf-8").strip()
    url = f"https://{host}:{port}/api/v1/namespaces/{namespace}/secrets/{secret}"
    with httpx.Client(
        verify=ssl.create_default_context(cafile=_ACCOUNT / "ca.crt"),
        headers={"Authorization": f"Bearer {token}"},
    ) as client:
        answer = client.get(url).raise_for_status().json()
        held = {key: base64.b64decode(text) for key, text in (answer.get("data") or {}).items()}
        added = missing_keys(held, namespace, tokens_only=tokens_only)
        if added:
            content_type = {"Content-Type": "application/merge-patch+json"}
            client.patch(url, json={"stringData": added}, headers=content_type).raise_for_status()
    return added


def missing_keys(
    held: Mapping[str, bytes], namespace: str, *, tokens_only: bool = False
) -> dict[str, str]:
    """What a Secret lacks of tokens, and of a certificate for a namespace, by key."""
    tokens = {
        name: held[name].decode() if name in held else secrets.token_hex(32) for name in _TOKENS
    }
    contents = tokens | {
        "writers": f"{tokens['agent']} scope=agent node=*\n{tokens['scheduler']} scope=scheduler\n",
        "readers": f"{tokens['reader']} scope=reader\n",
    }
    has_certificate = tokens_only or {"tls.crt", "tls.key", "ca.crt"} <= held.keys()
    added = {key: text for key, text in contents.items() if key not in held}
    return added if has_certificate else added | _certificate(namespace)


def ledger_names(namespace: str) -> list[str]:
    """The names by which clients call agents and ledger."""
    names = ["lockstep", "lockstep-ledger"]
    for suffix in (namespace, "svc", "cluster.local"):
        names.append(f"{names[-1]}.{suffix}")
    return names


def _certificate(namespace: str) -> dict[str, str]:
    alternatives = ",".join(f"DNS:{name}" for name in ledger_names(namespace))
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder, "tls.key"), Path(folder, "tls.crt")
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-nodes", "-days", _DAYS, "-subj", "/CN=lockstep"),
                *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
                *("-addext", f"subjectAltName={alternatives}"),
                *("-keyout", key, "-out", certificate),
            ],
            check=True,
            capture_output=True,
        )
        text = certificate.read_text(encoding="utf-8")
        return {"tls.key": key.read_text(encoding="utf-8"), "tls.crt": text, "ca.crt": text}


_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62})$")]
_Namespace = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
_Registry = Annotated[str, msgspec.Meta(pattern=r"^([a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*)?$")]
_Class = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9.-]*$")]
_OPERATOR = "prometheus-operator"
_POD_KINDS = {"kind": "DaemonSet|Deployment"}
_CLUSTER = "/spec/template/spec/containers/0/env/0/value"
_OF_COMPONENTS = {"canary": ("CronJob", f"/spec/jobTemplate{_CLUSTER}")}
"""Objects of a component that name the cluster elsewhere: their kind, and where."""
_NEEDED = {
    "cert-manager": "kubectl refuses the certificate until the CRDs of cert-manager are there.",
    _OPERATOR: "kubectl refuses the monitors until the CRDs of the Prometheus operator are there.",
    "runtime-class": "No agent starts on GPU nodes until the RuntimeClass nvidia is there.",
}


class Settings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Settings of an installation; they are the chart's values too."""

    cluster: _Name = "local"
    namespace: _Namespace = "lockstep"
    registry: _Registry = ""
    tag: _Name = "0.1.0"
    components: list[_Name] = []
    storage_class: _Class = ""
    labels: dict[str, str] = {}


def read_settings(path: Path) -> Settings:
    """The settings of a YAML file; click.UsageError where one is unknown or wrong."""
    try:
        settings = msgspec.convert(read_yaml(path) or {}, Settings)
    except ValueError as error:
        text = " ".join(str(error).split())
        raise click.UsageError(f"--settings {path}: {text}; see values.yaml") from None
    folder = shipped_folder("kubernetes") / "components"
    components = sorted(each.name for each in folder.iterdir())
    for name in settings.components:
        if name not in components:
            raise click.UsageError(
                f"--settings {path}: components: {name!r} is none of {', '.join(components)}"
            )
    return settings


@click.command("kubernetes")
@click.option(
    "--settings",
    "settings_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML file of settings; values.yaml lists them.",
)
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder to write to; it is created.",
)
@click.option(
    "--receivers",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Who is notified, as for lockstep alerts generate --deployment.",
)
def deploy_kubernetes(*, settings_file: Path | None, folder: Path, receivers: Path | None) -> None:
    """Write objects for `kubectl apply --server-side -k FOLDER` or `helm install NAME FOLDER`.

    With the component prometheus-operator also rules, their routes and the boards.
    """
    settings = read_settings(settings_file) if settings_file else Settings()
    check_way(folder)
    try:
        if folder.exists() and any(folder.iterdir()) and not (folder / "Chart.yaml").exists():
            raise click.UsageError(f"--to {folder} holds other files; name a folder of its own")
        shutil.copytree(shipped_folder("kubernetes"), folder, dirs_exist_ok=True)
        if _OPERATOR in settings.components:
            _write_rules(folder / "components" / _OPERATOR, settings, receivers)
        overlay = yaml.safe_dump(kustomization_of(settings), sort_keys=False)
        (folder / "kustomization.yaml").write_text(overlay, encoding="utf-8")
        values = yaml.safe_dump(msgspec.to_builtins(settings), sort_keys=False)
        (folder / "values.yaml").write_text(values, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--to {folder}: {error.strerror}; name a writable folder") from None
    click.echo(f"kubectl apply --server-side -k {folder}")
    for name in settings.components:
        if name in _NEEDED:
            click.echo(_NEEDED[name])
    if not settings.storage_class and "ledger-postgres" not in settings.components:
        click.echo("The ledger's volume takes the default StorageClass; else set storage_class.")


def kustomization_of(settings: Settings) -> dict[str, Any]:
    """The overlay that gives base and components the settings."""
    images = ("lockstep-agent", "lockstep-ledger")
    prefix = f"{settings.registry}/" if settings.registry else ""
    patches = [{"target": _POD_KINDS, "patch": _replace(_CLUSTER, settings.cluster)}]
    for name in filter(_OF_COMPONENTS.get, settings.components):
        kind, path = _OF_COMPONENTS[name]
        patches.append({"target": {"kind": kind}, "patch": _replace(path, settings.cluster)})
    if settings.storage_class and "ledger-postgres" not in settings.components:
        patch = _replace("/spec/storageClassName", settings.storage_class, op="add")
        patches.append({"target": {"kind": "PersistentVolumeClaim"}, "patch": patch})
    if "cert-manager" in settings.components:
        patch = _replace("/spec/dnsNames", ledger_names(settings.namespace))
        patches.append({"target": {"kind": "Certificate"}, "patch": patch})
    overlay: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": settings.namespace,
        "resources": ["base"],
        "components": [f"components/{name}" for name in settings.components],
        "images": [
            {"name": name, "newName": f"{prefix}{name}", "newTag": settings.tag} for name in images
        ],
        "patches": patches,
    }
    if settings.labels:
        overlay["labels"] = [{"pairs": settings.labels, "includeSelectors": False}]
    return overlay


def _replace(path: str, value: str | list[str], op: str = "replace") -> str:
    return yaml.safe_dump([{"op": op, "path": path, "value": value}])


def _write_rules(component: Path, settings: Settings, receivers: Path | None) -> None:
    """Adds rules, routes and boards to the component; each alert carries the namespace.

    The operator gives an AlertmanagerConfig only the alerts of its own namespace, by that label.
    """
    labels = [f"--label={name}={value}" for name, value in settings.labels.items()]
    given = [f"--deployment={receivers}"] if receivers else []
    alerts = ["alerts", "generate", f"--format={_OPERATOR}", f"--namespace={settings.namespace}"]
    _run([*alerts, *labels, *given, f"--out={component / 'rules'}"])
    _run(["dashboards", "generate", "--format=configmap", f"--out={component / 'boards'}"])
    kustomization = component / "kustomization.yaml"
    document = yaml.safe_load(kustomization.read_text(encoding="utf-8"))
    for path in sorted((*component.glob("rules/*.yaml"), *component.glob("boards/*.yaml"))):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        if content.get("kind") in {None, "Kustomization"}:
            path.unlink()  # for promtool, or for a folder on its own
            continue
        if content["kind"] == "ConfigMap":
            # A client-side apply keeps the object in an annotation of at most 262,144 bytes.
            boards = content["data"].items()
            content["data"] = {
                name: json.dumps(json.loads(text), separators=(",", ":")) for name, text in boards
            }
        for group in content.get("spec", {}).get("groups", ()):
            for rule in group["rules"]:
                if "alert" in rule:
                    rule.setdefault("labels", {})["namespace"] = settings.namespace
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        document["resources"].append(str(path.relative_to(component)))
    document["resources"] = list(dict.fromkeys(document["resources"]))
    kustomization.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def _run(arguments: list[str]) -> None:
    """Runs another command of Lockstep's: components do not import each other."""
    command = [sys.executable, "-P", "-m", "lockstep_cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.UsageError(done.stderr.strip().removeprefix("Error: "))
