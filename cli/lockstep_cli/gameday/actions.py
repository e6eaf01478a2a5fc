"""What a row may do to its node, its job and the stack, by name.

An action is a function of the scene and of its argument in YAML; ``needs`` names what the machine
must have, a key of ``NEEDS``.
"""

import errno
import os
import shutil
import signal
import sqlite3
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from lockstep_catalogue.foreign import KUBE_CORDONED
from lockstep_cli.gameday.fake_node import build_library
from lockstep_cli.gameday.rows import Row, RowError
from lockstep_cli.gameday.scene import Scene
from lockstep_cli.gameday.sweeper import QUOTAS
from lockstep_cli.small_server import JSON, Answer, Request, SmallServer
from lockstep_records.delivery.sender import LedgerAddress, post
from lockstep_records.file_access.atomic_file import write_atomically

NEEDS: dict[str, tuple[str, Callable[[], bool]]] = {
    "compiler": ("no C compiler for the driver's stub", lambda: shutil.which("cc") is not None),
    "openssl": ("no openssl", lambda: shutil.which("openssl") is not None),
    "c++": ("no C++ compiler for torch.compile", lambda: shutil.which("c++") is not None),
    "root": ("needs root", lambda: os.geteuid() == 0),
    "quota": (
        "no control groups of version 1 whose quotas can be set",
        lambda: os.access(QUOTAS, os.W_OK),
    ),
}
"""What a machine may lack: the words for it, and whether it is there."""


@dataclass(frozen=True, slots=True)
class ActionKind:
    """An action by its function, and what it needs."""

    perform: Callable[[Scene, Any], None]
    needs: tuple[str, ...] = ()


ACTIONS: dict[str, ActionKind] = {}


def perform(scene: Scene, name: str, argument: Any) -> None:
    """Performs an action of a row."""
    ACTIONS[name].perform(scene, argument)


def missing(row: Row) -> str:
    """What this machine lacks for a row, in words, empty where nothing; RowError for no action."""
    unknown = {each.name for each in row.actions} - set(ACTIONS)
    if unknown:
        raise RowError(f"row {row.row}: no action has the name {', '.join(sorted(unknown))}")
    of_actions = (need for each in row.actions for need in ACTIONS[each.name].needs)
    needs = [*row.needs, *of_actions]
    return "; ".join(dict.fromkeys(NEEDS[need][0] for need in needs if not NEEDS[need][1]()))


_Function = Callable[[Scene, Any], None]


def action(*needs: str, name: str = "") -> Callable[[_Function], _Function]:
    """Registers the function as an action, by its own name or this one."""

    def register(function: _Function) -> _Function:
        ACTIONS[name or function.__name__] = ActionKind(function, needs)
        return function

    return register


@action("compiler")
def gpu(scene: Scene, argument: dict[str, Any]) -> None:
    """Sets answers of the driver: ``{index: 0, set: {KEY: VALUE or null}}``; -1 is the node."""
    gpus = scene.nodes[argument.get("node", 0)].gpus
    for key, value in argument["set"].items():
        gpus.set(argument["index"], key, value)


@action()
def file(scene: Scene, argument: dict[str, Any]) -> None:
    """Writes files below /sys of nodes: ``{nodes: [0, 1], PATH: CONTENT}``; null deletes."""
    for index in argument.get("nodes", [0]):
        for path, content in argument.items():
            target = scene.nodes[index].sysfs / path
            if content is None:
                target.unlink()
            elif path != "nodes":
                target.write_text(f"{content}\n")


@action()
def kernel(scene: Scene, argument: str) -> None:
    """Appends a line to the node's kernel log."""
    with scene.nodes[0].kernel_log.open("a", encoding="utf-8") as log:
        log.write(argument + "\n")


@action()
def cgroup(scene: Scene, argument: dict[str, str]) -> None:
    """Writes files of the ranks' control group as the node's agent sees it: ``{FILE: CONTENT}``."""
    folder = _group(scene)
    for name, content in argument.items():
        write_atomically(folder / name, f"{content}\n")


def _group(scene: Scene) -> Path:
    """The folder of the group of the first rank, below the node's /sys, of version 2."""
    root = scene.nodes[0].sysfs / "fs" / "cgroup"
    membership = Path(f"/proc/{scene.pages()[0].identity['pid']}/cgroup").read_text()
    path = next(line[3:] for line in membership.splitlines() if line.startswith("0::"))
    folder = root / path.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    (root / "cgroup.controllers").write_text("cpu memory\n")
    return folder


@action()
def pressure(scene: Scene, argument: dict[str, Any]) -> None:
    """Has the group wait: ``{resource: cpu, ratio: 0.5}`` of the time from now on."""
    path = _group(scene) / f"{argument['resource']}.pressure"
    is_first = path.name not in scene.variables
    scene.variables[path.name] = argument["ratio"]
    if is_first:
        ended = threading.Event()
        scene.open.callback(ended.set)
        writer = partial(_write_pressure, path, scene.variables, ended)
        threading.Thread(target=writer, daemon=True).start()


