"""Users of the arena: processes of other uids, and an interpreter that they may reach."""

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
_CLONE_NEWNS = 0x20000


@dataclass(frozen=True)
class User:
    """A user by number; none of them is in a password file."""

    uid: int
    gid: int
    capabilities: str = ""

    def become(self) -> None:
        """Makes this process one of the user's; only root may."""
        os.setgroups([])
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)
        os.umask(0o027)

    def prefix(self) -> list[str]:
        """Words before a command that run it as the user."""
        words = ["setpriv", "--reuid", str(self.uid), "--regid", str(self.gid), "--clear-groups"]
        if self.capabilities:
            words += ["--inh-caps", self.capabilities, "--ambient-caps", self.capabilities]
        return words


# The agent as its DaemonSet runs it: it reads the files of all users and owns none of them.
AGENT = User(4100, 4100, "+dac_read_search")
VICTIM = User(4101, 4101)
ATTACKER = User(4102, 4102)
LEDGER = User(4103, 4103)
ROOT = User(0, 0)


def environment(home: Path) -> dict[str, str]:
    """Environment of every program here: this checkout first, and nothing written into it."""
    rooms = [str(path.parents[1]) for path in sorted(REPOSITORY.glob("*/lockstep*/__init__.py"))]
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": ":".join([*rooms, str(REPOSITORY / "bench")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
    }


def command(user: User, *words: str | Path) -> list[str]:
    """Command line of ``lockstep WORDS`` as the user."""
    lockstep = [sys.executable, "-m", "lockstep_cli.main"]
    return [*user.prefix(), *lockstep, *(str(word) for word in words)]


def why_impossible() -> str | None:
    """Reason for which several users cannot run here, None where they can."""
    if os.geteuid() != 0:
        return "only root may start programs as two other users"
    if _is_reachable():
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    if os.fork() == 0:
        os._exit(libc.unshare(_CLONE_NEWNS) != 0)
    _, status = os.wait()
    return "other users may not reach this interpreter, nor may it be mounted" if status else None


def _is_reachable() -> bool:
    """Whether another user's process runs this very interpreter, and may start it again."""
    again = "subprocess.run([sys.executable, '-c', ''], check=True)"
    program = f"import subprocess, sys, lockstep_cli.main; {again}; print(sys.base_prefix)"
    done = subprocess.run(
        [*ATTACKER.prefix(), sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
        env=environment(Path("/")),
    )
    return done.returncode == 0 and done.stdout.strip() == sys.base_prefix


def make_reachable() -> None:
    """Where a folder above the interpreter is closed, this process gets a view in which it is open.

    The closed folder is covered by an empty one in a mount namespace of this process; what is
    needed below it is mounted there. Nothing changes for other processes.
    """
    if _is_reachable():
        return
    needed = {
        Path(sys.base_prefix).resolve(),
        Path(sys.prefix).resolve(),
        REPOSITORY.resolve(),
        REPOSITORY.resolve(),
    }
    closed: dict[Path, list[Path]] = {}
    for path in sorted(needed):
        above = [each for each in reversed(path.parents) if not each.stat().st_mode & 0o001]
        if above and not any(path.is_relative_to(each) for each in closed.get(above[0], [])):
            closed.setdefault(above[0], []).append(path)
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        raise OSError("unshare: a mount namespace is refused")
    _run("mount", "--make-rprivate", "/")
    for folder, paths in closed.items():
        stage = Path(tempfile.mkdtemp(prefix="lockstep-stage-"))
        for number, path in enumerate(paths):
            (stage / str(number)).mkdir()
            _run("mount", "--rbind", path, stage / str(number))
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "none", folder)
        for number, path in enumerate(paths):
            path.mkdir(parents=True)
            _run("mount", "--rbind", stage / str(number), path)
    assert _is_reachable(), "other users may not reach this interpreter"


def _run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True)


def start(words: Sequence[str], home: Path, log: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Starts a program whose output goes to a file."""
    with log.open("ab") as file:
        return subprocess.Popen(
            words, stdout=file, stderr=file, cwd="/", env=environment(home), **options
        )
