"""Queries a Prometheus within bounds of bytes and time; every failure is one sentence.

Only what asks a server imports this file: httpx comes with the extras that do so, and takes longer
to import than a small report takes to write.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import httpx

from lockstep_records.text.durations import parse_duration

MAX_ANSWER_BYTES = 256 << 20
MAX_POINTS = 11_000
"""Points of a series beyond which Prometheus refuses a query over a window."""
DEFAULT_SCRAPE_SECONDS = 15.0
_MAX_ERROR_CHARACTERS = 300
_REFUSED = (401, 403)


class PrometheusError(ValueError):
    """The server does not answer, or is not a Prometheus; the text says what to do."""


class QueryError(ValueError):
    """The server refuses one query; the text is its reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One series of an answer: its labels, and pairs of seconds since the epoch and value."""

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]


class Prometheus:
    """A server with Prometheus' query API, with any path prefix, user and password in its URL.

    A malformed one is a PrometheusError; tests replace the network by ``transport``.
    """

    def __init__(
        self, url: str, timeout_seconds: float = 30.0, transport: httpx.BaseTransport | None = None
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise PrometheusError(f"address {url!r} must begin with http:// or https://")
        try:
            self._url = httpx.URL(url.rstrip("/"))
        except httpx.InvalidURL as error:
            raise PrometheusError(
                f"{url!r} is not an address: {error}; give http://HOST:PORT"
            ) from error
        if not self._url.host:
            raise PrometheusError(f"{url!r} names no host; give http://HOST:PORT")
        self._client = httpx.Client(timeout=timeout_seconds, trust_env=False, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    @property
    def address(self) -> str:
        """The address without user and password."""
        return str(self._url.copy_with(username=None, password=None))

    def instant(self, query: str, seconds: float) -> list[Series]:
        """The value of every series at a time; for a range selector, all its samples.

        Raises QueryError where Prometheus refuses the query, PrometheusError where none answers.
        """
        return self._series("query", {"query": query, "time": f"{seconds:.3f}"})

    def over(self, query: str, begin: float, end: float, step_seconds: float) -> list[Series]:
        """The values of every series over a window; raises as ``instant``."""
        window = {**_window(begin, end), "step": f"{step_seconds:.3f}"}
        return self._series("query_range", {"query": query, **window})

    def label_values(self, label: str, selector: str, begin: float, end: float) -> list[str]:
        """Values of a label among the series that match in a window; raises as ``instant``."""
        match = {"match[]": selector} if selector else {}
        values = self._get(f"label/{label}/values", {**_window(begin, end), **match})
        if not isinstance(values, list):
            raise self._foreign()
        return [str(value) for value in values]

    def scrape_seconds(self) -> float:
        """The longest time between two scrapes of its targets; 15 s where it does not say."""
        try:
            targets = self._get("targets", {"state": "active"})["activeTargets"]
            return max(_interval(target["scrapeInterval"]) for target in targets)
        except PrometheusError:
            raise
        except (KeyError, TypeError, ValueError):
            return DEFAULT_SCRAPE_SECONDS

    def _series(self, endpoint: str, form: Mapping[str, str]) -> list[Series]:
        """The series of an answer; a scalar becomes a series without labels."""
        answer = self._read("POST", endpoint, {"data": form})
        try:
            kind, result = answer.get("resultType"), answer["result"]
            if kind == "scalar":
                result = [{"metric": {}, "value": result}]
            if kind != "string" and isinstance(result, list):
                # A native histogram has no values: nothing here reads one.
                return [
                    _read_series(each) for each in result if "values" in each or "value" in each
                ]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._foreign() from error
        if kind == "string":
            raise QueryError("the query yields a string and no series")
        raise self._foreign()

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
            raise PrometheusError(
                f"{self.address} cannot be queried ({reason}); check the address and that"
                " Prometheus runs there"
            ) from error
        if status in _REFUSED:
            raise PrometheusError(
                f"{self.address} refuses with status {status}; give user and password in the"
                " address, as http://USER:PASSWORD@HOST:PORT"
            )
        return self._data(body, status)

    def _body(self, response: httpx.Response) -> bytes:
        body = bytearray()
        for block in response.iter_bytes():
            body += block
            if len(body) > MAX_ANSWER_BYTES:
                raise PrometheusError(
                    f"{self.address} answers with more than {MAX_ANSWER_BYTES:,} bytes;"
                    " take a shorter window"
                )
        return bytes(body)

    def _data(self, body: bytes, status: int) -> Any:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise PrometheusError(
                f"{self.address} does not answer with JSON (status {status}); is it a Prometheus?"
            ) from error
        if not isinstance(answer, dict) or answer.get("status") not in {"success", "error"}:
            raise self._foreign()
        if answer["status"] == "error":
            reason = str(answer.get("error", "no reason given"))
            raise QueryError(f"Prometheus: {reason[:_MAX_ERROR_CHARACTERS]}")
        return answer.get("data")

    def _foreign(self) -> PrometheusError:
        return PrometheusError(f"{self.address} does not answer as Prometheus does")


def _window(begin: float, end: float) -> dict[str, str]:
    return {"start": f"{begin:.3f}", "end": f"{end:.3f}"}


def _read_series(series: Any) -> Series:
    pairs = series["values"] if "values" in series else [series["value"]]
    return Series(
        labels={str(name): str(value) for name, value in series["metric"].items()},
        points=tuple((float(time), float(value)) for time, value in pairs),
    )


def _interval(text: str) -> float:
    """Seconds of Prometheus' spelling of a duration, such as ``1m30s``."""
    return sum(parse_duration(part) for part in re.findall(r"[0-9]+(?:ms|[smhd])", text))