def _write_pressure(path: Path, ratios: dict[str, Any], ended: threading.Event) -> None:
    total = 0.0
    while not ended.wait(1.0):
        total += 1e6 * ratios[path.name]
        line = f"avg10=0.00 avg60=0.00 avg300=0.00 total={total:.0f}"
        with suppress(OSError):  # the row's folder is gone
            write_atomically(path, f"some {line}\nfull {line}\n")


@action("quota")
def quota(scene: Scene, argument: dict[str, Any]) -> None:
    """Lets a rank have so much of a processor: ``{rank: 1, cores: 0.1}``."""
    group = QUOTAS / scene.memory.parent.name / scene.row.row
    group.mkdir(parents=True)
    period = int((group / "cpu.cfs_period_us").read_text())
    (group / "cpu.cfs_quota_us").write_text(str(int(period * argument["cores"])))
    for pid in _pids(scene, "rank", str(argument["rank"])):
        (group / "cgroup.procs").write_text(str(pid))


@action("root")
def mount(scene: Scene, argument: dict[str, str]) -> None:
    """Gives the checkpoints a file system of their own: ``{size: 24m}``."""
    folder = scene.memory / "checkpoints"
    folder.mkdir(parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={argument['size']}", "lockstep", folder], check=True
    )
    scene.open.callback(lambda: subprocess.run(["umount", "--lazy", folder], check=False))


@action(name="signal")
def send_signal(scene: Scene, argument: dict[str, str]) -> None:
    """Sends a signal: ``{to: TARGET, name: SIGSTOP}``.

    The target is ``job``, or ``job N`` for the launcher of node N; ``rank N``; ``agent N``;
    ``node N``, which is all of these there; or a server of the stack.
    """
    number = signal.Signals[argument["name"]]
    target, _, index = argument["to"].partition(" ")
    for pid in _pids(scene, target, index):
        os.kill(pid, number)


def _pids(scene: Scene, target: str, index: str) -> list[int]:
    if target == "job":
        launchers = scene.launchers[int(index) :][:1] if index else scene.launchers
        return [launcher.pid for launcher in launchers if launcher.poll() is None]
    if target == "rank":
        pages = [page.identity for page in scene.pages()]
        return [page["pid"] for page in pages if page["rank"] == int(index)]
    if target == "agent":
        return [scene.nodes[int(index or 0)].agent.pid]
    if target == "node":
        name = scene.nodes[int(index)].name
        ranks = [page.identity["pid"] for page in scene.pages() if page.identity["node"] == name]
        return [*_pids(scene, "agent", index), *_pids(scene, "job", index), *ranks]
    return [scene.stage.server_pid(target)]


@action()
def requeue(scene: Scene, argument: dict[str, Any]) -> None:
    """Ends the job by SIGTERM, and starts it again with other fields of ``job``."""
    assert scene.row.job
    scene.end_job()
    scene.launch(msgspec.structs.replace(scene.row.job, **argument))


@action()
def sweep(scene: Scene, argument: dict[str, int]) -> None:
    """Runs short jobs one after the other, beside the row's own: ``{jobs: 20, steps: 30}``."""
    assert scene.row.job
    job = msgspec.structs.replace(scene.row.job, ranks=1, steps=argument["steps"], faults=())

    def run() -> None:
        for number in range(argument["jobs"]):
            scene.start_other(job, f"{scene.row.row}-{number}").wait()

    threading.Thread(target=run, daemon=True).start()


class _Kubernetes(SmallServer):
    """Serves which nodes are cordoned."""

    def __init__(self, cluster: str) -> None:
        self.cluster, self.nodes = cluster, set[str]()
        super().__init__("127.0.0.1", 0)

    def respond(self, request: Request) -> Answer:
        """A scrape."""
        del request
        lines = (
            f'{KUBE_CORDONED.name}{{cluster="{self.cluster}",node="{node}"}} 1\n'
            for node in self.nodes
        )
        return Answer(HTTPStatus.OK, "".join(lines).encode())


@action()
def cordon(scene: Scene, argument: str) -> None:
    """Cordons a node, as Kubernetes knows it."""
    if "kubernetes" not in scene.variables:
        server = scene.variables["kubernetes"] = _Kubernetes(scene.row.row)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        scene.stage.target(server.address)
        scene.open.callback(server.server_close)
        scene.open.callback(server.shutdown)
        scene.open.callback(scene.stage.target, server.address, is_added=False)
    scene.variables["kubernetes"].nodes.add(argument)


_BALLAST = ".ballast"
_HEADER_BYTES = 64
_WORLD = ("ahead", "nameless", "rename_ms")


def _server(scene: Scene, target: str) -> str:
    name, _, index = target.partition(" ")
    return scene.agent_name(scene.nodes[int(index or 0)]) if name == "agent" else name


@action()
def stop(scene: Scene, argument: str) -> None:
    """Ends a server: ``prometheus``, ``alertmanager``, ``pager``, ``ledger`` or ``agent N``."""
    scene.stage.stop_server(_server(scene, argument))


@action()
def start(scene: Scene, argument: str) -> None:
    """Starts a server again that was ended."""
    scene.stage.start_server(_server(scene, argument))
    for node in scene.nodes:
        node.agent = scene.stage.processes[scene.agent_name(node)]


