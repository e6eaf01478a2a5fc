"""Queries a Prometheus for a board, within bounds of bytes and time; errors are sentences."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import httpx

from lockstep_dashboards.snapshot.window import Window
from lockstep_records.durations import parse_duration

MAX_ANSWER_BYTES = 64 << 20
DEFAULT_SCRAPE_SECONDS = 15.0
_TIMEOUT_SECONDS = 30.0
_MAX_ERROR_CHARACTERS = 300
_REFUSED = (401, 403)


class SourceError(ValueError):
    """The Prometheus does not answer, or is none; the text says what to do."""


class QueryError(ValueError):
    """The Prometheus refuses one query; the text is its reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One series: its labels, and a value or None for each point asked for."""

    labels: dict[str, str]
    values: tuple[float | None, ...]


class Source:
    """A server with Prometheus' query API.

    Args:
        url: its address with any path prefix; a user and password in it are sent.
        transport: for tests, in place of the network.

    Raises:
        SourceError: the address is none.
    """

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise SourceError(f"--prometheus {url!r} must begin with http:// or https://")
        try:
            self._url = httpx.URL(url.rstrip("/"))
        except httpx.InvalidURL as error:
            raise SourceError(f"--prometheus {url!r} is not an address: {error}") from error
        if not self._url.host:
            raise SourceError(f"--prometheus {url!r} names no host; give http://HOST:PORT")
        self._client = httpx.Client(timeout=_TIMEOUT_SECONDS, trust_env=False, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    @property
    def address(self) -> str:
        """The address without user and password."""
        return str(self._url.copy_with(username=None, password=None))

    def instant(self, query: str, seconds: float) -> list[Answer]:
        """The value of every series at a time.

        Raises:
            QueryError: Prometheus refuses the query.
            SourceError: no server answers, or it is not a Prometheus.
        """
        answer = self._post("query", {"query": query, "time": f"{seconds:.3f}"})
        return self._answers(answer, "vector", lambda pair: (_number(pair[1]),))

    def over(self, query: str, window: Window) -> list[Answer]:
        """The values of every series over a window; raises as ``instant``."""
        form = {
            "query": query,
            "start": f"{window.begin:.3f}",
            "end": f"{window.end:.3f}",
            "step": f"{window.step_seconds:.3f}",
        }

        def snap_to_grid(pairs: list[Any]) -> tuple[float | None, ...]:
            values: list[float | None] = [None] * window.num_points
            for seconds, value in pairs:
                index = window.index(float(seconds))
                if 0 <= index < len(values):
                    values[index] = _number(value)
            return tuple(values)

        return self._answers(self._post("query_range", form), "matrix", snap_to_grid)

    def label_values(self, label: str, selector: str, window: Window) -> list[str]:
        """Values of a label among the series that match in a window; raises as ``instant``."""
        parameters = {"start": f"{window.begin:.3f}", "end": f"{window.end:.3f}"}
        if selector:
            parameters["match[]"] = selector
        values = self._get(f"label/{label}/values", parameters)
        if not isinstance(values, list):
            raise SourceError(f"{self.address} does not answer as Prometheus does")
        return [str(value) for value in values]

    def scrape_seconds(self) -> float:
        """The longest time between two scrapes of its targets; 15 s where it does not say."""
        try:
            targets = self._get("targets", {"state": "active"})["activeTargets"]
            return max(_interval(target["scrapeInterval"]) for target in targets)
        except (QueryError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, SourceError):
                raise
            return DEFAULT_SCRAPE_SECONDS

    def _answers(
        self, data: Any, kind: str, read_values: Callable[[list[Any]], tuple[float | None, ...]]
    ) -> list[Answer]:
        """The series of an answer; a scalar becomes a series without labels."""
        values_name = "values" if kind == "matrix" else "value"
        try:
            result_type, result = data["resultType"], data["result"]
            if result_type == "scalar" and kind == "vector":
                result_type, result = kind, [{"metric": {}, "value": result}]
            if result_type == kind and not isinstance(result, list):
                raise TypeError(result)  # noqa: TRY301  # one sentence for every wrong answer
            if result_type == kind:
                return [
                    Answer(
                        labels=_labels(series["metric"]), values=read_values(series[values_name])
                    )
                    for series in result
                    # A native histogram has none: nothing here draws one.
                    if values_name in series
                ]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise SourceError(f"{self.address} does not answer as Prometheus does") from error
        raise QueryError(f"the query yields a {result_type} and no {kind}")

    def _post(self, endpoint: str, form: Mapping[str, str]) -> Any:
        return self._read("POST", endpoint, {"data": form})

    def _get(self, endpoint: str, parameters: Mapping[str, str]) -> Any:
        return self._read("GET", endpoint, {"params": parameters})

    def _read(self, method: str, endpoint: str, content: dict[str, Any]) -> Any:
        url = f"{str(self._url).rstrip('/')}/api/v1/{endpoint}"
        try:
            with self._client.stream(method, url, **content) as response:
                body = self._body(response)
                status = response.status_code
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise SourceError(
                f"{self.address} cannot be queried ({reason}); check --prometheus and that it runs"
            ) from error
        if status in _REFUSED:
            raise SourceError(
                f"{self.address} refuses with status {status}; give user and password in the"
                " address, as http://USER:PASSWORD@HOST:PORT"
            )
        return self._data(body, status)

    def _body(self, response: httpx.Response) -> bytes:
        body = bytearray()
        for block in response.iter_bytes():
            body += block
            if len(body) > MAX_ANSWER_BYTES:
                raise SourceError(
                    f"{self.address} answers with more than {MAX_ANSWER_BYTES:,} bytes;"
                    " take a shorter window"
                )
        return bytes(body)

    def _data(self, body: bytes, status: int) -> Any:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise SourceError(
                f"{self.address} does not answer with JSON (status {status}); is it a Prometheus?"
            ) from error
        if not isinstance(answer, dict) or answer.get("status") not in {"success", "error"}:
            raise SourceError(f"{self.address} does not answer as Prometheus does")
        if answer["status"] == "error":
            reason = str(answer.get("error", "no reason given"))
            raise QueryError(f"Prometheus: {reason[:_MAX_ERROR_CHARACTERS]}")
        return answer.get("data")


def _labels(metric: dict[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in metric.items()}


def _number(text: Any) -> float | None:
    """A sample's value; NaN and infinity are no value, for nothing can be drawn there."""
    value = float(text)
    return value if math.isfinite(value) else None


def _interval(text: str) -> float:
    """Seconds of Prometheus' spelling of a duration, such as ``1m30s``."""
    return sum(parse_duration(part) for part in re.findall(r"[0-9]+(?:ms|[smhd])", text))
