"""Kills ranks at random while they save, again and again, and verifies what each kill leaves.

``PYTHONPATH=bench python -m trainer_validation.checkpoint_soak --kills 200`` starts small jobs one
after the other in the same folder. They only save sharded state, every second job in the
background. In each job one rank gets SIGKILL at a random moment. Then the newest valid checkpoint
must hold what was saved, and must be no older than the last save that any rank reported. Exit
status 1 if one check fails.
"""

import json
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import click

from lockstep_trainer.checkpoints.files import MANIFEST, find_newest
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.layout.world import World
from trainer_validation.forked_ranks import FORKS, end_ranks, free_port
from trainer_validation.saving_rank import save_forever
from trainer_validation.tensors import read_all_tensors

_TIMEOUT_SECONDS = 20.0
_LATEST_KILL_SECONDS = 0.3
_TINY = TrainConfig(layers=2, width=64, heads=2, sequence=32, strategy="fsdp2", steps=10**6)


@dataclass(frozen=True, kw_only=True, slots=True)
class SoakResult:
    """Result of a soak.

    Attributes:
        during_save: kills that left an unfinished checkpoint.
        saved: checkpoints that were committed.
        wrong: violations, one sentence each.
        seconds: duration of the soak.
    """

    kills: int
    during_save: int
    saved: int
    seed: int
    ranks: int
    wrong: tuple[str, ...]
    seconds: float


def soak(root: Path, *, kills: int, seed: int, ranks: int = 2) -> SoakResult:
    """Kills one rank in each of several jobs.

    Args:
        root: an empty folder for the checkpoints.
        kills: number of jobs, each with one kill.
        seed: of victims and moments.
        ranks: of each job.
    """
    start = time.monotonic()
    chance = random.Random(seed)
    wrong: list[str] = []
    during_save = newest_step = 0
    for number in range(kills):
        config = replace(_TINY, checkpoint_dir=root, resume=True, checkpoint_async=number % 2 == 1)
        reported, faults = _run_until_kill(config, ranks, chance)
        unfinished = [path for path in root.glob("step-*") if not (path / MANIFEST).exists()]
        during_save += bool(unfinished)
        newest_step, more_faults = _verify_newest(root, max(reported, newest_step))
        wrong += [f"kill {number + 1}: {fault}" for fault in (*faults, *more_faults)]
        if (number + 1) % 10 == 0:
            click.echo(f"{number + 1} kills, {newest_step} saves, {len(wrong)} wrong", err=True)
    return SoakResult(
        kills=kills,
        during_save=during_save,
        saved=newest_step,
        seed=seed,
        ranks=ranks,
        wrong=tuple(wrong),
        seconds=round(time.monotonic() - start, 1),
    )


def _run_until_kill(
    config: TrainConfig, ranks: int, chance: random.Random
) -> tuple[int, list[str]]:
    """Runs one job until one of its ranks is killed; the last step it reported, and violations."""
    receiver, sender = FORKS.Pipe(duplex=False)
    port = free_port()
    started = [
        FORKS.Process(
            target=save_forever,
            args=(config, World(rank=rank, size=ranks)),
            kwargs={"port": port, "results": sender, "timeout_seconds": _TIMEOUT_SECONDS},
        )
        for rank in range(ranks)
    ]
    try:
        for process in started:
            process.start()
        sender.close()  # else the receiver would never see end of file
        if not receiver.poll(3 * _TIMEOUT_SECONDS):
            return 0, ["the ranks save nothing"]
        saves = _receive(receiver, chance.random() * _LATEST_KILL_SECONDS)
        chance.choice(started).kill()
        saves += _receive(receiver, _TIMEOUT_SECONDS)
        for process in started:
            process.join(_TIMEOUT_SECONDS)
        faults = [f"step {step} was not saved: {failure}" for step, failure in saves if failure]
        if not saves:
            faults.append("the ranks ended before they saved")
        if any(process.is_alive() for process in started):
            faults.append("a rank outlives its peer")
        return max((step for step, failure in saves if not failure), default=0), faults
    finally:
        end_ranks(started)
        receiver.close()


def _receive(receiver: Connection, seconds: float) -> list[tuple[int, str | None]]:
    """The saves reported within some seconds, or until all ranks have ended."""
    deadline, saves = time.monotonic() + seconds, []
    try:
        while receiver.poll(max(0.0, deadline - time.monotonic())):
            saves.append(receiver.recv())
    except EOFError:
        pass
    return saves


def _verify_newest(root: Path, reported: int) -> tuple[int, list[str]]:
    """The step of the newest valid checkpoint, and violations."""
    newest, reasons = find_newest(root)
    if newest is None:
        return 0, [f"no valid checkpoint is left: {reasons}"]
    faults = [reason for reason in reasons if "not finished" not in reason]
    if newest.step < reported:
        faults.append(f"step {reported} was reported as saved and the newest is {newest.step}")
    weights = {
        name: t for name, t in read_all_tensors(newest.path).items() if name.startswith("model.")
    }
    faults += [
        f"{name} of step {newest.step} is another step's"
        for name, tensor in weights.items()
        if not bool((tensor == newest.step).all())
    ]
    return newest.step, faults


@click.command()
@click.option("--kills", type=click.IntRange(1), default=200, show_default=True, help="Kills.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed.")
@click.option(
    "--ranks", type=click.IntRange(2, 64), default=2, show_default=True, help="Ranks of a job."
)
@click.option(
    "--dir",
    "root",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Parent of a temporary folder for the checkpoints; default: the system's.",
)
def command(*, kills: int, seed: int, ranks: int, root: Path | None) -> None:
    """Kill ranks while they save, and print the result as JSON."""
    with tempfile.TemporaryDirectory(prefix="lockstep-soak-", dir=root) as folder:
        result = soak(Path(folder), kills=kills, seed=seed, ranks=ranks)
    click.echo(json.dumps(asdict(result), indent=2))
    if result.wrong:
        sys.exit(1)


if __name__ == "__main__":
    command()
