"""Re-exports a dcgm-exporter's series in base units under Lockstep's names."""

import math
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPResponse

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.exposition.dcgm_names import TWIN_BY_FIELD

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
    """The samples of an exposition; ValueError where the text is not a valid exposition."""
    for family in text_string_to_metric_families(text):
        yield from family.samples


# DCGM's numbers for no value: the last of 64 and of 32 bits, and those from 2 to the 47th on
_BLANKS = ((2.0**63 - 1024, 2.0**63), (2.0**31 - 16, 2.0**31 - 1), (2.0**47, 2.0**47 + 15))


def is_blank(value: float) -> bool:
    """Whether a value is one of DCGM's numbers for no value."""
    return math.isnan(value) or any(low <= value <= high for low, high in _BLANKS)


class DcgmExporter:
    """Scrapes a dcgm-exporter; a series that the driver reports too is the driver's.

    Left out: blank values, which the exporter serves as numbers; its last Xid, a gauge that never
    returns to 0; and rows of MIG instances, which would pass for those of the entire GPU.
    """

    name = "dcgm_exporter"
    tier = Tier.TEN_SECONDS

    def __init__(self, url: str, fetch: Callable[[str], Iterator[Sample]] = scrape) -> None:
        self._url, self._fetch = url, fetch

    def collect(self) -> Iterator[Reading]:
        """Readings in base units.

        Raises:
            OSError: the exporter does not answer.
            ValueError: its answer is not a valid exposition.
        """
        # its last Xid would be a gauge that shows neither a second event nor an end
        # (https://github.com/NVIDIA/dcgm-exporter/issues/500)
        for sample in self._fetch(self._url):
            # the parser appends _total to the names of counters
            twin = TWIN_BY_FIELD.get(sample.name) or TWIN_BY_FIELD.get(
                sample.name.removesuffix("_total")
            )
            index, uuid = sample.labels.get("gpu", ""), sample.labels.get("UUID", "")
            is_entire_gpu = not sample.labels.get("GPU_I_ID")
            is_labelled = is_entire_gpu and index.isdigit() and uuid.isprintable()
            if twin and is_labelled and not is_blank(sample.value):
                labels = (index, uuid, *twin.label_values)
                yield Reading(twin.metric, labels, sample.value * twin.factor)
