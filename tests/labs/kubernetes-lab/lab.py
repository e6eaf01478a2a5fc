"""A Kubernetes control plane on one machine, without containers and without root, for tests.

Real are the API server, its store, controllers and scheduler; kwok does what kubelets would, as
`stages.yaml` says. `build.sh` makes the programs. Every lab has its own folder and free ports of
loopback, so that several run at once; a part that is stopped and started keeps port and data.
"""

import argparse
import json
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from parts import (
    CACHE,
    HERE,
    PARTS,
    LabError,
    find_free_ports,
    kubectl,
    program,
    start_part,
    stop_part,
    wait_for_port,
)
from setting import build_commands, make_certificates, write_kubeconfig


def apply_objects(folder: Path, objects: list[dict[str, object]]) -> None:
    """Create objects, or change them to what is given."""
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    done = kubectl(folder, "apply", "--server-side", "--force-conflicts", "-f", "-", text=items)
    if done.returncode:
        raise LabError(done.stderr.strip())


def describe_node(name: str, gpus: int) -> dict[str, object]:
    """Return a node that kwok keeps ready."""
    size = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    if gpus:
        size["nvidia.com/gpu"] = str(gpus)
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"},
                     "labels": {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}},
        "status": {"allocatable": size, "capacity": size},
    }  # fmt: skip


def up(folder: Path, options: argparse.Namespace) -> None:
    """Start a lab in an empty folder, or go on with the one that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "kubeconfig").exists():
        store, port = find_free_ports(2)
        token = secrets.token_hex(16)
        (folder / "tokens.csv").touch(mode=0o600)
        (folder / "tokens.csv").write_text(
            f'{token},admin,admin,"system:masters"\n', encoding="utf-8"
        )
        make_certificates(folder)
        write_kubeconfig(folder, port, token)
        for name, command in build_commands(folder, store, port, options).items():
            (folder / f"{name}.command").write_text(shlex.join(command), encoding="utf-8")
    for name in PARTS:
        start_part(folder, name)
    nodes = [describe_node(f"gpu-{i}", options.gpus) for i in range(1, options.nodes + 1)]
    apply_objects(folder, [*nodes, describe_node("cpu-1", 0)])
    if options.kinds:
        add_kinds(folder, [])


def read_kinds(names: list[str]) -> Iterator[dict[str, object]]:
    """Yield definitions of the kinds in `kinds.txt`, or of those named, with open schemas."""
    for line in (HERE / "kinds.txt").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        group, version, kind, plural, scope = line.split()
        if names and f"{plural}.{group}" not in names:
            continue
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        yield {
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group, "scope": scope,
                "names": {"kind": kind, "plural": plural, "singular": kind.lower(),
                          "listKind": f"{kind}List"},
                "versions": [{"name": version, "served": True, "storage": True,
                              "subresources": {"status": {}},
                              "schema": {"openAPIV3Schema": schema}}],
            },
        }  # fmt: skip


def add_kinds(folder: Path, names: list[str]) -> None:
    """Define kinds of jobs and wait until the server serves them."""
    definitions = list(read_kinds(names))
    apply_objects(folder, definitions)
    targets = [f"crd/{each['metadata']['name']}" for each in definitions]  # type: ignore[index]  # of our own making
    done = kubectl(folder, "wait", "--for=condition=Established", "--timeout=30s", *targets)
    if done.returncode:
        raise LabError(done.stderr.strip())


def start_operator(folder: Path) -> None:
    """Add the Prometheus operator and its kinds; it talks to the server by a proxy."""
    done = kubectl(folder, "apply", "--server-side", "-f", str(CACHE / "operator-crds"))
    if done.returncode:
        raise LabError(done.stderr.strip())
    proxy, listen = find_free_ports(2)
    commands = {
        "proxy": [program("kubectl"), f"--kubeconfig={folder / 'kubeconfig'}", "proxy",
                  f"--port={proxy}"],
        "operator": [program("prometheus-operator"), f"--apiserver=http://127.0.0.1:{proxy}",
                     f"--web.listen-address=127.0.0.1:{listen}"],
    }  # fmt: skip
    for name, command in commands.items():
        (folder / f"{name}.command").write_text(shlex.join(command), encoding="utf-8")
        start_part(folder, name)
        if name == "proxy":
            wait_for_port(proxy)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return what to do, and in which folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in {
        "up": "start a lab; its kubeconfig is FOLDER/kubeconfig",
        "down": "stop all parts of a lab",
        "start": "start parts that were stopped",
        "stop": "stop parts and wait for their ends",
        "kill": "end parts by SIGKILL",
        "kinds": "define kinds of jobs as PLURAL.GROUP, or all of kinds.txt",
        "operator": "start the Prometheus operator",
    }.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("folder", type=lambda value: Path(value).absolute())
        if name in ("start", "stop", "kill", "kinds"):
            command.add_argument("names", nargs="*", metavar="NAME")
        if name == "up":
            add = command.add_argument
            add("--nodes", type=int, default=2, help="nodes with GPUs (default 2)")
            add("--gpus", type=int, default=8, help="GPUs a node (default 8)")
            add("--kinds", action="store_true", help="define all kinds of kinds.txt")
            for part in ("apiserver", "kine", "controllers"):
                more = f"one more flag of {part}"
                add(f"--{part}-flag", action="append", default=[], help=more)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run one command; status 1 with one line where it cannot be done."""
    options = parse_arguments(arguments)
    folder: Path = options.folder
    try:
        match options.command:
            case "up":
                up(folder, options)
            case "down":
                for name in ("operator", "proxy", *reversed(PARTS)):
                    stop_part(folder, name)
            case "kinds":
                add_kinds(folder, options.names)
            case "operator":
                start_operator(folder)
            case "start":
                for name in options.names:
                    start_part(folder, name)
            case command:
                number = signal.SIGKILL if command == "kill" else signal.SIGTERM
                for name in options.names:
                    stop_part(folder, name, number)
    except (LabError, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"kubernetes-lab: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
