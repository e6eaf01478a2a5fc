"""Count everything anew from the stored events and compare."""

import time
from collections.abc import Callable
from typing import Any

import click

from lockstep_cli.options import DurationRange, bad_input
from lockstep_ledger.options import json_option, store_option
from lockstep_ledger.store.database import disposing, explained, open_store
from lockstep_ledger.store.recount import Difference, Waits, differences
from lockstep_ledger.tables import print_json, print_table

_MAX_ROWS = 100


def _wait_option(name: str, default_seconds: float) -> Callable[[Any], Any]:
    return click.option(
        f"--{name}-wait",
        f"{name}_seconds",
        type=DurationRange(),
        default=default_seconds,
        show_default=f"{default_seconds:.0f}s",
        help="As given to serve.",
    )


@click.command()
@store_option
@_wait_option("node", Waits.node_seconds)
@_wait_option("requeue", Waits.requeue_seconds)
@_wait_option("silent", Waits.silent_seconds)
@json_option
def recount(*, store: str, is_json: bool, **waits: float) -> None:
    """Hold jobs, counters, cost and windows against plain SQL over the events.

    Ends with status 1 where something differs; also beside a ledger that runs.
    """
    begin = time.monotonic()
    with bad_input(), disposing(open_store(store, read_only=True)) as engine, explained(engine):
        found = differences(engine, Waits(**waits), time.time())
    if is_json:
        print_json({"differences": [difference._asdict() for difference in found]})
    else:
        _print(found, time.monotonic() - begin)
    raise SystemExit(bool(found))


def _print(found: list[Difference], seconds: float) -> None:
    if found:
        print_table(f"{len(found)} differences", Difference._fields, found[:_MAX_ROWS])
    click.echo(f"recounted in {seconds:.1f} s: {len(found)} differences", err=True)
