"""Runs every query of a board against a Prometheus, as Grafana would for one job."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from lockstep_catalogue.labels import CLUSTER, JOB_ID
from lockstep_dashboards.panel import MAX_SERIES, Board, Panel, Query, View

_POINTS = 120  # a panel of usual width has about as many; Prometheus allows 11,000
_SCRAPES_IN_A_RATE = 4


class CheckError(ValueError):
    """The Prometheus cannot be queried; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """The job and the range of time that are checked.

    Attributes:
        cluster: name of the cluster, or None for all.
        end: seconds since the epoch.
        range_seconds: length of the range, which ends at ``end``.
        scrape_seconds: time between scrapes; rates reach over four of them.
    """

    job_id: str
    cluster: str | None
    end: float
    range_seconds: float
    scrape_seconds: float

    @property
    def step_seconds(self) -> float:
        """Time between two points, at least one scrape."""
        return max(self.range_seconds / _POINTS, self.scrape_seconds)

    @property
    def variables(self) -> Mapping[str, str]:
        """Values of Grafana's variables; longer names first, since one may begin another."""
        rate = self.step_seconds + _SCRAPES_IN_A_RATE * self.scrape_seconds
        return {
            "$__rate_interval": f"{math.ceil(rate)}s",
            "$__interval": f"{math.ceil(self.step_seconds)}s",
            "$__range": f"{math.ceil(self.range_seconds)}s",
            f"${CLUSTER.name}": ".*" if self.cluster is None else _quoted(re.escape(self.cluster)),
            f"${JOB_ID.name}": _quoted(self.job_id),
        }

    def fill(self, expression: str) -> str:
        """An expression with every variable replaced."""
        for name, value in self.variables.items():
            expression = expression.replace(name, value)
        return expression


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of one panel.

    Attributes:
        queries: PromQL with every variable replaced.
        num_series: series with a value within the range.
        problem: empty where there is none.
        remark: why having no series is no problem.
    """

    board: str
    panel: str
    queries: tuple[str, ...]
    num_series: int
    problem: str = ""
    remark: str = ""


def check_board(board: Board, scope: Scope, client: httpx.Client) -> list[Finding]:
    """One finding a panel and annotation.

    Raises:
        CheckError: the server does not answer, or is no Prometheus.
    """
    findings = [_check_panel(board, panel, scope, client) for panel in board.panels]
    for annotation in board.annotations:
        count, problem = _ask(
            Query(expression=annotation.expression), scope, client, is_instant=False
        )
        findings.append(
            Finding(
                board=board.title,
                panel=f"annotation {annotation.title}",
                queries=(scope.fill(annotation.expression),),
                num_series=count,
                problem=problem,
                remark="" if count else "nothing to annotate",
            )
        )
    return findings


def _check_panel(board: Board, panel: Panel, scope: Scope, client: httpx.Client) -> Finding:
    is_instant = panel.view is View.TABLE
    answers = [_ask(query, scope, client, is_instant=is_instant) for query in panel.queries]
    problems = [problem for _, problem in answers if problem]
    empty = any(not count for count, _ in answers)
    total = sum(count for count, _ in answers)
    if not problems and empty and not panel.may_be_empty:
        problems.append("empty")
    if total > MAX_SERIES:
        problems.append(f"more than {MAX_SERIES} series")
    return Finding(
        board=board.title,
        panel=panel.title,
        queries=tuple(scope.fill(query.expression) for query in panel.queries),
        num_series=total,
        problem="; ".join(problems),
        remark=panel.may_be_empty if empty and not problems else "",
    )


def _ask(query: Query, scope: Scope, client: httpx.Client, *, is_instant: bool) -> tuple[int, str]:
    """Number of series with a value, and Prometheus' error; empty where there is none."""
    parameters = {"query": scope.fill(query.expression)}
    if is_instant:
        path, parameters["time"] = "/api/v1/query", f"{scope.end:.3f}"
    else:
        path = "/api/v1/query_range"
        parameters |= {
            "start": f"{scope.end - scope.range_seconds:.3f}",
            "end": f"{scope.end:.3f}",
            "step": f"{scope.step_seconds:.3f}",
        }
    answer = _answer(client, path, parameters)
    if answer.get("status") != "success":
        return 0, f"Prometheus: {answer.get('error', 'no reason given')}"
    return sum(_has_value(series) for series in answer["data"]["result"]), ""


def _answer(client: httpx.Client, path: str, parameters: dict[str, str]) -> dict[str, Any]:
    try:
        response = client.post(path, data=parameters)
        answer = response.json()
    except httpx.HTTPError as error:
        raise CheckError(f"{client.base_url} cannot be queried ({error})") from error
    except ValueError as error:
        raise CheckError(
            f"{client.base_url} does not answer with JSON; is it a Prometheus?"
        ) from error
    if not isinstance(answer, dict) or answer.get("status") not in {"success", "error"}:
        raise CheckError(f"{client.base_url} does not answer as Prometheus does")
    return answer


def _has_value(series: dict[str, Any]) -> bool:
    points = series["values"] if "values" in series else [series["value"]]
    return any(not math.isnan(float(value)) for _, value in points)


def _quoted(text: str) -> str:
    """Text escaped for the quotes of a PromQL string."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
