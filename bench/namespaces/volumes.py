"""Volumes of a pod as a kubelet makes them, below the folder where it keeps them."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KUBELET = Path("/var/lib/kubelet/pods")
LOGS = Path("/var/log/pods")


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod of one container.

    Attributes:
        uid: by which the kubelet names its folder.
        spec: of the manifest.
        contents: files of the Secrets and ConfigMaps that it mounts, by name and key.
    """

    namespace: str
    name: str
    uid: str
    spec: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    contents: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def container(self) -> Mapping[str, Any]:
        """Its only container."""
        [found] = self.spec["containers"]
        assert isinstance(found, dict)
        return found

    @property
    def log(self) -> Path:
        """Log of its container; the folder names the pod."""
        pod, container = f"{self.namespace}_{self.name}_{self.uid}", str(self.container["name"])
        return LOGS / pod / container / "0.log"

    def volume(self, kind: str, name: str) -> Path:
        """Folder of a volume on the node."""
        return KUBELET / self.uid / "volumes" / f"kubernetes.io~{kind}" / name

    def field_of(self, path: str) -> str:
        """Value of a field of the downward API."""
        fields = {
            "status.hostIP": "127.0.0.1",
            "spec.nodeName": "node-1",
            "metadata.namespace": self.namespace,
            "metadata.name": self.name,
        }
        notes = self.annotations.items()
        return (fields | {f"metadata.annotations['{name}']": text for name, text in notes})[path]


def make_volumes(pod: Pod) -> dict[str, Path]:
    """Makes the volumes of a pod; gives the folder of each by name."""
    return {each["name"]: _make(pod, each) for each in pod.spec.get("volumes", ())}


def _make(pod: Pod, volume: Mapping[str, Any]) -> Path:
    name, group = volume["name"], pod.spec.get("securityContext", {}).get("fsGroup", 0)
    if given := volume.get("hostPath"):
        folder = Path(given["path"])
        if given["type"] == "DirectoryOrCreate":
            folder.mkdir(parents=True, exist_ok=True)
        assert folder.is_dir()
        return folder
    if "emptyDir" in volume:
        return _make_empty(pod.volume("empty-dir", name), volume["emptyDir"])
    if "persistentVolumeClaim" in volume:
        folder = pod.volume("csi", name)
        folder.mkdir(parents=True)
        os.chown(folder, 0, group)
        folder.chmod(0o2770)
        return folder
    files, mode = _contents(pod, volume)
    folder = pod.volume("projected", name)
    folder.mkdir(parents=True)
    for path, text in files.items():
        (folder / path).write_text(text, encoding="utf-8")
        os.chown(folder / path, 0, group)
        (folder / path).chmod(mode)
    return folder


def _make_empty(folder: Path, settings: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    if settings.get("medium") == "Memory":
        size = settings["sizeLimit"].removesuffix("i")
        run("mount", "-t", "tmpfs", "-o", f"mode=0777,size={size}", "tmpfs", folder)
    return folder


def _contents(pod: Pod, volume: Mapping[str, Any]) -> tuple[dict[str, str], int]:
    """Files of a volume by path, and their mode."""
    if given := volume.get("secret"):
        held = pod.contents[given["secretName"]]
        files = {item["path"]: held[item["key"]] for item in given["items"]}
        return files, given["defaultMode"]
    if given := volume.get("configMap"):
        return dict(pod.contents[given["name"]]), 0o644
    [item] = volume["downwardAPI"]["items"]
    assert item["fieldRef"]["fieldPath"] == "metadata.labels"
    lines = (f"{name}={json.dumps(text)}\n" for name, text in pod.labels.items())
    return {item["path"]: "".join(lines)}, 0o644


def run(*words: str | Path) -> None:
    """Runs a program of the system; raises where it fails."""
    subprocess.run([str(word) for word in words], check=True)
