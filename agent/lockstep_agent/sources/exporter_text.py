"""What another exporter serves, parsed; the only file of the agent that knows prometheus_client."""

import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

__all__ = ["Sample", "samples", "scrape"]

_MOST_BYTES = 8 << 20
_TIMEOUT_SECONDS = 2.0


def scrape(url: str) -> Iterator[Sample]:
    """The samples of one scrape.

    Raises:
        OSError: the exporter does not answer.
        ValueError: what it answers is too long or no exposition.
    """
    answer: HTTPResponse
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310  # http only, checked
        body = answer.read(_MOST_BYTES + 1)
    if len(body) > _MOST_BYTES:
        raise ValueError(f"{url} answers more than {_MOST_BYTES} bytes")
    yield from samples(body.decode("utf-8", "replace"))


def samples(text: str) -> Iterator[Sample]:
    """The samples of an exposition.

    Raises:
        ValueError: it is none.
    """
    for family in text_string_to_metric_families(text):
        yield from family.samples
