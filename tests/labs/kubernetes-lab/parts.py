"""The parts of a lab as processes: each has command line, process id and log in the folder."""

import os
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(
    os.environ.get("LOCKSTEP_KUBERNETES_LAB") or Path.home() / ".cache/lockstep-kubernetes-lab"
)
PARTS = ("kine", "apiserver", "controllers", "scheduler", "kwok")  # in the order of their starts
READY_SECONDS = 60
STOP_SECONDS = 20
DRAIN_SECONDS = 2  # the API server waits for watches, which end with it and not before


class LabError(Exception):
    """The lab cannot do what it is asked for."""


def program(name: str) -> str:
    """Return the path of a program that `build.sh` made."""
    path = CACHE / "bin" / name
    if not path.exists():
        raise LabError(f"{path} is missing; run {HERE / 'build.sh'}")
    return str(path)


def find_free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def is_running(folder: Path, name: str) -> bool:
    """Tell whether the process of a part exists."""
    try:
        pid = int((folder / f"{name}.pid").read_text(encoding="utf-8"))
        # A process that ended and was not waited for still has an id.
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            != "Z"
        )
    except (OSError, ValueError):
        return False


def start_part(folder: Path, name: str) -> None:
    """Start a part that does not run, by the command line of `up`; wait until it serves."""
    if is_running(folder, name):
        return
    command = shlex.split((folder / f"{name}.command").read_text(encoding="utf-8"))
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (folder / f"{name}.pid").write_text(str(process.pid), encoding="utf-8")
    if name == "apiserver":
        wait_until_ready(folder)
    if name == "kine":
        wait_for_port(int(command[1].rpartition(":")[2]))


def stop_part(folder: Path, name: str, number: int = signal.SIGTERM) -> None:
    """Stop a part and wait until its process has ended."""
    if is_running(folder, name):
        pid = int((folder / f"{name}.pid").read_text(encoding="utf-8"))
        os.kill(pid, number)
        deadline = time.monotonic() + (DRAIN_SECONDS if name == "apiserver" else STOP_SECONDS)
        while is_running(folder, name):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
    (folder / f"{name}.pid").unlink(missing_ok=True)


def wait_for_port(port: int) -> None:
    """Wait until somebody listens on a port of loopback."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise LabError(f"nobody listens on port {port} after {READY_SECONDS} s")


def kubectl(
    folder: Path, *arguments: str, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run kubectl as the administrator of the lab."""
    command = [program("kubectl"), f"--kubeconfig={folder / 'kubeconfig'}", *arguments]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, timeout=120
    )


def wait_until_ready(folder: Path) -> None:
    """Wait until the API server answers that it is ready."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if kubectl(folder, "get", "--raw", "/readyz", "--request-timeout=5s").returncode == 0:
            return
        if not is_running(folder, "apiserver"):
            break
        time.sleep(0.2)
    raise LabError(f"the API server is not ready; read {folder / 'apiserver.log'}")
