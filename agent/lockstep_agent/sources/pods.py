"""The pod in whose volume a folder of pages is, by the names that the kubelet gives to its folders.

The path of a volume names the pod by its uid alone; the folder of the pod's logs has its names too,
so neither the API server nor a token is needed.
"""

import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

_UID = re.compile(r"/pods/([0-9a-f-]{8,64})/volumes/")
POD_UID = re.compile(r"kubepods[^\n]*?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
"""The uid in the path of a pod's control group; systemd writes underscores in it."""
_MAX_CONTAINERS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """Names of a pod; empty where unknown, and outside of Kubernetes.

    Attributes:
        container: of several containers all, with commas between.
    """

    namespace: str = ""
    name: str = ""
    container: str = ""


class PodNames:
    """Finds the pod of a volume; the folder of logs is searched only for a pod that is new.

    Args:
        logs: kubelet's folder of the logs of pods; it need not exist.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._pods: dict[Path, Pod] = {}

    def forget_others(self, volumes: set[Path]) -> None:
        """Forgets pods whose volumes are gone."""
        self._pods = {volume: pod for volume, pod in self._pods.items() if volume in volumes}

    def pod_of(self, volume: Path) -> Pod:
        """The pod that a volume belongs to."""
        pod = self._pods.get(volume, Pod())
        # A container that starts late has its folder late.
        if pod.container or not (uid := _UID.search(str(volume))):
            return pod
        self._pods[volume] = self.find(uid[1])
        return self._pods[volume]

    def find(self, uid: str) -> Pod:
        """The pod of a uid, by the folder of its logs."""
        try:
            folder = next(self._logs.glob(f"*_*_{uid}"), None)
            if folder is None:
                return Pod()
            names = sorted(each.name for each in islice(folder.iterdir(), _MAX_CONTAINERS))
        except OSError:
            return Pod()
        namespace, _, rest = folder.name.partition("_")
        pod = rest.removesuffix(f"_{uid}")
        return Pod(namespace=namespace, name=pod, container=",".join(names))
