"""Files beside a rank's page: traces that the rank was asked for, and what a hang left behind.

They lie in memory, on the page's tmpfs, until somebody fetches them.
"""

import json
import os
from pathlib import Path
from typing import Any

from lockstep_records.file_access.foreign_files import open_foreign, read_chunks, read_foreign
from lockstep_records.file_access.own_files import remove_from_folder, replace_own_file

_MAX_ANSWER_BYTES = 64 << 10
MAX_TRACE_BYTES = 4 << 30
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_rank_file(page: Path, suffix: str, data: bytes) -> Path:
    """Writes a file beside a page, in one move; readable by the group of the agent.

    Raises:
        OSError: the folder cannot be written.
    """
    path = page.with_suffix(suffix)
    replace_own_file(path, data)
    return path


def trace_path(page: Path, request: str) -> Path:
    """The trace of a rank, as torch.profiler writes it (Chrome's trace format)."""
    return page.with_name(f"{page.stem}.{request}.trace.json")


def answer_path(page: Path, request: str) -> Path:
    """What the rank answers to the request: what it cost, or why no trace was written."""
    return page.with_name(f"{page.stem}.{request}.answer.json")


def read_answer(page: Path, request: str) -> dict[str, Any] | None:
    """The rank's answer; None while none exists, and for one that is not a JSON object."""
    return read_object(answer_path(page, request), _MAX_ANSWER_BYTES)


def read_object(path: Path, max_bytes: int) -> dict[str, Any] | None:
    """The JSON object in a file; None without the file, and where it holds anything else."""
    try:
        document = json.loads(read_foreign(path, max_bytes))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def fetch(page: Path, request: str, folder: Path) -> Path | None:
    """Moves a rank's trace into a folder and deletes the answer; None without a trace.

    Raises:
        OSError: the trace cannot be moved, or is refused; see ``open_descriptor``.
    """
    trace = trace_path(page, request)
    moved: Path | None = folder / trace.name
    try:
        with open_foreign(trace) as descriptor:
            folder.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(folder / trace.name, _NEW_FILE, 0o666), "wb") as file:
                file.writelines(read_chunks(descriptor, MAX_TRACE_BYTES))
        remove_from_folder(trace)
    except FileNotFoundError:
        moved = None
    remove_from_folder(answer_path(page, request))
    return moved


_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # the mount itself is looked at
_LOGIND = Path("/etc/systemd/logind.conf")
_LOGIND_RUNS = Path("/run/systemd/seats")
_FIRST_USER = 1000  # logind leaves the users of the system alone
_REMEDY = "let systemd-tmpfiles create /run/lockstep (docs/slurm.md)"


def harm_of(root: Path, mounts: Path = Path("/proc"), logind: Path = _LOGIND) -> str:
    """A sentence on what harms pages below a folder, with its remedy; empty where nothing does.

    Args:
        root: folder of all jobs.
        mounts: where the kernel tells of processes.
        logind: its configuration.
    """
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
