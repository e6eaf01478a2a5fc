"""What it saves that a live monitor binds the methods of its recorder instead of delegating.

    .venv/bin/python bench/overhead/binding.py

Ten phases and a step, warm: by the bound methods, and by a Python method in between. The lowest
of many rounds counts, as anything else on the machine only adds.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import click
from pairs import microseconds

import lockstep

_PHASES = ("data", "forward", "backward", "sync", "other", "optimizer", "data", "eval", "data")
_ROUNDS, _STEPS = 60, 2000


class Delegating:
    """A monitor whose methods call those of the recorder."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    def enter_phase(self, phase: str) -> None:
        """Enters a phase."""
        self._recorder.enter_phase(phase)

    def step(self, *, loss: Any = None, tokens: int = 0, samples: int = 0) -> None:
        """Ends a step; ``LiveMonitor.step`` has more arguments to pass on."""
        self._recorder.step(loss=loss, tokens=tokens, samples=samples)


def run_step(monitor: Any) -> None:
    """Ten phases, the last by the step itself."""
    for phase in _PHASES:
        monitor.enter_phase(phase)
    monitor.step(loss=1.5, tokens=1024, samples=8)


@click.command()
def main() -> None:
    """Print microseconds a step, bound and delegated."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # a page is refused elsewhere
        monitor = lockstep.attach(root=Path(folder), environment={"LOCKSTEP_JOB_ID": "binding"})
        assert isinstance(monitor, lockstep.LiveMonitor)
        loops = {"bound": monitor, "delegated": Delegating(monitor.recorder)}
        rounds: dict[str, list[float]] = {name: [] for name in loops}
        for _ in range(_ROUNDS):
            for name, loop in loops.items():
                rounds[name].append(microseconds(partial(run_step, loop), _STEPS))
        monitor.close()
    bound, delegated = min(rounds["bound"]), min(rounds["delegated"])
    click.echo(f"bound {bound:.2f} us, delegated {delegated:.2f} us, {delegated / bound:.2f} times")


if __name__ == "__main__":
    main()
