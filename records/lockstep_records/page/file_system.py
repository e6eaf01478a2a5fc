"""The file system that a page would lie on, by the kernel's table of mounts."""

from pathlib import Path


def file_system_of(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """Type of the file system that holds a folder, such as ``tmpfs``; empty when unknown."""
    target, best, kind = str(folder.resolve()), "", ""
    for line in mountinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        head, _, tail = line.partition(" - ")
        mount = head.split()[4].replace("\\040", " ")
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        # Of several mounts on one path the last one is on top.
        if inside and len(mount) >= len(best):
            best, kind = mount, tail.split()[0]
    return kind
