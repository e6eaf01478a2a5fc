"""What a row may do as a cluster and its people do, by name; see ``actions``."""

import threading
from http import HTTPStatus
from typing import Any

import msgspec

from lockstep_catalogue.foreign import KUBE_CORDONED
from lockstep_cli.gameday.actions import action
from lockstep_cli.gameday.scene import Scene
from lockstep_cli.small_server import Answer, Request, SmallServer


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
