"""Dangers to pages in /dev/shm: what removes them, or hides them from the agent."""

import os
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # the mount itself is looked at
_LOGIND = Path("/etc/systemd/logind.conf")
_LOGIND_RUNS = Path("/run/systemd/seats")
_FIRST_USER = 1000  # logind leaves the users of the system alone
_REMEDY = "let systemd-tmpfiles create /run/lockstep (docs/slurm.md)"


def harm_of(root: Path, mounts: Path = Path("/proc"), logind: Path = _LOGIND) -> str:
    """A sentence on what harms pages below a root, with its remedy; empty where nothing does."""
    if not root.is_relative_to(_SHARED_MEMORY):
        return ""
    if "KUBERNETES_SERVICE_HOST" in os.environ and not root.is_mount():
        return (
            f"{_SHARED_MEMORY} of a pod is its own, so the agent of the node does not see pages in"
            f" {root}; mount an emptyDir of medium Memory named lockstep at /run/lockstep"
            " (docs/pods.md)"
        )
    if _is_private(mounts):
        return (
            f"{_SHARED_MEMORY} is this job's own (job_container/tmpfs or a container), so the agent"
            f" of the node does not see pages in {root}; {_REMEDY}"
        )
    if os.getuid() >= _FIRST_USER and _LOGIND_RUNS.exists() and _removes_ipc(logind):
        return (
            f"logind deletes the pages in {root} when your last session on this node ends"
            f" (RemoveIPC); {_REMEDY}"
        )
    return ""


def _is_private(proc: Path) -> bool:
    """Whether the machine's first process has another /dev/shm."""
    own, first = (_device_of(proc / name / "mountinfo") for name in ("self", "1"))
    return first is not None and own != first


def _device_of(mountinfo: Path) -> str | None:
    """Device of the newest mount on /dev/shm; empty without one, None where nobody may ask."""
    try:
        lines = mountinfo.read_text(errors="replace").splitlines()
    except OSError:
        return None
    fields = (line.split() for line in lines)
    return next((f[2] for f in reversed([*fields]) if f[4:5] == [str(_SHARED_MEMORY)]), "")


def _removes_ipc(configuration: Path) -> bool:
    """Whether logind removes what a user leaves behind; yes where nothing says no."""
    words = ["yes"]
    drop_ins = sorted(configuration.with_suffix(".conf.d").glob("*.conf"))
    for path in (configuration, *drop_ins):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        pairs = (line.partition("=") for line in lines)
        words += [value.strip().lower() for key, _, value in pairs if key.strip() == "RemoveIPC"]
    return words[-1] in {"yes", "true", "1", "on"}
