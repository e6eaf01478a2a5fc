"""The boards as files for those who run Grafana: JSON, ConfigMaps, a provisioning folder.

Kubernetes' sidecar reads ConfigMaps by their label and puts each into the folder that its
annotation names. Formats: https://grafana.com/docs/grafana/latest/administration/provisioning/ and
https://github.com/kiwigrid/k8s-sidecar.
"""

import json
from collections.abc import Callable, Mapping

from lockstep_dashboards.grafana import GENERATED_NOTE, board_json
from lockstep_dashboards.panel import Board

_FOLDER = "Lockstep"
_LABEL, _LABEL_VALUE = "grafana_dashboard", "1"
_FOLDER_ANNOTATION = "grafana_folder"
MAX_CONFIGMAP_BYTES = 1 << 20
"""What etcd takes as one object."""
_BOARDS_FOLDER = "/etc/grafana/provisioning/dashboards/lockstep"
_PROVIDER = f"""# {GENERATED_NOTE}
# Copy this folder to /etc/grafana/provisioning; the data source is chosen on the boards.
apiVersion: 1
providers:
  - name: lockstep
    folder: {_FOLDER}
    folderUid: lockstep
    type: file
    allowUiUpdates: false
    updateIntervalSeconds: 60
    options:
      path: {_BOARDS_FOLDER}
"""
_SOURCE = f"""# {GENERATED_NOTE}
apiVersion: 1
datasources:
  - name: Prometheus
    uid: lockstep-prometheus
    type: prometheus
    access: proxy
    url: http://localhost:9090
    isDefault: true
    jsonData:
      httpMethod: POST
      timeInterval: 15s
"""

Boards = Mapping[str, Board]


def as_json(boards: Boards) -> dict[str, str]:
    """One file a board."""
    return {name: board_json(board) for name, board in boards.items()}


def as_configmaps(boards: Boards) -> dict[str, str]:
    """One ConfigMap a board, and a kustomization that names them.

    They are JSON, which YAML contains, so that no quoting can change a board.
    """
    texts = {f"{board.uid}.yaml": _configmap(name, board) for name, board in boards.items()}
    resources = "".join(f"  - {name}\n" for name in texts)
    kustomization = (
        f"# {GENERATED_NOTE}\n"
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources:\n{resources}"
    )
    return texts | {"kustomization.yaml": kustomization}


def _configmap(name: str, board: Board) -> str:
    content = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": board.uid,
            "labels": {_LABEL: _LABEL_VALUE, "app.kubernetes.io/part-of": "lockstep"},
            "annotations": {_FOLDER_ANNOTATION: _FOLDER},
        },
        "data": {name: board_json(board)},
    }
    text = json.dumps(content, indent=2) + "\n"
    assert len(text.encode()) < MAX_CONFIGMAP_BYTES, board.uid
    return text


def as_provisioning(boards: Boards) -> dict[str, str]:
    """The folder that Grafana reads at start: a provider, a data source, the boards."""
    files = {f"dashboards/lockstep/{name}": board_json(board) for name, board in boards.items()}
    return {"dashboards/lockstep.yaml": _PROVIDER, "datasources/lockstep.yaml": _SOURCE} | files


FORMATS: Mapping[str, Callable[[Boards], dict[str, str]]] = {
    "json": as_json,
    "configmap": as_configmaps,
    "provisioning": as_provisioning,
}
