"""A container of a manifest as namespaces: mounts, user, capabilities and root as it asks for.

``unshare`` makes the namespaces, ``mount`` the volumes and the read-only root, ``setpriv`` the
user, groups and capabilities. A pod that shares the host's process ids has no PID and no user
namespace; every other pod has both, the latter where the kernel allows it.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tenants import users

from namespaces.volumes import Pod, make_volumes, run

LOCKSTEP = (sys.executable, "-m", "lockstep_cli.main")
_NAMESPACES = ("--mount", "--uts", "--propagation", "slave")
_OWN_PIDS = ("--pid", "--fork", "--mount-proc")
_PSEUDO = ("/proc", "/sys", "/dev")
_VARIABLE = re.compile(r"\$\(([A-Z_]+)\)")


@cache
def may_make_user_namespaces() -> bool:
    """Whether the kernel lets an unprivileged user make one."""
    words = ("setpriv", "--reuid=1000", "--clear-groups", "unshare", "--user", "true")
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


def start_container(pod: Pod, entrypoint: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Starts the container of a pod with its volumes; its output goes to its log.

    Args:
        pod: whose container it is.
        entrypoint: of its image, where the manifest names no command.
    """
    volumes = make_volumes(pod)
    pod.log.parent.mkdir(parents=True)
    container, environment = pod.container, _environment(pod)
    given = [*container.get("command", entrypoint), *container.get("args", ())]
    words = [_VARIABLE.sub(lambda match: environment[match[1]], word) for word in given]
    command = [*LOCKSTEP, *words[1:]] if words[0] == "lockstep" else words
    setup = [["hostname", pod.name]] if not pod.spec.get("hostNetwork") else []
    setup += _mounts(pod, volumes)
    script = "\n".join(map(shlex.join, [*setup, ["exec", *_restricted(pod), *command]]))
    unshare = ["unshare", *_NAMESPACES, *(() if pod.spec.get("hostPID") else _OWN_PIDS)]
    with pod.log.open("wb") as log:
        return subprocess.Popen(
            [*unshare, "sh", "-ec", script],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=environment,
        )  # fmt: skip


def first_process(pod: Pod, started: subprocess.Popen[bytes]) -> int:
    """Process id, as the node counts, of the process that is 1 in the pod; 0 before it is there."""
    if pod.spec.get("hostPID"):
        return started.pid
    try:
        path = Path(f"/proc/{started.pid}/task/{started.pid}/children")
        return int((path.read_text(encoding="ascii").split() or ["0"])[0])
    except FileNotFoundError:
        return 0


def _environment(pod: Pod) -> dict[str, str]:
    found = users.environment(Path("/tmp"))  # noqa: S108  # of the pod: its own or read-only
    for each in pod.container.get("env", ()):
        source = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        found[each["name"]] = pod.field_of(source) if source else each["value"]
    return found


def _mounts(pod: Pod, volumes: Mapping[str, Path]) -> list[list[str]]:
    """Commands that give the container its view of the file system: read-only but for volumes."""
    remount, targets = ["mount", "-o", "remount,bind,ro"], list[Path]()
    may, commands = pod.container["securityContext"], []
    for mount in pod.container.get("volumeMounts", ()):
        target = Path(mount["mountPath"])
        target.mkdir(parents=True, exist_ok=True)
        if any(each.is_relative_to(target) for each in (users.REPOSITORY, Path(sys.prefix))):
            continue  # of a checkout in /tmp
        targets.append(target)
        commands.append(["mount", "--bind", str(volumes[mount["name"]]), str(target)])
        if mount.get("readOnly"):
            commands.append([*remount, str(target)])
    if may.get("readOnlyRootFilesystem"):
        commands += [
            [*remount, each]
            for each in _file_systems()
            if not any(Path(each).is_relative_to(target) for target in targets)
        ]
    if not any("hostPath" in volume for volume in pod.spec["volumes"]):
        commands.append(["mount", "-t", "tmpfs", "-o", "ro", "none", "/var/lib/kubelet"])
        # As every container runtime gives it, unless the manifest says more.
        shared = "mode=1777,size=64m"
        commands.append(["mount", "-t", "tmpfs", "-o", shared, "shm", "/dev/shm"])  # noqa: S108  # its own
    return commands


def _file_systems() -> list[str]:
    """Mount points of the node that hold files and are not hidden, without volumes of pods."""
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    points = dict.fromkeys(line.split()[1] for line in lines)
    without = (*_PSEUDO, "/var/lib/kubelet/")
    return [each for each in points if not each.startswith(without) and Path(each).is_mount()]


def _restricted(pod: Pod) -> list[str]:
    """Words before the command that make it the user of the manifest, with its capabilities."""
    of_pod, own = pod.spec.get("securityContext", {}), pod.container["securityContext"]
    may: dict[str, Any] = {**of_pod, **own}
    user, group = may["runAsUser"], may.get("runAsGroup", 0)
    added = [f"+{name.lower()}" for name in may["capabilities"].get("add", ())]
    capabilities = ",".join(["-all", *added])
    words = ["setpriv", f"--reuid={user}", f"--regid={group}"]
    words += [f"--groups={may['fsGroup']}"] if "fsGroup" in may else ["--clear-groups"]
    words += [f"--inh-caps={capabilities}", f"--bounding-set={capabilities}"]
    if not may["allowPrivilegeEscalation"]:
        words.append("--no-new-privs")
    if not pod.spec.get("hostPID") and may_make_user_namespaces():
        words += ["unshare", "--user", f"--map-user={user}", f"--map-group={group}"]
    return words


def entrypoint_of(image: str) -> list[str]:
    """The entry point of a shipped image."""
    path = users.REPOSITORY / "deploy" / "container" / f"{image}.Containerfile"
    text = path.read_text(encoding="utf-8")
    [found] = re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    words: list[str] = json.loads(found)
    return words


def become_node(layers: Path) -> None:
    """Makes this process's view of the machine a node's: folders of its own, loopback up.

    It runs in mount and network namespaces of its own, so that nothing changes for others.

    Args:
        layers: empty folder for what is written to /etc and /var.
    """
    users.make_reachable()
    run("ip", "link", "set", "lo", "up")
    run("mount", "-t", "tmpfs", "layers", layers)
    for name in ("etc", "var"):
        (layers / name).mkdir()
        (layers / f"{name}.work").mkdir()
        parts = f"lowerdir=/{name},upperdir={layers / name},workdir={layers / name}.work"
        run("mount", "-t", "overlay", "overlay", "-o", parts, f"/{name}")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "run", "/run")
    # What is mounted later appears in containers that run: HostToContainer.
    run("mount", "--make-rshared", "/")
    os.chdir("/")
