"""A program that ends all that a game day started, when that is over or gone.

``python sweeper.py VARIABLE=VALUE MEMORY FOLDER``: its standard input is a pipe from the game day.
At the end of that, also by SIGKILL, every process with the variable in its environment is killed,
what is mounted below the folders is unmounted, and its control groups and the folder in memory are
removed.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

QUOTAS = Path("/sys/fs/cgroup/cpu")
_ROUNDS, _ROUND_SECONDS = 100, 0.1  # until what was being started has the variable too


def _kill(marked: bytes) -> int:
    """How many processes there were to kill."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if marked in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                found += 1
    return found


def _unmount(*folders: str) -> None:
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed(mounts):
        if mount.startswith(tuple(f"{folder}/" for folder in folders)):
            subprocess.run(["umount", "--lazy", mount], check=False)


def _main(variable: str, memory: str, folder: str) -> None:
    sys.stdin.read()
    for _ in range(_ROUNDS):
        if not _kill(variable.encode()):
            break
        time.sleep(_ROUND_SECONDS)
    _unmount(memory, folder)
    groups = QUOTAS / Path(memory).name
    for group in (*groups.glob("*/"), groups):
        with suppress(OSError):
            group.rmdir()
    shutil.rmtree(memory, ignore_errors=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
