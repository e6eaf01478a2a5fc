"""Shows the way from a slow rank to the page and the report, for real, on this machine."""

import random
import shutil
import tempfile
from pathlib import Path

import click

from lockstep_catalogue.windows import MAX_SCRAPE_SECONDS, ScrapeWindows
from lockstep_cli.demo.scene import Claims, Scene, Script, Truth, draw_script, judge, read_claims
from lockstep_cli.options import DurationRange
from lockstep_records.text.printable import printable

PHASES = ("loader", "forward", "backward")


@click.command()
@click.option(
    "--slow",
    type=click.Choice(["one", "none"]),
    default="one",
    show_default=True,
    help="Slow one rank down, or none for a healthy run.",
)
@click.option(
    "--phase",
    type=click.Choice(PHASES),
    default="backward",
    show_default=True,
    help="Phase in which the rank is slow.",
)
@click.option(
    "--ranks",
    type=click.IntRange(2, 16),
    default=4,
    show_default=True,
    help="Ranks of the job, all on this machine.",
)
@click.option(
    "--interval",
    "interval_seconds",
    type=DurationRange(1.0, MAX_SCRAPE_SECONDS),
    default="5s",
    show_default=True,
    help="Time between scrapes; every window and deadline of the demo follows it.",
)
@click.option("--seed", type=int, help="Seed that draws rank and time; random when left out.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-out"),
    show_default=True,
    help="Folder of report, boards, pages and logs; emptied first.",
)
def demo(
    *,
    slow: str,
    phase: str,
    ranks: int,
    interval_seconds: float,
    seed: int | None,
    out: Path,
) -> int:
    """Train on this machine, slow one rank down, and check page, verdict and report.

    Rank and time are drawn at random. The judges read rank pages and Prometheus only, never the
    flags. Exit status 0 if page, verdict and report all name the right rank and phase
    (with --slow none: nobody).
    """
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    windows = ScrapeWindows(round(interval_seconds))
    _empty(out)
    does = "slows one of them down, waits for the page that names it"
    if slow == "none":
        does = "slows none of them down, expects no page"
    click.echo(f"The demo trains {ranks} ranks on this machine, {does} and writes the report.")
    memory = Path(tempfile.mkdtemp(prefix="lockstep-demo-", dir="/dev/shm"))
    try:
        with Scene(out=out.resolve(), root=memory, windows=windows) as scene:
            step_seconds = scene.step_seconds(ranks)
            chance = random.Random(seed)
            script = draw_script(chance, step_seconds, ranks, (slow, phase), windows)
            truth = scene.play(script)
            claims = read_claims(out, scene.job_id)
    finally:
        shutil.rmtree(memory, ignore_errors=True)
    return _print_outcome(script, truth, claims, out, seed)


def _empty(out: Path) -> None:
    marker = out / ".lockstep-demo"
    if out.exists() and any(out.iterdir()) and not marker.exists():
        raise click.UsageError(f"--out {out} holds files that no demo wrote; choose another folder")
    try:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        marker.touch()
    except OSError as error:
        raise click.UsageError(f"--out {out} cannot be written ({error.strerror})") from error


def _print_outcome(script: Script, truth: Truth, claims: Claims, out: Path, seed: int) -> int:
    findings = judge(truth, claims)
    click.echo("")
    click.echo(f"seed {seed}: {script.sentence}")
    for page in claims.pages:
        click.echo(f"  page: {printable(page.sentence)}")
    click.echo(f"  verdict: {printable(claims.headline)}")
    for name in (
        "report.html",
        "report.json",
        "snapshot.html",
        "boards/job.json",
        "stack/pages.jsonl",
        "job",
    ):
        click.echo(f"  {name.partition('.')[0]:<18} {out / name}")
    for finding in findings:
        click.echo(f"  {'ok  ' if finding.holds else 'FAIL'} {finding.sentence}")
    return 0 if all(finding.holds for finding in findings) else 1
