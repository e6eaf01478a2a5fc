"""The text of a scrape: counters of the store, counts per window and the ledger's own work."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, product

from lockstep_catalogue import Endpoint, Kind, Metric, ledger, metrics_of
from lockstep_ledger.merge.counted import Labels
from lockstep_ledger.store.counters import CounterRow, Series
from lockstep_ledger.store.queries import Limits
from lockstep_ledger.store.windows import SloKey, Target
from lockstep_prometheus.scrape_text import write_head, write_stem

Samples = dict[Series, float]
MAX_CLASSES = 20
"""Classes of jobs whose objectives are counted apart; each costs 180 series."""
FAMILIES = metrics_of(Endpoint.LEDGER)


@dataclass(slots=True)
class Exposition:
    """Renders scrapes.

    A new series is served as 0 for a time, for Prometheus sees no increase in a series whose first
    sample is 1 already. The time begins at its creation, which the store holds, so a restart
    never takes a value back.

    Args:
        hold_seconds: how long, a little more than the longest scrape interval.
    """

    hold_seconds: float
    _stems: dict[Series, str] = field(default_factory=dict)

    def counted(
        self,
        rows: Mapping[Series, CounterRow],
        now_seconds: float,
        bases: Mapping[int, float] | None = None,
    ) -> Samples:
        """Values of the counters as they are served now: what they have grown by since a base."""
        newest, bases = now_seconds - self.hold_seconds, bases or {}
        return {
            series: row.value - bases.get(row.number, 0.0) if row.created <= newest else 0.0
            for series, row in rows.items()
        }

    def render(self, samples: Mapping[Series, float], *, is_openmetrics: bool = False) -> bytes:
        """The text of all families, in the order of the catalogue."""
        by_name: dict[str, list[Series]] = defaultdict(list)
        for series in samples:
            by_name[series[0]].append(series)
        lines: list[str] = []
        for metric in FAMILIES:
            lines.append(write_head(metric, is_openmetrics=is_openmetrics))
            if metric.kind is Kind.HISTOGRAM:
                lines += self._histogram(metric, by_name, samples)
            else:
                lines += [
                    f"{self._stem(metric, series)}{samples[series]!r}"
                    for series in by_name[metric.name]
                ]
        if is_openmetrics:
            lines.append("# EOF")
        return ("\n".join(lines) + "\n").encode()

    def _histogram(
        self, metric: Metric, by_name: Mapping[str, list[Series]], samples: Mapping[Series, float]
    ) -> Iterator[str]:
        """Lines of a histogram: for each combination its buckets, added up, then count and sum."""
        bucket, sum_name, count_name = metric.sample_names
        by_labels: dict[Labels, list[Series]] = defaultdict(list)
        for series in by_name[bucket]:
            by_labels[series[1][:-1]].append(series)
        for labels, row in by_labels.items():
            row.sort(key=lambda series: float(series[1][-1]))
            totals = accumulate(samples[series] for series in row)
            for series, total in zip(row, totals, strict=True):
                yield f"{self._stem(metric, series)}{total!r}"
            for name in (count_name, sum_name):
                yield f"{self._stem(metric, (name, labels))}{samples[name, labels]!r}"

    def _stem(self, metric: Metric, series: Series) -> str:
        """Name and labels of a sample, up to its value; written once."""
        stem = self._stems.get(series)
        if stem is None:
            name, values = series
            names: tuple[str, ...] = metric.label_names
            if len(values) > len(names):
                names = (*names, "le")
            stem = write_stem(name, dict(zip(names, values, strict=True)))
            stem = self._stems[series] = f"{stem} "
        return stem


def histogram(metric: Metric, counts: Iterable[int], total: float) -> Samples:
    """Samples of a histogram without labels, from its number of values in each bucket."""
    bucket, sum_name, count_name = metric.sample_names
    bounds = (*(repr(bound) for bound in metric.buckets), "+Inf")
    numbers = list(counts)
    samples: Samples = {
        (bucket, (bound,)): float(n) for bound, n in zip(bounds, numbers, strict=True)
    }
    return {**samples, (sum_name, ()): total, (count_name, ()): float(sum(numbers))}


def windows(
    slo: Mapping[SloKey, tuple[float, float]],
    jobs: Mapping[tuple[str, str], int],
    clusters: Iterable[str],
) -> Samples:
    """Samples of the counts per window and of jobs by status; what nobody counted is 0."""
    samples: Samples = {}
    counted = _few_classes(slo)
    classes = {(cluster, job_class) for cluster, job_class, *_ in counted}
    for key in product(sorted(classes | {(cluster, "") for cluster in clusters}), ledger.SLOS):
        (cluster, job_class), name = key
        for window in ledger.SLO_WINDOWS:
            counts = counted.get((cluster, job_class, name, window), (0.0, 0.0))
            for event, value in zip(ledger.SLO_EVENT.values, counts, strict=True):
                labels = (cluster, job_class, name, window, event)
                samples[ledger.SLO_EVENTS.name, labels] = float(value)
    for cluster in clusters:
        for status in ledger.JOB_STATUS.values:
            samples[ledger.JOBS.name, (cluster, status)] = float(jobs.get((cluster, status), 0))
    return samples


def _few_classes(slo: Mapping[SloKey, tuple[float, float]]) -> dict[SloKey, tuple[float, float]]:
    """The counts, where classes beyond the first by their names are one: users invent them."""
    names = sorted({job_class for _, job_class, *_ in slo if job_class})
    beyond = set(names[MAX_CLASSES:])
    few: dict[SloKey, tuple[float, float]] = {}
    for (cluster, job_class, name, window), (good, total) in slo.items():
        key = (cluster, "other" if job_class in beyond else job_class, name, window)
        good_before, total_before = few.get(key, (0.0, 0.0))
        few[key] = (good_before + good, total_before + total)
    return few


def promised(targets: Iterable[Target]) -> Samples:
    """Samples of the deadlines and tokens of running jobs."""
    samples: Samples = {}
    for target in targets:
        labels = (target.cluster, target.job_id)
        samples[ledger.JOB_DEADLINE.name, labels] = target.deadline_time
        samples[ledger.JOB_TOKENS.name, labels] = target.tokens
    return samples


def visible(samples: Samples, limits: Limits) -> Samples:
    """The samples for a reader: of his clusters and projects, and of the ledger's own work.

    What names a cluster and no project is left out for a reader of some projects.
    """
    if not limits:
        return samples
    names_of = {name: metric.label_names for metric in FAMILIES for name in metric.sample_names}

    def is_visible(series: Series) -> bool:
        labels = dict(zip(names_of[series[0]], series[1], strict=False))
        return "cluster" not in labels or all(
            labels.get(label) in values for label, values in limits.items()
        )

    return {series: value for series, value in samples.items() if is_visible(series)}


def own_work(version: str, store: str, refusals: Mapping[str, int]) -> Samples:
    """Samples of the ledger's identity and refusals."""
    samples: Samples = {(ledger.LEDGER_INFO.name, (version, store)): 1.0}
    for refusal in ledger.REFUSALS:
        samples[ledger.REFUSED.name, (refusal,)] = float(refusals.get(refusal, 0))
    return samples
