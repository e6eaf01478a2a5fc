"""Queries a Prometheus within bounds: of points, of bytes, and of time."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

MAX_BYTES = 1 << 28
MAX_POINTS = 11_000  # Prometheus refuses range queries with more points per series
_TIMEOUT_SECONDS = 30.0

Labels = dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One series of an answer: its labels, and pairs of wall clock seconds and value."""

    labels: Labels
    points: tuple[tuple[float, float], ...]


class Prometheus:
    """A server with Prometheus' query API.

    Args:
        url: its address with any path prefix; a user and password in it are used.
    """

    def __init__(self, url: str) -> None:
        try:
            self._url = httpx.URL(url.rstrip("/"))
        except httpx.InvalidURL as error:
            raise ValueError(
                f"{url!r} is not an address: {error}; give http://HOST:PORT"
            ) from error
        if not self._url.host:
            raise ValueError(f"{url!r} names no host; give http://HOST:PORT")
        self._client = httpx.Client(timeout=_TIMEOUT_SECONDS, trust_env=False)

    @property
    def address(self) -> str:
        """The address without user and password."""
        return str(self._url.copy_with(username=None, password=None))

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def instant(self, query: str, time: float) -> list[Series]:
        """The value of every series at a time; for a range selector, all its samples.

        Raises:
            ValueError: no server answers, or it is not a Prometheus.
        """
        return self._post("query", {"query": query, "time": f"{time:.3f}"})

    def over(self, query: str, begin: float, end: float, step: float) -> list[Series]:
        """The value of every series every ``step`` seconds; raises as ``instant``."""
        window = {"start": f"{begin:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return self._post("query_range", {"query": query, **window})

    def _post(self, endpoint: str, form: dict[str, str]) -> list[Series]:
        url = f"{str(self._url).rstrip('/')}/api/v1/{endpoint}"
        try:
            with self._client.stream("POST", url, data=form) as response:
                body = self._body(response)
                status = response.status_code
        except httpx.HTTPError as error:
            raise ValueError(
                f"Prometheus at {self.address} cannot be asked ({error or type(error).__name__});"
                " check the address"
            ) from error
        try:
            return _result(json.loads(body))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{self.address} does not answer like a Prometheus (status {status}: {error})"
            ) from error

    def _body(self, response: httpx.Response) -> bytes:
        body = bytearray()
        for block in response.iter_bytes():
            body += block
            if len(body) > MAX_BYTES:
                raise ValueError(
                    f"{self.address} answers with more than {MAX_BYTES:,} bytes; ask for a shorter"
                    " window with --from and --to"
                )
        return bytes(body)


def _result(answer: Any) -> list[Series]:
    if answer["status"] != "success":
        raise ValueError(str(answer["error"])[:200])
    return [_series(result) for result in answer["data"]["result"]]


def _series(result: Any) -> Series:
    pairs = result["values"] if "values" in result else [result["value"]]
    return Series(
        labels={str(name): str(value) for name, value in result["metric"].items()},
        points=tuple((float(time), float(value)) for time, value in pairs),
    )


def list_by_label(answer: list[Series], name: str) -> Iterator[tuple[int, Series]]:
    """Series with a label that is a number, such as the rank, by that number."""
    for series in answer:
        value = series.labels.get(name, "")
        if value.isdecimal() and len(value) < 8:  # noqa: PLR2004  # no job has ten million ranks
            yield int(value), series
