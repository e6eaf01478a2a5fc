"""Fill the Secret of tokens and certificates of an installation, in a Job of its own."""

import base64
import os
import secrets
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click
import httpx

from lockstep_cli.options import bad_input

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
    """Adds to the Secret what it lacks; returns that, by key."""
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
    """What a Secret lacks, by key.

    Args:
        held: what it has.
        namespace: of the ledger, by which clients call it.
        tokens_only: whether the certificate is somebody else's.
    """
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
    """A certificate of agent and ledger that is its own authority, by openssl."""
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
