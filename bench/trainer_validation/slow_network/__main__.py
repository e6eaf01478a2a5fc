"""Trains with every rank in its own network namespace, so that a network can be really slow.

``PYTHONPATH=bench python -m trainer_validation.slow_network --ranks 2 --fault slow-network:...``
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import click

from lockstep_cli.options import bad_input
from lockstep_trainer.config import TrainConfig, trainer_flags
from lockstep_trainer.faults.network import LINK
from trainer_validation.slow_network.namespaces import DEVICE, NetworkError, RankNamespace, network

_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.1


@click.command()
@click.option("--ranks", type=click.IntRange(1, 250), default=2, show_default=True, help="Ranks.")
@trainer_flags
def train_in_namespaces(*, ranks: int, **flags: Any) -> int:
    """Train with --ranks ranks, each in its network namespace; needs root and iproute2."""
    from lockstep_trainer.faults.network import NAME, conditions_of  # noqa: PLC0415  # the same
    from lockstep_trainer.faults.parse import parse_all  # noqa: PLC0415  # torch only to run
    from lockstep_trainer.preflight import check_run  # noqa: PLC0415  # the same

    os.environ[LINK] = DEVICE
    with bad_input():
        config = TrainConfig(**flags)
        check_run(config, world_size=ranks)
    slow = [fault for fault in parse_all(config, ranks) if fault.kind == NAME]
    relayed = {
        rank
        for fault in slow
        if conditions_of(fault).need_relay
        for rank in (range(ranks) if fault.rank is None else [fault.rank])
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with network(ranks, relayed=relayed) as namespaces:
        return _run(namespaces, ("-m", "lockstep_trainer", *config.as_arguments()))


def _run(namespaces: Sequence[RankNamespace], program: Sequence[str]) -> int:
    """Exit status: 0 when all ranks succeeded, else that of the first rank that failed."""
    with ExitStack() as cleanup:
        ranks = []
        for namespace in namespaces:
            command = namespace.command(sys.executable, *program)
            ranks.append(subprocess.Popen(command, env={**os.environ, **namespace.environment}))
            cleanup.callback(_end, ranks[-1])
        while any(rank.poll() is None for rank in ranks):
            if failed := [rank.returncode for rank in ranks if rank.returncode]:
                return int(failed[0]) if failed[0] > 0 else 1
            time.sleep(_POLL_SECONDS)
        return max(1 if rank.returncode < 0 else rank.returncode for rank in ranks)


def _end(rank: "subprocess.Popen[bytes]") -> None:
    rank.terminate()
    try:
        rank.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        rank.kill()
        rank.wait()


def main() -> None:
    """Runs the command; bad input and missing privileges end it with one sentence."""
    try:
        code = train_in_namespaces.main(standalone_mode=False)
    except click.UsageError as error:
        click.echo(f"lockstep: {error.format_message()}", err=True)
        code = 2
    except NetworkError as error:
        click.echo(f"lockstep: {error}", err=True)
        code = 2
    sys.exit(code)


if __name__ == "__main__":
    main()
