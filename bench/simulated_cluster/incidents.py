"""A month, four incidents and a silence: each board's first screen has to show what happened.

``PYTHONPATH=bench python -m simulated_cluster.incidents --out FOLDER`` starts a Prometheus, fills
it, draws the boards at three ranges in both themes, and compares figures with arithmetic.
"""

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from html import unescape
from itertools import chain
from pathlib import Path

import numpy as np

from lockstep_dashboards.layout import BOARDS
from lockstep_dashboards.scope import Scope, open_board
from lockstep_dashboards.snapshot.answers import ask
from lockstep_dashboards.snapshot.command import POINTS, take_screenshot
from lockstep_dashboards.snapshot.page import PageOptions, board_page
from lockstep_prometheus.client import Prometheus

from . import list_series
from .boards_on_cluster import prometheus
from .cluster import Cluster, simulated
from .job_series import JobCourse
from .ledger_series import ended_job
from .month import FLAGS, check_month
from .node_series import node_series
from .remote_write import Samples, send
from .rules import record, shipped_rules

RANGES = {"1h": 3600, "6h": 21_600, "28d": 28 * 86_400}
RANGE_SECONDS, SILENT_SECONDS, HOUR = 1800, 900, 3600
LINKS = {
    "boards": "https://grafana.example",
    "ledger": "https://ledger.example",
    "runbooks": "https://pager.example/runbooks",
}
FIRST_SCREEN_PIXELS = 900
PICTURED = {"slow-rank": ("on-call", "job"), "fabric": ("fabric", "node")}
"""The boards of docs/img and the incidents that they show; executive shows the month."""
# Signs of trouble that the generators count for every series of the catalogue.
_TROUBLES = {"failed", "refused", "dropped", "4xx", "5xx"}
_TROUBLE_COUNTS = tuple(
    "lockstep_ledger_" + name for name in ("refusals_total", "dead_letters", "jobs_aside")
)
_SLO = re.compile(r"slo:|.*_slo|slo_|TrainSLO|cluster_slo")


@dataclass(frozen=True, kw_only=True, slots=True)
class Incident:
    """What happens, and what the first screens have to say.

    Attributes:
        samples: its series over the cluster's times.
        expected: board to texts that its first screen holds, by arithmetic where they are figures.
        below: board to parts of the page, below its first screen.
    """

    name: str
    cluster: Cluster
    samples: Iterator[Samples]
    expected: dict[str, tuple[str, ...]]
    below: dict[str, tuple[str, ...]] = field(default_factory=dict)


def healthy(end: float) -> Cluster:
    """A cluster in which nothing happens."""
    cluster = simulated(end=end, range_seconds=RANGE_SECONDS)
    jobs = tuple(
        replace(job, slow_rank=None, hangs=False, restarts=False, diverges=False)
        for job in cluster.jobs
    )
    return replace(cluster, jobs=jobs, sick=())


def series_of(cluster: Cluster) -> Iterator[Samples]:
    """All series of a cluster whose agents, checkpoints and ledger work."""
    for each in list_series(cluster):
        is_trouble = each.labels["__name__"] in _TROUBLE_COUNTS
        if is_trouble or not _TROUBLES.isdisjoint(each.labels.values()):
            yield Samples(each.labels, 0.0 * each.values)
        else:
            yield each


def slow_rank(end: float) -> Incident:
    """One rank loses 0.4 of a healthy step, so that each step takes 1.4 of it."""
    cluster = healthy(end)
    [first, *others] = cluster.jobs
    rank = first.world_size // 2 + 3
    cluster = replace(cluster, jobs=(replace(first, slow_rank=rank), *others))
    node = next(node for node in first.nodes if rank in first.ranks_of(node))
    pace, steps = f"{100 / 1.4:.2f} %", f"{JobCourse(cluster.jobs[0], cluster).steps[-1]:,.0f}"
    return Incident(
        name="slow-rank",
        cluster=cluster,
        samples=series_of(cluster),
        expected={
            "on-call.json": ("JobLosing", node, str(rank), "backward", "2 critical", pace),
            "job.json": (str(rank), node, "backward", "training", steps),
        },
    )


