"""What a lab is set up with: certificates, a kubeconfig, and the command lines of its parts."""

import argparse
import json
import subprocess
from pathlib import Path

from parts import HERE, program

CA_EXTENSIONS = "basicConstraints=critical,CA:TRUE"


def make_certificates(folder: Path) -> None:
    """Write keys: of service accounts, of an authority for clients, of an administrator."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("genrsa", "-out", "accounts.key", "2048")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30",
            "-subj", "/CN=lab-clients", "-addext", CA_EXTENSIONS,
            "-keyout", "clients.key", "-out", "clients.crt")  # fmt: skip
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/O=system:masters/CN=admin",
            "-keyout", "admin.key", "-out", "admin.csr")  # fmt: skip
    openssl("x509", "-req", "-in", "admin.csr", "-CA", "clients.crt", "-CAkey", "clients.key",
            "-CAcreateserial", "-days", "30", "-out", "admin.crt")  # fmt: skip


def write_kubeconfig(folder: Path, port: int, token: str) -> None:
    """Write `kubeconfig`: contexts `lab` (token) and `certificate`; JSON is YAML."""
    authority = str(folder / "certificates/apiserver.crt")
    certificate = {
        "client-certificate": str(folder / "admin.crt"),
        "client-key": str(folder / "admin.key"),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {
            "server": f"https://127.0.0.1:{port}", "certificate-authority": authority}}],
        "users": [
            {"name": "admin", "user": {"token": token}},
            {"name": "certificate", "user": certificate},
        ],
        "contexts": [
            {"name": "lab", "context": {"cluster": "lab", "user": "admin"}},
            {"name": "certificate", "context": {"cluster": "lab", "user": "certificate"}},
        ],
        "current-context": "lab",
    }  # fmt: skip
    path = folder / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def build_commands(
    folder: Path, store: int, port: int, options: argparse.Namespace
) -> dict[str, list[str]]:
    """Return the command line of each part. Times are short: a node is lost within seconds."""
    config, key = f"--kubeconfig={folder / 'kubeconfig'}", folder / "accounts.key"
    quiet = ["--bind-address=127.0.0.1", "--secure-port=0", "--leader-elect=false"]
    purposes = ("authentication", "authorization")
    quiet += [f"--{purpose}-kubeconfig={folder / 'kubeconfig'}" for purpose in purposes]
    return {
        "kine": [
            program("kine"), f"--listen-address=127.0.0.1:{store}", "--metrics-bind-address=0",
            *options.kine_flag],
        "apiserver": [
            program("kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{store}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={port}",
            f"--cert-dir={folder / 'certificates'}", "--service-cluster-ip-range=10.96.0.0/16",
            "--endpoint-reconciler-type=none", f"--token-auth-file={folder / 'tokens.csv'}",
            f"--client-ca-file={folder / 'clients.crt'}", "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            "--default-not-ready-toleration-seconds=3",
            "--default-unreachable-toleration-seconds=3", *options.apiserver_flag],
        "controllers": [
            program("kube-controller-manager"), config, *quiet,
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={key}", "--node-monitor-period=1s",
            "--node-monitor-grace-period=8s", *options.controllers_flag],
        "scheduler": [program("kube-scheduler"), config, *quiet],
        "kwok": [
            program("kwok"), config, f"--config={HERE / 'stages.yaml'}",
            "--manage-all-nodes=false", "--node-lease-duration-seconds=8",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"],
    }  # fmt: skip
