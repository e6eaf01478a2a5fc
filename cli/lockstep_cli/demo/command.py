"""Shows the way from a slow rank to the page and the report, for real, on this machine."""

import random
from pathlib import Path

import click

from lockstep_catalogue.windows import MAX_SCRAPE_SECONDS, ScrapeWindows, spelled
from lockstep_cli.demo.scene import Claims, Scene, Script, Truth, draw_script, judge, read_claims
from lockstep_cli.gameday.stage import Stage, empty
from lockstep_cli.options import DurationRange, option
from lockstep_records.text.printable import printable

PHASES = ("loader", "forward", "backward")


@click.command()
@option(
    "--slow",
    type=click.Choice(["one", "none"]),
    default="one",
    help="Slow one rank down, or none for a healthy run.",
)
@option(
    "--phase",
    type=click.Choice(PHASES),
    default="backward",
    help="Phase in which the rank is slow.",
)
@option(
    "--ranks", type=click.IntRange(2, 16), default=4, help="Ranks of the job, all on this machine."
)
@option(
    "--interval",
    "interval_seconds",
    type=DurationRange(1.0, MAX_SCRAPE_SECONDS),
    default="5s",
    help="Time between scrapes; every window and deadline of the demo follows it.",
)
@click.option("--seed", type=int, help="Seed that draws rank and time; random when left out.")
@option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-out"),
    help="Folder of report, boards, pages and logs; emptied first.",
)
def demo(
    *, slow: str, phase: str, ranks: int, interval_seconds: float, seed: int | None, out: Path
) -> int:
    """Train on this machine, slow one rank down, and check page, verdict and report.

    Rank and time are drawn at random. The judges read rank pages and Prometheus only, never the
    flags. Exit status 0 if page, verdict and report all name the right rank and phase
    (with --slow none: nobody).
    """
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    windows = ScrapeWindows(round(interval_seconds))
    empty(out, "--out", "demo")
    does = "slows one of them down, waits for the page that names it"
    if slow == "none":
        does = "slows none of them down, expects no page"
    click.echo(f"The demo trains {ranks} ranks on this machine, {does} and writes the report.")
    stack = ("--interval", spelled(windows.scrape_seconds), "--group-interval", "10s")
    with Stage(out.resolve(), (), stack=stack, has_ledger=False) as stage:
        scene = Scene(stage, windows)
        chance = random.Random(seed)
        script = draw_script(chance, scene.step_seconds(ranks), ranks, (slow, phase), windows)
        truth = scene.play(script)
        claims = read_claims(out)
    return _print_outcome(script, truth, claims, out, seed)


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
    for sentence, holds in findings.items():
        click.echo(f"  {'ok  ' if holds else 'FAIL'} {sentence}")
    return int(not all(findings.values()))
