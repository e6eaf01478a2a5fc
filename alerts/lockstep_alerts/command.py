"""Generates rules and routes from the alert spec, and checks them."""

import difflib
import inspect
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markdown import Markdown

from lockstep_alerts.alert import Alert
from lockstep_alerts.checks import check, refuse_too_costly, test
from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.joins import causes_of_cluster, causes_of_job
from lockstep_alerts.objectives.conditions import Burn, GpuSecondBurn, SliceWorse
from lockstep_alerts.objectives.objective import Limit, Objective
from lockstep_alerts.output import GENERATED, differing, recorded_expressions, render, write_files
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.routing import read_deployment
from lockstep_alerts.shipped import interval_option, runbooks_path, spec_option, spec_path
from lockstep_alerts.spec import Spec, read_spec
from lockstep_alerts.writers import remark_on, render_for
from lockstep_alerts.writers.formats import read_target, target_options
from lockstep_catalogue import RECORDED
from lockstep_catalogue.foreign import WEIGHT
from lockstep_catalogue.ledger import SLO_WINDOWS
from lockstep_catalogue.metric import Recorded
from lockstep_catalogue.recorded import PERIOD
from lockstep_catalogue.windows import spelled
from lockstep_cli.options import option
from lockstep_prometheus.client import Prometheus
from lockstep_prometheus.promql import selectors
from lockstep_records.text.durations import format_duration

WEEKS_OF_PERIOD = 4
_SEED = 20_260_101
_DELAY_SECONDS = 30.0  # from an end of a job to the count and the evaluation after it
_EPISODE_SECONDS = 6 * 3600.0
# So many bad events in all give a rate of one in a month to a tenth, in half a second.
_MAX_EVENTS, _MAX_MONTHS = 60_000, 600


def false_alerts(
    limits: Sequence[Limit], good_ratio: float, events_per_week: float
) -> tuple[float, int]:
    """Alerts in 28 days at the objective, and over how many simulated months they are counted."""
    period_seconds = SLO_WINDOWS[PERIOD]
    total = WEEKS_OF_PERIOD * events_per_week
    bad_per_month = (1 - good_ratio) * total
    if bad_per_month <= 0:
        return 0.0, 0
    months = max(20, min(_MAX_MONTHS, int(_MAX_EVENTS / bad_per_month)))
    chance = random.Random(_SEED)
    times: list[float] = []
    now, until = 0.0, (months + 1) * period_seconds
    while (now := now + chance.expovariate(bad_per_month / period_seconds)) < until:
        times.append(now)
    least = [
        (SLO_WINDOWS[each.window], each.least_bad(1 - good_ratio, each.events(total)))
        for each in limits
    ]
    num_alerts, last = 0, -_EPISODE_SECONDS
    begins = [0] * len(least)
    for index, moment in enumerate(times):
        for position, (seconds, least_bad) in enumerate(least):
            while times[begins[position]] <= moment + _DELAY_SECONDS - seconds:
                begins[position] += 1
            is_too_many = index + 1 - begins[position] >= least_bad
            # The first month only fills the windows.
            if is_too_many and moment >= period_seconds:
                num_alerts += moment - last > _EPISODE_SECONDS
                last = moment
                break
    return num_alerts / months, months


_WAKES = {
    "critical": "a page: it wakes whoever is on call",
    "warning": "a ticket: somebody looks at it in office hours",
    "info": "nobody: it is context for other alerts",
    "none": "nobody: the monitoring itself uses it",
}
_EVENTS_PER_MONTH = 4
_GROUPED = {
    True: "all pages about one loss are one notification, and nothing keeps a page quiet",
    False: "all of one cluster and name are one notification",
}


