"""What a row may do to its node, its job and the stack, by name.

An action is a function of the scene and of its argument in YAML; ``needs`` names what the machine
must have, a key of ``NEEDS``.
"""

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep_cli.gameday.rows import Row
from lockstep_cli.gameday.scene import Scene

NEEDS: dict[str, tuple[str, Callable[[], bool]]] = {
    "compiler": ("no C compiler for the driver's stub", lambda: shutil.which("cc") is not None),
    "openssl": ("no openssl", lambda: shutil.which("openssl") is not None),
    "root": ("needs root", lambda: os.geteuid() == 0),
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
    """What this machine lacks for a row, in words; empty where nothing."""
    needs = [need for each in row.actions for need in ACTIONS[each.name].needs]
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
    gpus = scene.nodes[argument.get("on", 0)].gpus
    for key, value in argument["set"].items():
        gpus.set(argument["index"], key, value)


@action()
def file(scene: Scene, argument: dict[str, Any]) -> None:
    """Writes files below the node's /sys: ``{PATH: CONTENT}``, or ``null`` to delete one."""
    for path, content in argument.items():
        target = scene.nodes[0].sysfs / path
        if content is None:
            target.unlink()
        else:
            target.write_text(f"{content}\n")


@action()
def kernel(scene: Scene, argument: str) -> None:
    """Appends a line to the node's kernel log."""
    with scene.nodes[0].kernel_log.open("a", encoding="utf-8") as log:
        log.write(argument + "\n")


@action(name="signal")
def send_signal(scene: Scene, argument: dict[str, str]) -> None:
    """Sends a signal: ``{to: job | rank N | agent | prometheus | ..., name: SIGSTOP}``."""
    number = signal.Signals[argument["name"]]
    target, _, index = argument["to"].partition(" ")
    if target == "job":
        pids = [launcher.pid for launcher in scene.launchers if launcher.poll() is None]
    elif target == "rank":
        pids = [p.identity["pid"] for p in scene.pages() if p.identity["rank"] == int(index)]
    elif target == "agent":
        pids = [scene.nodes[int(index or 0)].agent.pid]
    else:
        pids = [scene.stage.server_pid(target)]
    for pid in pids:
        os.kill(pid, number)
