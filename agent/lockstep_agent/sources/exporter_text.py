"""The exposition of another exporter; the only file of the agent with prometheus_client."""

import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

__all__ = ["Sample", "parse_samples", "scrape"]

_MAX_BYTES = 8 << 20
_TIMEOUT_SECONDS = 2.0


def scrape(url: str) -> Iterator[Sample]:
    """The samples of one scrape.

    Raises:
        OSError: the exporter does not answer.
        ValueError: the response is too long or no exposition.
    """
    response: HTTPResponse
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310  # http only, checked
        body = response.read(_MAX_BYTES + 1)
    # one byte more than allowed was read: a body of just the limit is still whole
    if len(body) > _MAX_BYTES:
        raise ValueError(f"{url} answers more than {_MAX_BYTES} bytes")
    yield from parse_samples(body.decode("utf-8", "replace"))


def parse_samples(text: str) -> Iterator[Sample]:
    """The samples of an exposition.

    Raises:
        ValueError: the text is not a valid exposition.
    """
    for family in text_string_to_metric_families(text):
        yield from family.samples
