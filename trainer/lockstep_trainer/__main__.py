"""One rank: ``python -m lockstep_trainer``, as torchrun or ``lockstep run`` starts it.

Exit status: 0 done, 2 bad input, 75 told to stop and left in good order (start it again), 76 out of
memory, 1 any other error.
"""

import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import click

from lockstep.monitor.out_of_memory import out_of_memory_in
from lockstep_records.events import OUT_OF_MEMORY, PREEMPTED
from lockstep_trainer.config import TrainConfig, trainer_flags
from lockstep_trainer.faults import told_wrong
from lockstep_trainer.preflight import check_run
from lockstep_trainer.progress import Summary
from lockstep_trainer.train import train
from lockstep_trainer.world import World, world_from

_BAD_INPUT = 2


@click.command()
@trainer_flags
def run_rank(**flags: Any) -> None:
    """Train as one rank among those that torchrun started; alone when nothing did."""
    try:
        config = TrainConfig(**flags)
        world = _find_world(told_wrong(config, _find_world(os.environ)))
        check_run(
            config,
            world_size=world.size,
            attempt=world.attempt,
            checksums=world.local_rank == 0,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    summary = _train(config, world)
    if summary.stopped_after is not None:
        if world.rank == 0:
            click.echo(f"lockstep: told to stop, left after step {summary.stopped_after}", err=True)
        sys.exit(PREEMPTED)
    if world.rank == 0:
        loss = "unknown" if summary.loss is None else f"{summary.loss:.4f}"
        click.echo(
            f"held-out loss {loss} nats per byte, "
            f"unigram entropy {summary.unigram_entropy:.4f} nats per byte"
        )
        if config.summary is not None:
            summary.write(config.summary)


def _train(config: TrainConfig, world: World) -> Summary:
    """Trains; running out of memory is named and has an exit status of its own."""
    try:
        return train(config, world)
    except (MemoryError, RuntimeError) as error:
        ran_out = out_of_memory_in(error)
        if ran_out is None:
            raise
        traceback.print_exception(error)
        click.echo(f"lockstep: rank {world.rank} on {world.device} ran {ran_out}", err=True)
        sys.last_value = error  # as for any error that nobody caught: it tells others we failed
        sys.exit(OUT_OF_MEMORY)


class _WrongWorld(click.UsageError):
    """What one rank alone was told wrong, so that it has to speak for itself."""


def _find_world(environment: Mapping[str, str]) -> World:
    try:
        return world_from(environment)
    except ValueError as error:
        raise _WrongWorld(str(error)) from error


def main() -> None:
    """Runs the rank; bad input ends it with exit status 2 and one sentence.

    Rank 0 says it for all, but what one rank was told wrong only that rank knows.
    """
    try:
        run_rank.main(standalone_mode=False)
    except click.UsageError as error:
        if isinstance(error, _WrongWorld) or os.environ.get("RANK", "0") in {"0", ""}:
            click.echo(f"lockstep: {error.format_message()}", err=True)
        sys.exit(_BAD_INPUT)


if __name__ == "__main__":
    main()