def _of_nodes(end: float, prefixes: tuple[str, ...]) -> tuple[Cluster, Iterator[Samples]]:
    """A healthy cluster in which the metrics of some prefixes are sick on four nodes."""
    cluster = healthy(end)
    sick = replace(cluster, sick=cluster.jobs[0].nodes[:4])
    bad = (x for x in node_series(sick) if x.labels["__name__"].startswith(prefixes))
    good = (x for x in series_of(cluster) if not x.labels["__name__"].startswith(prefixes))
    return cluster, chain(bad, good)


def fabric(end: float) -> Incident:
    """Ports of four nodes of a job are down."""
    cluster, samples = _of_nodes(end, ("lockstep_" + "fabric_",))
    nodes = cluster.jobs[0].nodes[:4]
    expected = ("ClusterLosing", "1 critical cause", "port: down", *nodes[:2])
    job = ("ClusterLosing",)
    return Incident(
        name="fabric",
        cluster=cluster,
        samples=samples,
        expected={"on-call.json": expected, "job.json": job},
    )


def storage(end: float) -> Incident:
    """The volume of four nodes answers with errors."""
    cluster, samples = _of_nodes(end, ("lockstep_" + "host_storage_", "lockstep_" + "host_volume"))
    expected = ("TrainStorageDegraded", "1 critical cause", "volume: errors")
    return Incident(
        name="storage",
        cluster=cluster,
        samples=samples,
        expected={"on-call.json": expected, "job.json": ("TrainStorageDegraded",)},
    )


def _masked(
    samples: Iterator[Samples], cluster: Cluster, begin: float, ends: Callable[[Samples], bool]
) -> Iterator[Samples]:
    """The samples; of some series those from a time on are absent, and targets are down."""
    later = cluster.times >= begin
    for each in samples:
        if not ends(each):
            yield each
        elif each.labels["__name__"] == "up":
            yield Samples(each.labels, np.where(later, 0.0, each.values))
        else:
            yield Samples(each.labels, np.where(later, np.nan, each.values))


def storm(end: float) -> Incident:
    """Three of four jobs are preempted ten minutes before the end."""
    cluster = healthy(end)
    ended = {job.job_id for job in cluster.jobs[1:]}
    samples = _masked(
        series_of(cluster), cluster, end - 600, lambda each: each.labels.get("job_id") in ended
    )
    return Incident(
        name="storm",
        cluster=cluster,
        samples=chain(
            samples, (ended_job(cluster, job_id, end - 600, "preempted") for job_id in ended)
        ),
        expected={"on-call.json": tuple(ended), "job.json": ("training",)},
        below={"on-call.json": (*(f">{job_id}</a>" for job_id in ended), ">preempted<")},
    )


def silence(end: float) -> Incident:
    """No agent answers for the last 15 minutes; the ledger goes on."""
    cluster = healthy(end)
    begin = end - SILENT_SECONDS
    samples = _masked(
        series_of(cluster), cluster, begin, lambda each: "ledger" not in each.labels["job"]
    )
    number = f"silent {len(cluster.nodes)} of {len(cluster.nodes)}"
    # The last scrape before the silence is a scrape old when it begins.
    since = f"{(SILENT_SECONDS + cluster.scrape_seconds) / 60:.4g} min"
    return Incident(
        name="silence",
        cluster=cluster,
        samples=samples,
        expected={"on-call.json": (number, since), "job.json": ("no rank reports", since)},
    )


INCIDENTS = (slow_rank, fabric, storage, storm, silence)


