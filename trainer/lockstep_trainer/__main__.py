"""One rank: ``python -m lockstep_trainer``, as torchrun or ``lockstep run`` starts it.

Exit status: 0 done, 2 bad input, 75 stopped by SIGTERM after a save (start it again), 76 out of
memory, 1 any other error.
"""

import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from lockstep.monitor.memory import out_of_memory_in
from lockstep_cli.options import bad_input
from lockstep_records.events.event import OUT_OF_MEMORY, PREEMPTED
from lockstep_trainer.config import TrainConfig, trainer_flags
from lockstep_trainer.faults.parse import apply_startup_faults
from lockstep_trainer.layout.world import World, world_from
from lockstep_trainer.preflight import check_run
from lockstep_trainer.progress import Summary
from lockstep_trainer.train import train

_BAD_INPUT = 2


@click.command()
@trainer_flags
def run_rank(**flags: Any) -> None:
    """Train as one of the ranks that torchrun started, or as the only rank without torchrun."""
    with bad_input():
        config = TrainConfig(**flags)
        # Twice: the true world decides which startup faults concern this rank.
        world = _read_world(apply_startup_faults(config, _read_world(os.environ)))
        check_run(
            config, world_size=world.size, attempt=world.attempt, checksums=world.local_rank == 0
        )
    summary = _train_or_exit(config, world)
    if summary.stopped_after is not None:
        if world.rank == 0:
            click.echo(
                f"lockstep: stopped as requested, after step {summary.stopped_after}", err=True
            )
        sys.exit(PREEMPTED)
    if world.rank == 0:
        loss = "unknown" if summary.loss is None else f"{summary.loss:.4f}"
        click.echo(
            f"held-out loss {loss} nats per byte, "
            f"unigram entropy {summary.unigram_entropy:.4f} nats per byte"
        )
        if config.summary is not None:
            _write_or_exit(summary, config.summary)


def _write_or_exit(summary: Summary, path: Path) -> None:
    try:
        summary.write(path)
    except OSError as error:
        reason = error.strerror or error
        click.echo(f"lockstep: --summary {path} cannot be written: {reason}", err=True)
        sys.exit(1)


def _train_or_exit(config: TrainConfig, world: World) -> Summary:
    try:
        return train(config, world)
    except (MemoryError, RuntimeError) as error:
        out_of_memory = out_of_memory_in(error)
        if out_of_memory is None:
            raise
        traceback.print_exception(error)
        click.echo(f"lockstep: rank {world.rank} on {world.device} ran {out_of_memory}", err=True)
        # The interpreter sets it for an uncaught error; exit handlers read from it that we failed.
        sys.last_value = error
        sys.exit(OUT_OF_MEMORY)


class _WrongWorldError(click.UsageError):
    """Wrong environment of one rank, which no other rank can report."""


def _read_world(environment: Mapping[str, str]) -> World:
    try:
        return world_from(environment)
    except ValueError as error:
        raise _WrongWorldError(str(error)) from error


def main() -> None:
    """Runs the rank; bad input ends it with exit status 2 and one sentence.

    Rank 0 reports flags for all ranks; each rank reports its own environment.
    """
    try:
        run_rank.main(standalone_mode=False)
    except click.UsageError as error:
        if isinstance(error, _WrongWorldError) or os.environ.get("RANK", "0") in {"0", ""}:
            click.echo(f"lockstep: {error.format_message()}", err=True)
        sys.exit(_BAD_INPUT)


if __name__ == "__main__":
    main()
