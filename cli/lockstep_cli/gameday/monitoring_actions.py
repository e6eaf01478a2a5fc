"""What a row may do to the monitoring itself, by name; see ``actions``."""

import errno
import os
import sqlite3
import ssl
import struct
import subprocess
import threading
from contextlib import closing, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lockstep_cli.gameday.actions import action
from lockstep_cli.gameday.fake_node import build_library
from lockstep_cli.gameday.scene import Scene
from lockstep_cli.small_server import JSON, Answer, Request, SmallServer
from lockstep_records.delivery.sender import LedgerAddress, post

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
