"""What a row may do to its node, its job and the stack, by name.

An action is a function of the scene and of its argument in YAML; ``needs`` names what the machine
must have, a key of ``NEEDS``.
"""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lockstep_cli.gameday.rows import Row, RowError
from lockstep_cli.gameday.scene import Scene
from lockstep_cli.gameday.sweeper import QUOTAS
from lockstep_records.file_access.atomic_file import write_atomically

NEEDS: dict[str, tuple[str, Callable[[], bool]]] = {
    "compiler": ("no C compiler for the driver's stub", lambda: shutil.which("cc") is not None),
    "openssl": ("no openssl", lambda: shutil.which("openssl") is not None),
    "c++": ("no C++ compiler for torch.compile", lambda: shutil.which("c++") is not None),
    "root": ("needs root", lambda: os.geteuid() == 0),
    "quota": (
        "no control groups of version 1 whose quotas can be set",
        lambda: os.access(QUOTAS, os.W_OK),
    ),
}
"""What a machine may lack: the words for it, and whether it is there."""


@dataclass(frozen=True, slots=True)
class ActionKind:
    """An action by its function, and what it needs."""

    perform: Callable[[Scene, Any], None]
    needs: tuple[str, ...] = ()


ACTIONS: dict[str, ActionKind] = {}


def perform(scene: Scene, name: str, argument: Any) -> None:
    """Performs an action of a row."""
    ACTIONS[name].perform(scene, argument)


def missing(row: Row) -> str:
    """What this machine lacks for a row, in words, empty where nothing; RowError for no action."""
    unknown = {each.name for each in row.actions} - set(ACTIONS)
    if unknown:
        raise RowError(f"row {row.row}: no action has the name {', '.join(sorted(unknown))}")
    of_actions = (need for each in row.actions for need in ACTIONS[each.name].needs)
    needs = [*row.needs, *of_actions]
    return "; ".join(dict.fromkeys(NEEDS[need][0] for need in needs if not NEEDS[need][1]()))


_Function = Callable[[Scene, Any], None]


def action(*needs: str, name: str = "") -> Callable[[_Function], _Function]:
    """Registers the function as an action, by its own name or this one."""

    def register(function: _Function) -> _Function:
        ACTIONS[name or function.__name__] = ActionKind(function, needs)
        return function

    return register


@action("compiler")
def gpu(scene: Scene, argument: dict[str, Any]) -> None:
    """Sets answers of the driver: ``{index: 0, set: {KEY: VALUE or null}}``; -1 is the node."""
    gpus = scene.nodes[argument.get("node", 0)].gpus
    for key, value in argument["set"].items():
        gpus.set(argument["index"], key, value)


@action()
def file(scene: Scene, argument: dict[str, Any]) -> None:
    """Writes files below /sys of nodes: ``{nodes: [0, 1], PATH: CONTENT}``; null deletes."""
    for index in argument.get("nodes", [0]):
        for path, content in argument.items():
            target = scene.nodes[index].sysfs / path
            if content is None:
                target.unlink()
            elif path != "nodes":
                target.write_text(f"{content}\n")


@action()
def kernel(scene: Scene, argument: str) -> None:
    """Appends a line to the node's kernel log."""
    with scene.nodes[0].kernel_log.open("a", encoding="utf-8") as log:
        log.write(argument + "\n")


@action()
def cgroup(scene: Scene, argument: dict[str, str]) -> None:
    """Writes files of the ranks' control group as the node's agent sees it: ``{FILE: CONTENT}``."""
    folder = _group(scene)
    for name, content in argument.items():
        write_atomically(folder / name, f"{content}\n")


def _group(scene: Scene) -> Path:
    """The folder of the group of the first rank, below the node's /sys, of version 2."""
    root = scene.nodes[0].sysfs / "fs" / "cgroup"
    membership = Path(f"/proc/{scene.pages()[0].identity['pid']}/cgroup").read_text()
    path = next(line[3:] for line in membership.splitlines() if line.startswith("0::"))
    folder = root / path.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    (root / "cgroup.controllers").write_text("cpu memory\n")
    return folder


@action()
def pressure(scene: Scene, argument: dict[str, Any]) -> None:
    """Has the group wait: ``{resource: cpu, ratio: 0.5}`` of the time from now on."""
    path = _group(scene) / f"{argument['resource']}.pressure"
    is_first = path.name not in scene.variables
    scene.variables[path.name] = argument["ratio"]
    if is_first:
        ended = threading.Event()
        scene.open.callback(ended.set)
        writer = partial(_write_pressure, path, scene.variables, ended)
        threading.Thread(target=writer, daemon=True).start()


def _write_pressure(path: Path, ratios: dict[str, Any], ended: threading.Event) -> None:
    total = 0.0
    while not ended.wait(1.0):
        total += 1e6 * ratios[path.name]
        line = f"avg10=0.00 avg60=0.00 avg300=0.00 total={total:.0f}"
        with suppress(OSError):  # the row's folder is gone
            write_atomically(path, f"some {line}\nfull {line}\n")


@action("quota")
def quota(scene: Scene, argument: dict[str, Any]) -> None:
    """Lets a rank have so much of a processor: ``{rank: 1, cores: 0.1}``."""
    group = QUOTAS / scene.memory.parent.name / scene.row.row
    group.mkdir(parents=True)
    period = int((group / "cpu.cfs_period_us").read_text())
    (group / "cpu.cfs_quota_us").write_text(str(int(period * argument["cores"])))
    for pid in _pids(scene, "rank", str(argument["rank"])):
        (group / "cgroup.procs").write_text(str(pid))


@action("root")
def mount(scene: Scene, argument: dict[str, str]) -> None:
    """Gives the checkpoints a file system of their own: ``{size: 24m}``."""
    folder = scene.memory / "checkpoints"
    folder.mkdir(parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={argument['size']}", "lockstep", folder], check=True
    )
    scene.open.callback(lambda: subprocess.run(["umount", "--lazy", folder], check=False))


@action(name="signal")
def send_signal(scene: Scene, argument: dict[str, str]) -> None:
    """Sends a signal: ``{to: TARGET, name: SIGSTOP}``.

    The target is ``job``, or ``job N`` for the launcher of node N; ``rank N``; ``agent N``;
    ``node N``, which is all of these there; or a server of the stack.
    """
    number = signal.Signals[argument["name"]]
    target, _, index = argument["to"].partition(" ")
    for pid in _pids(scene, target, index):
        os.kill(pid, number)


def _pids(scene: Scene, target: str, index: str) -> list[int]:
    if target == "job":
        launchers = scene.launchers[int(index) :][:1] if index else scene.launchers
        return [launcher.pid for launcher in launchers if launcher.poll() is None]
    if target == "rank":
        pages = [page.identity for page in scene.pages()]
        return [page["pid"] for page in pages if page["rank"] == int(index)]
    if target == "agent":
        return [scene.nodes[int(index or 0)].agent.pid]
    if target == "node":
        name = scene.nodes[int(index)].name
        ranks = [page.identity["pid"] for page in scene.pages() if page.identity["node"] == name]
        return [*_pids(scene, "agent", index), *_pids(scene, "job", index), *ranks]
    return [scene.stage.server_pid(target)]
