"""An existing dcgm-exporter, taken over under our names, with its traps mended."""

import math
from collections.abc import Callable, Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.exposition.dcgm_names import TWIN_BY_FIELD
from lockstep_agent.sources.exporter_text import Sample, scrape

# what DCGM writes for no value: the last 16 numbers of 64 and of 32 bits, and 2 to the 47th
_BLANKS = ((2.0**63 - 1024, 2.0**63), (2.0**31 - 16, 2.0**31 - 1), (2.0**47, 2.0**47 + 15))


def is_blank(value: float) -> bool:
    """Whether a value stands for none."""
    return math.isnan(value) or any(low <= value <= high for low, high in _BLANKS)


class DcgmExporter:
    """Scrapes a dcgm-exporter; where the driver tells the same series, the driver's stays.

    Left out: blank values, which it serves as numbers; its last Xid, a gauge that never falls
    back; and rows of instances of split GPUs, which would pass for the whole.
    """

    name = "dcgm_exporter"
    tier = Tier.TEN_SECONDS

    def __init__(self, url: str, fetch: Callable[[str], Iterator[Sample]] = scrape) -> None:
        self._url, self._fetch = url, fetch

    def collect(self) -> Iterator[Reading]:
        """Readings in base units.

        Raises:
            OSError: the exporter does not answer.
            ValueError: what it answers is no exposition.
        """
        for sample in self._fetch(self._url):
            twin = TWIN_BY_FIELD.get(sample.name) or TWIN_BY_FIELD.get(  # parsed counters end so
                sample.name.removesuffix("_total")
            )
            index, uuid = sample.labels.get("gpu", ""), sample.labels.get("UUID", "")
            whole = not sample.labels.get("GPU_I_ID")
            named = whole and index.isdigit() and uuid.isprintable()
            if twin and named and not is_blank(sample.value):
                labels = (index, uuid, *twin.label_values)
                yield Reading(twin.metric, labels, sample.value * twin.factor)
