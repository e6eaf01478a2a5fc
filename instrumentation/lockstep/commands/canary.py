"""Proves the way from a training loop to the pager: a tiny loop whose alert is meant and marked."""

import math
import os
import platform
import shutil
import time
from pathlib import Path
from typing import Any

import click

import lockstep
from lockstep_catalogue.vocabulary import CANARY_ALERT, SYNTHETIC_CLASS
from lockstep_cli.options import DurationRange, bad_input, option
from lockstep_cli.signals import until_signal
from lockstep_records.delivery.exchange import Server, ServerError
from lockstep_records.files.jobs import find_root, job_folder
from lockstep_records.text.printable import printable

_STEP_SECONDS = 0.2


@click.command()
@click.option("--dir", "root", type=click.Path(path_type=Path), help="Folder of all jobs.")
@option("--cluster", envvar="LOCKSTEP_CLUSTER", default="local")
@click.option("--alertmanager", "url", help="Wait until its alert is there; default: do not ask.")
@option(
    "--for",
    "run_seconds",
    type=DurationRange(1, 3600),
    default="3m",
    help="How long it trains, and waits at most.",
)
def canary(*, root: Path | None, cluster: str, url: str | None, run_seconds: float) -> int:
    """Train nothing for a while, with one loss that is not a number: TrainCanary must fire.

    The alert reaches the receiver of the watchdog alone. Exit status 1 where it does not come.
    """
    with bad_input():
        server = None if url is None else Server(url, "Alertmanager")
    job_id = f"canary-{platform.node()}-{time.time():.0f}-{os.getpid()}"
    environment = {
        "LOCKSTEP_JOB_ID": job_id,
        "LOCKSTEP_JOB_CLASS": SYNTHETIC_CLASS,
        "LOCKSTEP_CLUSTER": cluster,
        **dict.fromkeys(("RANK", "LOCAL_RANK"), "0"),
        "WORLD_SIZE": "1",
    }
    environment |= {each: os.environ[each] for each in ("LOCKSTEP_NODE",) if each in os.environ}
    root = root or find_root(os.environ)
    monitor = lockstep.attach(root=root, environment=environment)
    if not monitor.enabled:
        raise click.UsageError(f"--dir {root}: no page can be written there; lockstep doctor")
    begin, receivers, trouble = time.monotonic(), "", ""
    # A loss from the first sample on: what counts increases sees nothing.
    loss, poll_seconds = math.nan, begin
    with until_signal():
        while not receivers and time.monotonic() < begin + run_seconds:
            with monitor.phase("forward"):
                time.sleep(_STEP_SECONDS)
            monitor.step(loss=loss, tokens=1)
            loss = 1.0
            if server and time.monotonic() > poll_seconds + 1:
                poll_seconds = time.monotonic()
                receivers, trouble = _receivers(server, job_id)
    monitor.close()
    shutil.rmtree(job_folder(root, job_id), ignore_errors=True)
    if receivers:
        click.echo(f"{job_id}: {CANARY_ALERT} after {time.monotonic() - begin:.0f} s, {receivers}")
    elif server:
        none = f"{server.address} has had no {CANARY_ALERT} for {run_seconds:.0f} s"
        click.echo(f"{job_id}: {trouble or none}", err=True)
    return int(bool(server) and not receivers)


def _receivers(server: Server, job_id: str) -> tuple[str, str]:
    """To whom Alertmanager gives the canary's alert, nobody while it has none; and its trouble."""
    labels = {"alertname": CANARY_ALERT, "job_id": job_id}

    def names(alerts: Any) -> list[str]:
        ours = [each for each in alerts if labels.items() <= each["labels"].items()]
        return sorted({receiver["name"] for each in ours for receiver in each["receivers"]})

    query = [f'filter={name}="{value}"' for name, value in labels.items()]
    try:
        found = server.ask("/api/v2/alerts", names, query)
    except ServerError as error:
        return "", str(error)
    return (printable(f"for {', '.join(found)}") if found else ""), ""