@action()
def restart(scene: Scene, argument: str) -> None:
    """Ends a server and starts it again."""
    stop(scene, argument)
    start(scene, argument)


@action("root")
def small_disk(scene: Scene, argument: dict[str, Any]) -> None:
    """Puts the pages or the ledger's store on a tmpfs of its own: ``{of: pages, mib: 24}``."""
    folder = _disk(scene, argument["of"])
    is_ledger = argument["of"] == "ledger"
    if is_ledger:
        scene.stage.stop_server("ledger")
    size = f"size={argument['mib']}m"
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "lockstep-gameday", str(folder)], check=True
    )
    scene.open.callback(lambda: subprocess.run(["umount", "-l", folder], check=False))
    if is_ledger:
        scene.stage.start_server("ledger")


def _disk(scene: Scene, name: str) -> Path:
    return scene.stage.store.parent if name == "ledger" else scene.nodes[0].root


@action()
def fill(scene: Scene, argument: str) -> None:
    """Fills the disk of ``pages`` or ``ledger`` to the last byte."""
    if argument == "ledger":  # what its log has written once has room there again
        with closing(sqlite3.connect(scene.stage.store)) as store:
            store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (_disk(scene, argument) / _BALLAST).open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(1 << 16))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


@action()
def free(scene: Scene, argument: str) -> None:
    """Takes back what ``fill`` has filled."""
    (_disk(scene, argument) / _BALLAST).unlink()


@action("compiler")
def world(scene: Scene, argument: dict[str, int]) -> None:
    """Moves the wall clock of agent and ranks, takes their names away, or makes their store slow.

    ``{ahead: SECONDS, nameless: 0 or 1, rename_ms: MILLISECONDS}``; first at ``start``, before the
    job.
    """
    path = scene.memory / "world"
    is_first = not path.exists()
    with path.open("wb" if is_first else "r+b") as file:
        file.write(struct.pack("lll", *(argument.get(name, 0) for name in _WORLD)))
    if is_first:
        library = build_library("world.c", scene.memory / "world.so", "-ldl")
        scene.environment = {"LD_PRELOAD": str(library), "LOCKSTEP_WORLD": str(path)}
        scene.restart_agents()


@action()
def corrupt_page(scene: Scene, argument: str) -> None:
    """Overwrites the head of the page of a rank."""
    [page] = scene.job.glob(f"*/rank-{int(argument):05}.page")
    descriptor = os.open(page, os.O_WRONLY)
    try:
        os.pwrite(descriptor, os.urandom(_HEADER_BYTES), 0)
    finally:
        os.close(descriptor)


class _Broken(SmallServer):
    """Answers every request by 500."""

    def respond(self, request: Request) -> Answer:
        del request
        return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"")


@action()
def webhook(scene: Scene, argument: str) -> None:
    """``broken`` has the pager's address answer 500, ``mended`` has the pager back."""
    if argument == "broken":
        scene.stage.stop_server("pager")
        port = urlsplit(scene.stage.url("pager")).port or 0
        server = scene.variables["webhook"] = _Broken("127.0.0.1", port, max_body_bytes=1 << 20)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        scene.open.callback(_close, server)
    else:
        _close(scene.variables["webhook"])
        scene.stage.start_server("pager")


def _close(server: SmallServer) -> None:
    with suppress(OSError):
        server.shutdown()
        server.server_close()


class _Secured(SmallServer):
    """Hands on to the ledger what comes by TLS."""

    def __init__(self, ledger: str, context: ssl.SSLContext) -> None:
        self._ledger = ledger
        super().__init__("127.0.0.1", 0, max_body_bytes=1 << 20)
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def respond(self, request: Request) -> Answer:
        answer = post(LedgerAddress(url=f"{self._ledger}{request.path}"), request.body)
        return Answer(HTTPStatus(answer.status), answer.body, JSON)


@action("compiler", "openssl")
def certificate(scene: Scene, argument: int) -> None:
    """Has agents deliver by TLS, with a certificate that expires in so many seconds.

    The second time the certificate is renewed.
    """
    folder = scene.memory / "tls"
    key, trusted, world_file = folder / "key.pem", folder / "cert.pem", folder / "world"
    is_first = not folder.exists()
    if is_first:
        folder.mkdir()
        build_library("world.c", folder / "world.so", "-ldl")
    # openssl counts in days: its clock is a day behind.
    world_file.write_bytes(struct.pack("lll", argument - 86_400, 0, 0))
    command = [
        *("openssl", "req", "-x509", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"),
        *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(trusted)),
    ]
    environment = {"LD_PRELOAD": str(folder / "world.so"), "LOCKSTEP_WORLD": str(world_file)}
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})
    context = scene.variables.setdefault("tls", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.load_cert_chain(trusted, key)
    if is_first:
        server = _Secured(scene.stage.ledger, context)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        scene.open.callback(_close, server)
        url = f"https://{server.address}/api/events"
        scene.agent_words = ("--ledger", url, "--ledger-ca", str(trusted))
        scene.restart_agents()