def explained(spec: Spec, alert: Alert, runbooks: Path) -> str:
    """The alert as Markdown."""
    runbook = runbooks / f"{alert.name}.md"
    meaning = " ".join(_section(runbook, "Meaning").split()) or alert.summary
    sections = {
        "Fires": [
            *(line for part in alert.condition.parts() for line in _when(spec, alert, part)),
            *_durations(alert),
        ],
        "Reads": list(_series(spec, alert)),
        "How soon": [_deadline(spec, alert)],
        "False alarms": list(_false_alarms(spec, alert, runbooks)),
        "Wakes": [f"{_WAKES[alert.severity]}; {_GROUPED[alert.severity == 'critical']}"],
        "Runbook": [str(runbook)],
    }
    lines = [f"# {alert.name} ({alert.severity})", "", meaning]
    for title, points in sections.items():
        lines += ["", f"## {title}", "", *(f"- {point}" for point in points)]
    return "\n".join(lines) + "\n"


def _section(runbook: Path, title: str) -> str:
    text = runbook.read_text(encoding="utf-8") if runbook.is_file() else ""
    found = re.search(rf"^## {title}\n+(.*?)\n+## ", text, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""


def _when(spec: Spec, alert: Alert, condition: Condition) -> Iterator[str]:
    if isinstance(condition, Burn):
        yield from _explain_events(spec, condition)
    elif isinstance(condition, GpuSecondBurn):
        yield from _explain_gpu_seconds(condition)
    elif isinstance(condition, SliceWorse):
        slo = condition.objective.slo.replace("_", " ")
        yield (
            f"{slo} of a job in the last five minutes below {condition.min_ratio:.0%} of its best "
            "hour of the last day; half an hour of the job has to be there to compare with"
        )
    else:
        # A class without a docstring of its own has that of a base, which says nothing of it.
        own = type(condition).__dict__.get("__doc__") or alert.summary
        sentence = inspect.cleandoc(own).partition("\n\n")[0]
        named: list[str] = []
        if is_dataclass(condition):
            named = [each.name for each in fields(condition)]
        values = {name: getattr(condition, name) for name in named}
        for name, value in values.items():
            sentence = sentence.replace(f"``{name}``", str(value))
        limits = [
            f"{name.replace('_', ' ')} {value}"
            for name, value in values.items()
            if not isinstance(value, tuple | Objective)
        ]
        yield " ".join(sentence.split()) + (f" Limits: {', '.join(limits)}." if limits else "")


def _explain_events(spec: Spec, condition: Burn) -> Iterator[str]:
    total = _EVENTS_PER_MONTH * spec.size.jobs_per_week
    for job_class, good_ratio in condition.objective.goals.items():
        of_class = f" of class {job_class}" if job_class else ""
        for limit in condition.limits:
            least = limit.least_bad(1 - good_ratio, limit.events(total))
            recent = f", one of them in the last {limit.recent}" if limit.recent else ""
            burn = f", and {limit.burn_rate:g} times the budget" if limit.burn_rate else ""
            yield (
                f"{least} or more {condition.objective.bad}{of_class} in {limit.window}{recent}, "
                f"at {spec.size.jobs_per_week:g} events a week: more than {limit.sigmas:g} "
                f"standard deviations and {limit.spare:g} above the mean of a cluster that is at "
                f"{good_ratio:.1%}{burn}"
            )


def _explain_gpu_seconds(condition: GpuSecondBurn) -> Iterator[str]:
    objective = condition.objective
    for job_class, good_ratio in objective.goals.items():
        of_class = f" of class {job_class}" if job_class else ""
        for limit in condition.limits:
            good = 1 - limit.bad_share(1 - good_ratio)
            yield (
                f"less than {good:.1%} good time{of_class} in {limit.window} and in the last "
                f"{limit.recent}: {limit.burn_rate:g} times as fast as {good_ratio:.1%} allows, "
                f"{limit.budget_share():.1%} of the budget of 28 days"
            )
    yield f"nothing below {objective.min_gpus:g} allocated GPUs on average"


def _durations(alert: Alert) -> Iterator[str]:
    if alert.pending:
        yield f"after {alert.pending} without a break"
    if alert.keep_firing:
        yield f"and for {alert.keep_firing} after the last time"


def _series(spec: Spec, alert: Alert) -> Iterator[str]:
    expressions = recorded_expressions(RECORDED, spec)
    rules = {record.name: text for record, text in expressions.items()}
    lines: dict[str, None] = {}
    for read in selectors(alert.condition.expression(spec.windows)):
        if read.series is None:
            continue
        over = f" over {format_duration(read.range_seconds)}" if read.range_seconds else ""
        source = ""
        if isinstance(read.series, Recorded):
            found = selectors(rules[read.name]) if read.name in rules else ()
            names = dict.fromkeys(each.name for each in found if each.series)
            source = f" (recorded from {', '.join(names)})" if names else " (declared by the spec)"
        lines[f"`{read.name}`{over}: {read.series.help}{source}"] = None
    yield from lines


def _deadline(spec: Spec, alert: Alert) -> str:
    seconds = alert.deadline_seconds(spec.windows)
    return (
        f"notified at most {spelled(seconds)} after the limit is passed, at a scrape every "
        f"{spelled(spec.windows.scrape_seconds)} and an evaluation every "
        f"{spelled(alert.evaluation_seconds(spec.windows))}"
    )


def _false_alarms(spec: Spec, alert: Alert, runbooks: Path) -> Iterator[str]:
    for condition in alert.condition.parts():
        yield from _false_alarms_of(spec, condition)
    text = _section(runbooks / f"{alert.name}.md", "False positives")
    points = re.split(r"^- ", text, flags=re.MULTILINE)
    yield from (" ".join(point.split()) for point in points if point.strip())


def _false_alarms_of(spec: Spec, condition: Condition) -> Iterator[str]:
    if isinstance(condition, Burn):
        for job_class, good_ratio in condition.objective.goals.items():
            rate, months = false_alerts(condition.limits, good_ratio, spec.size.jobs_per_week)
            of_class = f" for class {job_class}" if job_class else ""
            yield (
                f"{rate:.2f} times in 28 days{of_class} by chance alone, of a cluster exactly at "
                f"its objective with {spec.size.jobs_per_week:g} events a week ({months} simulated "
                "months)"
            )
    elif isinstance(condition, GpuSecondBurn):
        yield "not simulated: it counts no rare events; the time that it names was lost"


def expected_false_alarms(spec: Spec) -> Iterator[str]:
    """A line for each page on events: how often chance alone brings it."""
    for alert in spec.objective_alerts:
        for condition in alert.condition.parts() if alert.is_page else ():
            yield from (f"{alert.name}: {line}" for line in _false_alarms_of(spec, condition))


def _standing(url: str, moment: float, cluster: str, job_id: str) -> Iterator[str]:
    query = causes_of_job(cluster, job_id) if job_id else causes_of_cluster(cluster)
    with Prometheus(url) as prometheus:
        found = prometheus.instant(query, moment)
    found.sort(key=lambda each: each.labels.get(WEIGHT.name, ""))
    for each in found:
        begin = datetime.fromtimestamp(each.points[-1][1], UTC)
        where = [f"{name} {each.labels[name]}" for name in _PLACES if each.labels.get(name)]
        yield f"{each.labels['alertname']}: {', '.join(where)}, since {begin:%Y-%m-%d %H:%M:%S} UTC"


_PLACES = ("cause", "node", "gpu", "rank", "source")


def _moment(text: str) -> float:
    if text == "now":
        return datetime.now(UTC).timestamp()
    try:
        return datetime.fromisoformat(text).astimezone(UTC).timestamp()
    except ValueError as error:
        remedy = "write now, or a time such as 2026-11-26T03:10:00+00:00"
        raise click.UsageError(f"--at {text!r}: {remedy}") from error


@click.command()
@click.argument("alert")
@click.option("--at", help="List the causes that the page would have carried: now, or a time.")
@click.option("--prometheus", "url", default="http://127.0.0.1:9090", help="Where to ask.")
@click.option("--cluster", default="", help="Cluster of the page.")
@click.option("--job", "job_id", default="", help="Job of the page; without it, of the cluster.")
@spec_option
@interval_option
def explain(
    *,
    alert: str,
    at: str | None,
    url: str,
    cluster: str,
    job_id: str,
    spec: Path | None,
    interval: Duration | None,
) -> None:
    """Say in words when ALERT fires, from which series, how soon, and how often falsely.

    Prints Markdown where the output is not a terminal. With --at it lists the causes that a page
    would have carried at that moment instead.
    """
    read = read_spec(spec or spec_path(), interval)
    by_name: dict[str, list[Alert]] = {}
    for each in read.alerts:
        by_name.setdefault(each.name, []).append(each)
    if alert not in by_name:
        near = difflib.get_close_matches(alert, by_name, 3, 0.4) or sorted(by_name)
        raise click.UsageError(
            f"ALERT {alert!r}: the spec has no such alert; try {', '.join(near)}"
        )
    if at is not None:
        try:
            lines = list(_standing(url, _moment(at), cluster, job_id))
        except ValueError as error:
            raise click.UsageError(f"--prometheus {url}: {error}") from error
        click.echo("\n".join(lines) or "No cause stood then.")
        return
    text = "\n".join(explained(read, each, runbooks_path()) for each in by_name[alert])
    console = Console()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        click.echo(text, nl=False)


_ABSOLUTE = ("https://", "http://")
_DEFAULTS = Delivery()


@click.group()
def alerts() -> None:
    """Generate alert rules and routes from slos.yaml, and check them."""


@alerts.command()
@spec_option
@option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=GENERATED,
    help="Folder that the files are written to.",
)
@interval_option
@option(
    "--runbook-base",
    default=_DEFAULTS.runbook_base,
    help="Prefix of the file name in links to runbooks.",
)
@click.option(
    "--dashboard-base",
    default=_DEFAULTS.dashboard_base,
    help="Prefix of /d/... in links to boards, such as https://grafana.example.",
)
@click.option(
    "--deployment",
    "deployment_file",
    type=click.Path(path_type=Path),
    help="Who is notified, when and from which thresholds on; default: webhooks of lockstep stack.",
)
@target_options
@click.option("--check", "only_compare", is_flag=True, help="Write nothing; exit 1 on differences.")
@click.pass_context
def generate(
    ctx: click.Context,
    /,
    *,
    spec: Path | None,
    out: Path,
    interval: Duration | None,
    runbook_base: str,
    dashboard_base: str,
    deployment_file: Path | None,
    only_compare: bool,
    **of_target: Any,
) -> None:
    """Write the rule files and the Alertmanager configuration."""
    target = read_target(**of_target)
    delivery = Delivery(runbook_base=runbook_base, dashboard_base=dashboard_base)
    deployment = read_deployment(deployment_file) if deployment_file else None
    read = read_spec(spec or spec_path(), interval, deployment_file)
    refuse_too_costly(read)
    files = render_for(target, render(read, delivery, deployment))
    if only_compare:
        stale = differing(out, files)
        for name in stale:
            click.echo(f"{out / name} differs from the spec; run lockstep alerts generate")
        ctx.exit(1 if stale else 0)
    try:
        write_files(out, files)
    except OSError as error:
        raise click.UsageError(f"--out {out}: {error.strerror}; name a writable folder") from error
    for name in files:
        click.echo(out / name)
    for line in expected_false_alarms(read):
        click.echo(line)
    _warn_of_relative_links(delivery)
    if remark := remark_on(target, files):
        click.echo(remark, err=True)


def _warn_of_relative_links(delivery: Delivery) -> None:
    """Says which addresses are missing: a mail or a chat has no page that a link is relative to."""
    bases = {"--runbook-base": delivery.runbook_base, "--dashboard-base": delivery.dashboard_base}
    relative = [flag for flag, base in bases.items() if not base.startswith(_ABSOLUTE)]
    if relative:
        click.echo(
            f"links in pages are relative; give {' and '.join(relative)} an address, such as "
            "https://host/",
            err=True,
        )


@alerts.command("list")
@spec_option
def list_alerts(*, spec: Path | None) -> None:
    """Print the alerts of the spec with their severity."""
    read = read_spec(spec or spec_path(), None)
    for name, severity in sorted({(each.name, each.severity) for each in read.alerts}):
        click.echo(f"{name} ({severity})")


alerts.add_command(check)
alerts.add_command(explain)
alerts.add_command(test)
