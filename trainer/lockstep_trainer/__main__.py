"""One rank: ``python -m lockstep_trainer``, as torchrun or ``lockstep run`` starts it."""

import os
import sys
from typing import Any

import click

from lockstep_trainer.config import TrainConfig, trainer_flags
from lockstep_trainer.preflight import check_run
from lockstep_trainer.train import train
from lockstep_trainer.world import world_from

_BAD_INPUT = 2


@click.command()
@trainer_flags
def run_rank(**flags: Any) -> None:
    """Train as one rank among those that torchrun started; alone when nothing did."""
    try:
        world = world_from(os.environ)
        config = TrainConfig(**flags)
        check_run(
            config,
            world_size=world.size,
            attempt=world.attempt,
            checksums=world.local_rank == 0,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    summary = train(config, world)
    if world.rank == 0:
        loss = "unknown" if summary.loss is None else f"{summary.loss:.4f}"
        click.echo(
            f"held-out loss {loss} nats per byte, "
            f"unigram entropy {summary.unigram_entropy:.4f} nats per byte"
        )
        if config.summary is not None:
            summary.write(config.summary)


def main() -> None:
    """Runs the rank; bad input ends it with exit status 2 and one sentence, from rank 0 alone."""
    try:
        run_rank.main(standalone_mode=False)
    except click.UsageError as error:
        if os.environ.get("RANK", "0") in {"0", ""}:
            click.echo(f"lockstep: {error.format_message()}", err=True)
        sys.exit(_BAD_INPUT)


if __name__ == "__main__":
    main()
