"""Queries to a Prometheus, with one sentence for each way in which it may not answer."""

from dataclasses import replace
from typing import Any

import httpx

from lockstep_dashboards.panel import Panel, Query, Variable
from lockstep_dashboards.scope import Scope

_UNAUTHORIZED = {401, 403}


class CheckError(ValueError):
    """The Prometheus cannot be queried; the text says why."""


class QueryError(ValueError):
    """Prometheus refuses a query; the text is its own."""


def run_query(panel: Panel, query: Query, scope: Scope, client: httpx.Client) -> list[Any]:
    """The series of a panel's query, as Prometheus writes them.

    Raises:
        CheckError: the server does not answer, or is not a Prometheus.
        QueryError: Prometheus refuses the query.
    """
    if panel.is_instant:
        return run_instant(query.expression, scope, client)
    if panel.max_points:
        scope = replace(scope, max_points=panel.max_points)
    return run_range(query.expression, scope, client)


def run_instant(expression: str, scope: Scope, client: httpx.Client) -> list[Any]:
    """The series at the end of the range; raises as ``run_query``."""
    parameters = {"query": scope.fill(expression), "time": f"{scope.end:.3f}"}
    return _series(_ask(client, "/api/v1/query", parameters), client)


def run_range(expression: str, scope: Scope, client: httpx.Client) -> list[Any]:
    """The series over the range; raises as ``run_query``."""
    parameters = {
        "query": scope.fill(expression),
        "start": f"{scope.start:.3f}",
        "end": f"{scope.end:.3f}",
        "step": f"{scope.step_seconds:.3f}",
    }
    return _series(_ask(client, "/api/v1/query_range", parameters), client)


def offered_values(variable: Variable, scope: Scope, client: httpx.Client) -> list[str]:
    """The values that a variable offers within the range, the last by name first."""
    parameters = {
        "match[]": scope.fill(variable.source),
        "start": f"{scope.start:.3f}",
        "end": f"{scope.end:.3f}",
    }
    path = f"/api/v1/label/{variable.label.name}/values"
    values = _ask(client, path, parameters, method="GET")
    if not isinstance(values, list):
        raise CheckError(f"{_address(client)} does not answer as Prometheus does")
    return sorted(map(str, values), reverse=True)


def samples_of(series: Any) -> list[tuple[float, float]]:
    """Time in seconds since the epoch and value of each sample; the value may be NaN.

    Raises:
        CheckError: it is not a series as Prometheus writes them.
    """
    try:
        points = series["values"] if "values" in series else [series["value"]]
        return [(float(time), float(value)) for time, value in points]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckError(f"{str(series)[:80]!r} is not a series of a Prometheus") from error


def _ask(client: httpx.Client, path: str, parameters: dict[str, str], method: str = "POST") -> Any:
    address = _address(client)
    try:
        if method == "GET":
            response = client.get(path, params=parameters)
        else:
            response = client.post(path, data=parameters)
    except httpx.HTTPError as error:
        raise CheckError(f"{address} cannot be queried ({error})") from error
    if response.status_code in _UNAUTHORIZED:
        raise CheckError(
            f"{address} answers {response.status_code};"
            " give an address that may be queried, such as http://USER:PASSWORD@HOST:9090"
        )
    try:
        answer = response.json()
    except ValueError as error:
        raise CheckError(f"{address} does not answer with JSON; is it a Prometheus?") from error
    if isinstance(answer, dict) and answer.get("status") == "error":
        raise QueryError(f"Prometheus: {answer.get('error', 'no reason given')}")
    is_answer = isinstance(answer, dict) and answer.get("status") == "success" and "data" in answer
    if not is_answer:
        raise CheckError(f"{address} does not answer as Prometheus does")
    return answer["data"]


def _address(client: httpx.Client) -> str:
    # A password is not for the screen.
    return str(client.base_url.copy_with(userinfo=b""))


def _series(data: Any, client: httpx.Client) -> list[Any]:
    if not isinstance(data, dict) or not isinstance(data.get("result"), list):
        raise CheckError(f"{_address(client)} does not answer as Prometheus does")
    return list(data["result"])
