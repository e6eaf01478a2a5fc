"""Proves the way from a training loop to the pager: a tiny loop whose alert is meant and marked."""

import json
import math
import os
import platform
import shutil
import time
from pathlib import Path
from urllib.parse import quote

import click

import lockstep
from lockstep_catalogue.vocabulary import CANARY_ALERT, SYNTHETIC_CLASS
from lockstep_cli.options import DurationRange
from lockstep_cli.signals import until_signal
from lockstep_records.delivery.sender import LedgerAddress, post
from lockstep_records.files.jobs import find_root, job_folder

_STEP_SECONDS = 0.2


@click.command()
@click.option("--dir", "root", type=click.Path(path_type=Path), help="Folder of all jobs.")
@click.option("--cluster", envvar="LOCKSTEP_CLUSTER", default="local", show_default=True)
@click.option(
    "--alertmanager", "url", default="", help="Wait until its alert is there; default: do not ask."
)
@click.option(
    "--for",
    "run_seconds",
    type=DurationRange(1, 3600),
    default="3m",
    show_default=True,
    help="How long it trains, and waits at most.",
)
def canary(*, root: Path | None, cluster: str, url: str, run_seconds: float) -> int:
    """Train nothing for a while, with one loss that is not a number: TrainCanary must fire.

    The alert reaches the receiver of the watchdog alone. Exit status 1 where it does not come.
    """
    job_id = f"canary-{platform.node()}-{time.time():.0f}"
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
    begin, receivers = time.monotonic(), None
    loss, poll_seconds = (
        math.nan,
        begin,
    )  # from the first sample on: what counts increases sees nothing
    with until_signal():
        while receivers is None and time.monotonic() < begin + run_seconds:
            with monitor.phase("forward"):
                time.sleep(_STEP_SECONDS)
            monitor.step(loss=loss, tokens=1)
            loss = 1.0
            if url and time.monotonic() > poll_seconds + 1:
                poll_seconds = time.monotonic()
                receivers = _receivers(url, job_id)
    monitor.close()
    shutil.rmtree(job_folder(root, job_id), ignore_errors=True)
    if receivers is not None:
        click.echo(f"{job_id}: {CANARY_ALERT} after {time.monotonic() - begin:.0f} s, {receivers}")
    elif url:
        click.echo(f"{job_id}: {url} has had no {CANARY_ALERT} for {run_seconds:.0f} s", err=True)
    return int(bool(url) and receivers is None)


def _receivers(url: str, job_id: str) -> str | None:
    """To whom Alertmanager gives the canary's alert; None while it has none."""
    filters = (f'alertname="{CANARY_ALERT}"', f'job_id="{job_id}"')
    query = "&".join(f"filter={quote(each)}" for each in filters)
    try:
        answer = post(LedgerAddress(url=f"{url.rstrip('/')}/api/v2/alerts?{query}"), None)
        found = json.loads(answer.body)
        names = sorted({each["name"] for alert in found for each in alert["receivers"]})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return f"for {', '.join(names)}" if found else None
