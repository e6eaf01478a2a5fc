"""From the pages of one job on this node to what the GPUs' streams and the bus had to do."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading
from lockstep_catalogue import job_watch as metrics
from lockstep_catalogue.labels import KIND, STEP_PHASES
from lockstep_records.page.reader import Page


def device_totals(labels: tuple[str, ...], pages: list[Page]) -> Iterator[Reading]:
    """Counters: sums over the pages of every attempt; absent where no rank has told any."""
    for kind in KIND.values:
        if size := sum(page.periodic["bus_bytes"][kind] for page in pages):
            yield Reading(metrics.BUS_BYTES, (*labels, kind), size)
    if steps := sum(page.periodic["device_steps"] for page in pages):
        yield Reading(metrics.DEVICE_STEPS, labels, steps)
        for phase in STEP_PHASES:
            seconds = sum(page.periodic["device_seconds"][phase] for page in pages)
            yield Reading(metrics.DEVICE_SECONDS, (*labels, phase), seconds)
