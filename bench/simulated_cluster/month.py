"""28 days of the ledger's series: the executive board's figures against arithmetic.

A sample every five minutes, as a Prometheus that keeps months thins them; what the rules of
objectives record of them is computed by Prometheus.
"""

import re
import time
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from lockstep_catalogue import ledger
from lockstep_dashboards.layout import BOARDS
from lockstep_dashboards.scope import Scope, open_board
from lockstep_dashboards.snapshot.answers import BoardAnswer, ask
from lockstep_dashboards.snapshot.command import POINTS
from lockstep_dashboards.snapshot.views import value_text
from lockstep_prometheus.client import Prometheus

from .cluster import Cluster, Values, simulated
from .ledger_series import ledger_series
from .remote_write import Samples, send
from .rules import Rule, record, shipped_rules

RANGE_SECONDS, SAMPLE_SECONDS = 28 * 86_400, 300
FLAGS = ("--storage.tsdb.min-block-duration=60d", "--storage.tsdb.max-block-duration=60d")
"""Of a Prometheus that takes a month of one series after that of another."""
_NAME = re.compile(r"[a-zA-Z_:][\w:]*")


def month(end: float) -> Cluster:
    """A cluster whose scrapes are five minutes apart, over 28 days and an hour."""
    seconds = RANGE_SECONDS + 3600
    cluster = simulated(end=end, range_seconds=seconds, scrape_seconds=SAMPLE_SECONDS)
    return replace(cluster, sick=())


def rules_of_the_board() -> list[Rule]:
    """The recorded series that the executive board opens with, each after those that it reads."""
    rules = [rule for rule in shipped_rules() if not rule.is_alert]
    panels = BOARDS["executive.json"].opened_panels
    read = {name for each in panels for x in each.queries for name in _NAME.findall(x.expression)}
    chosen: list[Rule] = []
    for rule in reversed(rules):
        if rule.name in read:
            chosen.insert(0, rule)
            read.update(_NAME.findall(rule.expression))
    return chosen


def write_month(url: str, cluster: Cluster) -> tuple[int, list[Samples]]:
    """Fills a Prometheus; returns the number of samples, and the ledger's series."""
    series = list(ledger_series(cluster))
    number = send(url, cluster.times, series)
    scope = month_scope(float(cluster.times[-1]))
    # What rules record is read at the points of the graphs and at the end alone.
    times: Values = np.arange(scope.num_points, dtype=np.float64) * scope.step_seconds
    points = replace(cluster, times=times + scope.start, scrape_seconds=round(scope.step_seconds))
    rules = rules_of_the_board()
    for each in (points, replace(cluster, times=cluster.times[-2:])):
        number += record(url, each, rules)
    return number, series


def month_scope(end: float) -> Scope:
    """The 28 days up to a time."""
    return Scope(
        end=end, range_seconds=RANGE_SECONDS, scrape_seconds=SAMPLE_SECONDS, max_points=POINTS
    )


def grown(series: Iterable[Samples], cluster: Cluster, name: str, **labels: str) -> float:
    """How much the counters of a name and some labels grew in the 28 days, without Prometheus."""
    first = int(np.searchsorted(cluster.times, cluster.times[-1] - RANGE_SECONDS))
    return sum(
        float(each.values[-1] - each.values[first])
        for each in series
        if each.labels["__name__"] == name
        and all(each.labels.get(key) == value for key, value in labels.items())
    )


def counted(series: Iterable[Samples], slo: str) -> float:
    """The share of good events of an objective in its 28 days."""
    labels = {"__name__": ledger.SLO_EVENTS.name, "slo": slo, "window": "28d"}
    sums = {"good": 0.0, "total": 0.0}
    for each in series:
        if labels.items() <= each.labels.items():
            sums[each.labels["slo_event"]] += float(each.values[-1])
    return sums["good"] / sums["total"]


def expected_figures(series: list[Samples], cluster: Cluster) -> dict[str, list[str]]:
    """Figures by the title of the panel that has to show them."""

    def hours(**labels: str) -> float:
        return grown(series, cluster, ledger.GPU_SECONDS.name, **labels) / 3600

    def spend(**labels: str) -> float:
        return grown(series, cluster, ledger.COST.name, **labels)

    def finished(**labels: str) -> float:
        return grown(series, cluster, ledger.JOBS_FINISHED.name, **labels)

    used = hours(goodput="productive") + hours(goodput="evaluation")
    language = {"project": "language", "job_class": "pretraining"}
    idle, every = hours(goodput="idle"), hours()
    success = finished(**language, job_outcome="succeeded") / finished(**language)
    return {
        "Job success": [value_text(counted(series, "job_success"), "percentunit")],
        "Goodput": [value_text(counted(series, "goodput"), "percentunit")],
        "Deadlines met": [value_text(counted(series, "time_to_complete"), "percentunit")],
        "GPU hours and waste": [value_text(x, "short") for x in (every, every - used)],
        "Spend": [value_text(spend(currency="EUR"), "short")],
        "Where the money went": [
            value_text(x, "short") for x in (idle, idle / every * spend(currency="EUR"))
        ],
        "Projects by class": [
            value_text(hours(**language), "short"),
            value_text(spend(**language, currency="EUR"), "short"),
            value_text(success, "percentunit"),
        ],
    }


def value_texts(answer: BoardAnswer, title: str) -> list[str]:
    """The texts of all values of a panel."""
    [panel] = [each for each in answer.panels if each.panel.title == title]
    queries = panel.panel.queries
    return [
        value_text(frame.last, queries[frame.number].unit or panel.panel.unit, panel.panel.decimals)
        for frame in panel.frames
        if frame.last is not None
    ]


def open_executive(url: str, end: float) -> BoardAnswer:
    """What the board's opened panels show over 28 days."""
    board = BOARDS["executive.json"]
    with Prometheus(url, timeout_seconds=120) as source:
        started = time.monotonic()
        answer = ask(
            board, board.opened_panels, open_board(board, month_scope(end), source), source
        )
        print(f"executive at 28 d opens in {time.monotonic() - started:.2f} s")
    return answer


def check_month(url: str, end: float) -> list[str]:
    """Fills 28 days up to a time; what the executive board shows wrongly."""
    started, cluster = time.monotonic(), month(end)
    number, series = write_month(url, cluster)
    print(f"28 days: {number} samples in {time.monotonic() - started:.0f} s")
    answer = open_executive(url, float(cluster.times[-1]))
    problems: list[str] = []
    figures = expected_figures(series, cluster)
    for title, texts in figures.items():
        values = value_texts(answer, title)
        problems += [
            f"executive: {title}: {x} is not in {values}" for x in texts if x not in values
        ]
    print(f"{sum(map(len, figures.values()))} figures compared with arithmetic")
    return problems
