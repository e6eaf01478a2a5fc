"""Asks a Prometheus, within bounds: few queries, limited points, limited bytes, limited time."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

MAX_BYTES = 1 << 28
MAX_POINTS = 11_000  # a series may have so many in one answer of Prometheus
_TIMEOUT_SECONDS = 30.0

Labels = dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One series of an answer: its labels, and pairs of wall clock seconds and value."""

    labels: Labels
    points: tuple[tuple[float, float], ...]


class Prometheus:
    """A server that speaks Prometheus' query API.

    Args:
        url: where it answers, with any path prefix; a user and password in it are used.
    """

    def __init__(self, url: str) -> None:
        try:
            self._url = httpx.URL(url.rstrip("/"))
        except httpx.InvalidURL as error:
            raise ValueError(f"{url!r} is no address: {error}; give http://HOST:PORT") from error
        if not self._url.host:
            raise ValueError(f"{url!r} names no host; give http://HOST:PORT")
        self._client = httpx.Client(timeout=_TIMEOUT_SECONDS, trust_env=False)

    @property
    def shown(self) -> str:
        """The address without user and password."""
        return str(self._url.copy_with(username=None, password=None))

    def close(self) -> None:
        """Lets go of the connection."""
        self._client.close()

    def instant(self, query: str, at: float) -> list[Series]:
        """The value of every series at a moment; of a range selector, all its samples.

        Raises:
            ValueError: nobody answers, or what answers is no Prometheus.
        """
        return self._ask("query", {"query": query, "time": f"{at:.3f}"})

    def over(self, query: str, begin: float, end: float, step: float) -> list[Series]:
        """The value of every series every ``step`` seconds; raises as ``instant``."""
        window = {"start": f"{begin:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return self._ask("query_range", {"query": query, **window})

    def _ask(self, what: str, form: dict[str, str]) -> list[Series]:
        address = f"{str(self._url).rstrip('/')}/api/v1/{what}"
        try:
            with self._client.stream("POST", address, data=form) as answer:
                body = self._body(answer)
                status = answer.status_code
        except httpx.HTTPError as error:
            raise ValueError(
                f"Prometheus at {self.shown} cannot be asked ({error or type(error).__name__});"
                " check the address"
            ) from error
        try:
            return _result(json.loads(body))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{self.shown} does not answer like a Prometheus (status {status}: {error})"
            ) from error

    def _body(self, answer: httpx.Response) -> bytes:
        body = bytearray()
        for block in answer.iter_bytes():
            body += block
            if len(body) > MAX_BYTES:
                raise ValueError(
                    f"{self.shown} answers with more than {MAX_BYTES:,} bytes; ask for a shorter"
                    " window with --from and --to"
                )
        return bytes(body)


def _result(told: Any) -> list[Series]:
    if told["status"] != "success":
        raise ValueError(str(told["error"])[:200])
    return [_series(one) for one in told["data"]["result"]]


def _series(told: Any) -> Series:
    pairs = told["values"] if "values" in told else [told["value"]]
    return Series(
        labels={str(name): str(value) for name, value in told["metric"].items()},
        points=tuple((float(at), float(value)) for at, value in pairs),
    )


def by_label(found: list[Series], name: str) -> Iterator[tuple[int, Series]]:
    """Series with a label that is a number, such as the rank."""
    for series in found:
        told = series.labels.get(name, "")
        if told.isdecimal() and len(told) < 8:  # noqa: PLR2004  # no job has ten million ranks
            yield int(told), series
