"""The newest steps of the ranks: who has the most load, and for what the others waited."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lockstep_agent.collector import AnyReading, Reading, Tier
from lockstep_agent.jobs.job_snapshot import JobSnapshot
from lockstep_agent.jobs.page_store import PageStore
from lockstep_catalogue import training as metrics
from lockstep_catalogue.labels import PP, STEP_PHASES
from lockstep_records.page.reader import Page, Values, newest_rows

_NUM_ROWS = 64
_EXTRAS = {"longest_sequence": "sequence_max", "squares": "sequence_squares"}
_HOST = {
    "stopped": "stopped_seconds",
    "collector": "collection_seconds",
    "queued": "run_queue_seconds",
}
_WORK = tuple(phase for phase in STEP_PHASES if phase != "sync")
_MIN_SHARE = 0.02  # of what a rank had more, less is noise and would be a series of its own
_Rows = Mapping[int, list[Values]]


@dataclass(slots=True)
class _Waits:
    """What the ranks of one attempt on this node waited for, since the agent sees it.

    Attributes:
        step: newest step that is counted.
        seconds: of all ranks, by cause.
    """

    start_ns: int
    step: int = -1
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class NewestSteps:
    """Compares the ranks of each job by the newest rows of their pages, which it reads once."""

    name = "newest_steps"
    tier = Tier.TEN_SECONDS

    def __init__(self, pages: PageStore, node: str) -> None:
        self._pages, self._node = pages, node
        self._waits: dict[str, _Waits] = {}
        self._before: dict[str, _Waits] = {}

    def collect(self) -> Iterator[AnyReading]:
        """Of each job the loads of its ranks, and the seconds that they waited by cause."""
        self._before, self._waits = self._waits, {}
        yield from self._pages.readings(self.name, self._job_readings)

    def _job_readings(self, job: JobSnapshot) -> Iterator[AnyReading]:
        running = [page for page in job.newest_pages() if job.is_running(page)]
        if not running:
            return
        labels = (job.cluster, job.job_id, self._node)
        rows = {page.identity["rank"]: newest_rows(page, _NUM_ROWS) for page in running}
        yield from load_readings(labels, rows)
        start_ns = min(page.identity["start_wall_ns"] for page in running)
        waits = self._before.get(job.job_id)
        if waits is None or waits.start_ns != start_ns:
            waits = _Waits(start_ns)
        self._waits[job.job_id] = waits
        _count_waits(waits, running, rows)
        for cause, seconds in sorted(waits.seconds.items()):
            yield Reading(metrics.WAITED_SECONDS, (*labels, cause), seconds)


def load_readings(labels: tuple[str, ...], rows_by_rank: _Rows) -> Iterator[Reading]:
    """Of each load the node's median and its heaviest rank; absent where no rank reports it."""
    for load in ("samples", "tokens", *_EXTRAS):
        means = {
            rank: statistics.fmean(reported)
            for rank, rows in rows_by_rank.items()
            if (reported := _reported(rows, load))
        }
        if not any(means.values()):
            continue
        # Of equal ranks the lowest, so that a healthy job has one series and not each in turn.
        heaviest = max(means, key=lambda rank: (means[rank], -rank))
        heaviest_labels = (*labels, str(heaviest), load)
        yield Reading(metrics.HEAVIEST_LOAD, heaviest_labels, means[heaviest])
        yield Reading(metrics.MEDIAN_LOAD, (*labels, load), statistics.median(means.values()))


def _reported(rows: list[Values], load: str) -> list[float]:
    """A load of the rows that have it."""
    values = (row["extras"][_EXTRAS[load]] if load in _EXTRAS else row[load] for row in rows)
    return [value for value in values if value is not None]


def _count_waits(waits: _Waits, pages: list[Page], rows_by_rank: _Rows) -> None:
    """Adds the steps that all ranks of a group on this node have completed since the last time.

    Ranks wait for those of their pipeline stage. Of more steps than were read the read ones stand
    for all. Whoever exchanges parameters alone waits for nobody.
    """
    newest = waits.step
    groups = defaultdict[int, list[dict[int, Values]]](list)
    for page in pages:
        if not page.periodic["independent_rounds"]:
            by_step = {row["step"]: row for row in rows_by_rank[page.identity["rank"]]}
            groups[page.identity["mesh"].get(PP.name, 0)].append(by_step)
    for ranks in groups.values():
        common = set[int].intersection(*(set(by_step) for by_step in ranks))
        steps = sorted(step for step in common if step > waits.step)
        if len(ranks) < 2 or not steps:  # noqa: PLR2004  # one rank waits for none that is seen
            continue
        begin = waits.step if waits.step >= 0 else steps[0] - 1
        share = max(1.0, (steps[-1] - begin) / len(steps))
        for step in steps:
            for cause, seconds in waits_of_step([by_step[step] for by_step in ranks]).items():
                waits.seconds[cause] += seconds * share
        newest = max(newest, steps[-1])
    waits.step = newest


def waits_of_step(rows: list[Values]) -> dict[str, float]:
    """Seconds that ranks waited for the one that came last in a step, by what that one had more of.

    Who came last waited least. What it had more than the median of the others, by phase and by what
    the host took, shares the waits in proportion; ``unknown`` where it had no more of anything.
    """
    waited = [row["phase_seconds"]["sync"] for row in rows]
    last = min(range(len(rows)), key=waited.__getitem__)
    total = sum(waited) - len(rows) * waited[last]
    owners = [_owners(row) for row in rows]
    others = [owner for index, owner in enumerate(owners) if index != last]
    more = {
        cause: max(0.0, seconds - statistics.median(other[cause] for other in others))
        for cause, seconds in owners[last].items()
    }
    if not total > 0:
        return {}
    parts = {cause: part for cause, part in more.items() if part > _MIN_SHARE * sum(more.values())}
    if not parts:
        return {"unknown": total}
    scale = total / sum(parts.values())
    return {cause: scale * part for cause, part in parts.items()}


def _owners(row: Values) -> dict[str, float]:
    """Work by phase, and what the host took of it by cause: seconds that sum to the work.

    Stops and pauses lie in any phase: they are taken from the phases in proportion, as the account
    of a report does with what it cannot place.
    """
    work = {phase: max(0.0, row["phase_seconds"][phase]) for phase in _WORK}
    left = total = sum(work.values())
    host = {}
    for cause, extra in _HOST.items():
        host[cause] = min(max(row["extras"][extra] or 0.0, 0.0), left)
        left -= host[cause]
    share = left / total if total > 0 else 0.0
    return host | {phase: seconds * share for phase, seconds in work.items()}
