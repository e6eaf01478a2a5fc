"""Kills ranks at random while they save, again and again, and looks what is left each time.

``python -m lockstep_trainer.checkpoints.soak --kills 200`` starts small jobs that do nothing but
save sharded state, one after the other in the same folder, half of them in the background. In each,
one rank gets SIGKILL at a random moment. Then the newest valid checkpoint must hold what was saved,
and must be no older than what any rank was told is saved. Exit status 1 if it is not so once.
"""

import json
import multiprocessing
import random
import socket
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click

from lockstep_trainer.checkpoints import saver
from lockstep_trainer.checkpoints.files import MANIFEST, find_newest
from lockstep_trainer.checkpoints.shards import read_whole
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.world import World

_LIMIT_SECONDS = 20.0
_LATEST_KILL_SECONDS = 0.3
_TINY = TrainConfig(layers=2, width=64, heads=2, sequence=32, strategy="fsdp2", steps=10**6)


@dataclass(frozen=True, kw_only=True, slots=True)
class Soaked:
    """What so many kills did.

    Attributes:
        during_save: kills after which files of a save lay there that was not finished.
        saved: checkpoints that were committed.
        wrong: what must not be, one sentence each.
        seconds: of it all.
    """

    kills: int
    during_save: int
    saved: int
    seed: int
    ranks: int
    wrong: tuple[str, ...]
    seconds: float


def soak(root: Path, *, kills: int, seed: int, ranks: int = 2) -> Soaked:
    """Kills so many ranks, one job after the other.

    Args:
        root: an empty folder.
        kills: how many.
        seed: of who is killed and when.
        ranks: of a job.
    """
    began = time.monotonic()
    chance = random.Random(seed)
    start = multiprocessing.get_context("forkserver")  # loads torch once for all jobs
    start.set_forkserver_preload([saver.__name__])
    wrong: list[str] = []
    during_save = newest_step = 0
    for number in range(kills):
        config = replace(_TINY, checkpoint_dir=root, resume=True, checkpoint_async=number % 2 == 1)
        told, faults = _kill_one_of(start, config, ranks, chance)
        unfinished = [path for path in root.glob("step-*") if not (path / MANIFEST).exists()]
        during_save += bool(unfinished)
        newest_step, more = _look(root, max(told, newest_step))
        wrong += [f"kill {number + 1}: {fault}" for fault in (*faults, *more)]
        if (number + 1) % 10 == 0:
            click.echo(f"{number + 1} kills, {newest_step} saves, {len(wrong)} wrong", err=True)
    return Soaked(
        kills=kills,
        during_save=during_save,
        saved=newest_step,
        seed=seed,
        ranks=ranks,
        wrong=tuple(wrong),
        seconds=round(time.monotonic() - began, 1),
    )


def _kill_one_of(
    start: Any, config: TrainConfig, ranks: int, chance: random.Random
) -> tuple[int, list[str]]:
    """Runs one job until one of its ranks is killed; last step told to be saved, what is wrong."""
    hear, tell = start.Pipe(duplex=False)
    port = _free_port()
    started = [
        start.Process(
            target=saver.save_for_ever,
            args=(config, World(rank=rank, size=ranks)),
            kwargs={"port": port, "told": tell, "limit_seconds": _LIMIT_SECONDS},
        )
        for rank in range(ranks)
    ]
    try:
        for process in started:
            process.start()
        tell.close()
        if not hear.poll(3 * _LIMIT_SECONDS):
            return 0, ["the ranks save nothing"]
        heard = _hear(hear, chance.random() * _LATEST_KILL_SECONDS)
        chance.choice(started).kill()
        heard += _hear(hear, _LIMIT_SECONDS)
        for process in started:
            process.join(_LIMIT_SECONDS)
        faults = [f"step {step} was not saved: {failure}" for step, failure in heard if failure]
        if not heard:
            faults.append("the ranks ended before they saved")
        if any(process.is_alive() for process in started):
            faults.append("a rank outlives its peer")
        return max((step for step, failure in heard if not failure), default=0), faults
    finally:
        for process in started:
            process.kill()
            process.join()
        hear.close()


def _hear(hear: Connection, seconds: float) -> list[tuple[int, str | None]]:
    """What is told within so many seconds, or until nobody is left to tell."""
    until, heard = time.monotonic() + seconds, []
    try:
        while hear.poll(max(0.0, until - time.monotonic())):
            heard.append(hear.recv())
    except EOFError:
        pass
    return heard


def _look(root: Path, told: int) -> tuple[int, list[str]]:
    """The step of the newest valid checkpoint, and what is wrong with it."""
    newest, passed_over = find_newest(root)
    if newest is None:
        return 0, [f"no valid checkpoint is left: {passed_over}"]
    faults = [reason for reason in passed_over if "not finished" not in reason]
    if newest.step < told:
        faults.append(f"step {told} was told to be saved and the newest is {newest.step}")
    weights = {name: t for name, t in read_whole(newest.path).items() if name.startswith("model.")}
    faults += [
        f"{name} of step {newest.step} is another step's"
        for name, tensor in weights.items()
        if not bool((tensor == newest.step).all())
    ]
    return newest.step, faults


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@click.command()
@click.option("--kills", type=click.IntRange(1), default=200, show_default=True, help="How many.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the chance.")
@click.option("--ranks", type=click.IntRange(2, 64), default=2, show_default=True, help="In a job.")
@click.option(
    "--dir",
    "root",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Where to make a folder for the checkpoints; the system's place for such by default.",
)
def command(*, kills: int, seed: int, ranks: int, root: Path | None) -> None:
    """Kill ranks while they save, and print what was left as JSON."""
    with tempfile.TemporaryDirectory(prefix="lockstep-soak-", dir=root) as folder:
        soaked = soak(Path(folder), kills=kills, seed=seed, ranks=ranks)
    click.echo(json.dumps(asdict(soaked), indent=2))
    if soaked.wrong:
        sys.exit(1)


if __name__ == "__main__":
    command()