def write(url: str, incident: Incident) -> int:
    """Fills a Prometheus with an incident and what the rules make of it, objectives aside."""
    rules = [rule for rule in shipped_rules() if not _SLO.match(rule.name)]
    number = send(url, incident.cluster.times, incident.samples)
    return number + record(url, incident.cluster, rules)


def draw(url: str, name: str, end: float, range_seconds: int, theme: str) -> str:
    """The page of a board as it was at a time; of jobs the first one."""
    with Prometheus(url, timeout_seconds=120) as source:
        board = BOARDS[name]
        scope = Scope(
            end=end, range_seconds=range_seconds, scrape_seconds=15, max_points=POINTS,
            chosen={"job_id": ("pretrain-70b",)},
        )  # fmt: skip
        scope = open_board(board, scope, source, strict=False)
        answer = ask(board, board.panels, scope, source)
        return board_page(answer, PageOptions(address=url, theme=theme, bases=LINKS))


def first_screen(page: str) -> str:
    """The words of the sections without a heading, which a window of 900 pixels shows."""
    body = page.partition('<main id="board">')[2]
    before = body.partition("<h2>")[0]
    without = re.sub(r"(?s)<details.*?</details>|<ul class=\"events\".*?</ul>", " ", before)
    labels = " ".join(re.findall(r'aria-label="([^"]*)"', without))
    words = unescape(re.sub(r"(?s)<[^>]*>", " ", without))
    figures = page.partition('id="figures">')[2]
    rows = " ".join(re.findall(r'"rows":\[([^\]]*)\]', figures)[:2])
    return " ".join(f"{words} {labels} {rows}".split())


def missing(page: str, texts: tuple[str, ...]) -> list[str]:
    """The texts that the first screen of a page lacks."""
    words = first_screen(page)
    return [text for text in texts if text not in words]


def run(url: str, out: Path | None, end: float) -> list[str]:
    """Fills, draws and compares; returns what is missing."""
    month_end = end - HOUR * len(INCIDENTS)
    problems = check_month(url, month_end)
    if out is not None:
        picture(url, ("executive",), month_end, RANGES["28d"], out)
    for number, make in enumerate(INCIDENTS):
        at = end - HOUR * (len(INCIDENTS) - 1 - number)
        incident = make(at)
        started = time.monotonic()
        samples = write(url, incident)
        print(f"{incident.name}: {samples} samples in {time.monotonic() - started:.0f} s")
        for board, texts in incident.expected.items():
            for range_name, seconds in RANGES.items():
                for theme in ("light", "dark"):
                    page = draw(url, board, at, seconds, theme)
                    name = f"{incident.name}-{board.removesuffix('.json')}-{range_name}-{theme}"
                    lost = missing(page, texts)
                    lost += [x for x in incident.below.get(board, ()) if x not in page]
                    problems += [f"{name}: {text}" for text in lost]
                    if out is not None:
                        path = out / f"{name}.html"
                        path.write_text(page, encoding="utf-8")
                        if range_name == "1h":
                            take_screenshot(path, path.with_suffix(".png"), FIRST_SCREEN_PIXELS)
        if out is not None and incident.name in PICTURED:
            picture(url, PICTURED[incident.name], at, RANGE_SECONDS, out)
    return problems


def picture(
    url: str, boards: tuple[str, ...], end: float, range_seconds: int, folder: Path
) -> None:
    """The first screens of some boards in both themes, as docs/img has them."""
    for board in boards:
        for theme in ("light", "dark"):
            path = folder / f"board-{board}-{theme}.html"
            path.write_text(draw(url, f"{board}.json", end, range_seconds, theme), "utf-8")
            take_screenshot(path, path.with_suffix(".png"), FIRST_SCREEN_PIXELS)


def main() -> None:
    """Exits with 1 where a first screen lacks what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, prometheus(Path(folder), *FLAGS) as url:
        problems = run(url, options.out, float(int(time.time())))
    print("\n".join(problems) or "every first screen shows what happened")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
