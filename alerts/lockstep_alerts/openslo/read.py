"""OpenSLO v1 documents as entries of ``objectives:``, where both can say the same.

One objective with a target, a ratio of good or bad to all, a rolling window of 7 or 28 days, and
queries on a counter of the catalogue, or on the counts of an objective as the export writes them.
Everything else is refused with its line, and never half imported.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from lockstep_alerts.checks.selectors import Selector, selectors
from lockstep_alerts.openslo import export
from lockstep_alerts.reading.entry import Fields, SpecError
from lockstep_catalogue.ledger import JOB_CLASS, SLO, WINDOW
from lockstep_catalogue.metric import Kind, Metric, Recorded
from lockstep_catalogue.recorded import BAD_EVENTS, TOTAL_EVENTS

# One selector, summed and as a rate or not: what is counted follows from it alone.
_QUERY = re.compile(
    r"(?:sum\s*)?\(*\s*(?:(?:rate|increase)\s*\()?\s*[a-zA-Z_:][\w:]*(?:\{[^{}]*\})?(?:\[\w+\])?[\s)]*"
)
_PERIODS = {"28d": "28d", "4w": "28d", "7d": "7d", "1w": "7d"}
_LE = "le"
Entry = dict[str, object]


class Document:
    """One document of a file.

    Args:
        path: the file, for refusals.
        fields: its top level.
    """

    def __init__(self, path: Path, fields: Fields) -> None:
        self._path, self._fields = path, fields

    def refuse(self, field: str, remedy: str) -> SpecError:
        """The error for a dotted field, with the line of the deepest part that is there."""
        *_, (line, _) = self._walk(field)
        return SpecError(f"{self._path}:{line}: {field}: {remedy}")

    def get(self, field: str) -> object:
        """The value at a dotted field; None where a part is missing."""
        *_, (_, value) = self._walk(field)
        return value

    def _walk(self, field: str) -> Iterator[tuple[int, object]]:
        """Line and value of each part of a dotted field; a part that is missing has no value."""
        line, value = self._fields.line, cast("object", self._fields)
        for part in field.split("."):
            line = value.lines.get(part, line) if isinstance(value, Fields) else line
            value = value.get(part) if isinstance(value, Fields) else None
            yield line, value

    def annotation(self, field: str) -> str | None:
        """An annotation of the export."""
        notes = self.get("metadata.annotations")
        value = notes.get(export.annotation(field)) if isinstance(notes, Fields) else None
        return value if isinstance(value, str) else None


def entries(path: Path, documents: Sequence[object], measure: str) -> list[Entry]:
    """The entries of a file's documents; classes of jobs become a part of their objective's.

    Args:
        path: the file.
        documents: as ``marks.load_all`` gives them.
        measure: of documents that name none.

    Raises:
        SpecError: a document says something that an entry cannot.
    """
    found: list[Entry] = []
    for fields in documents:
        if not isinstance(fields, Fields):
            raise SpecError(f"{path}: a document must be a mapping with apiVersion, kind and spec")
        document = Document(path, fields)
        if document.get("apiVersion") != export.API_VERSION or document.get("kind") != "SLO":
            raise document.refuse("kind", f"must be an SLO of {export.API_VERSION}")
        entry, job_class = _entry(document, measure)
        if not job_class:
            found.append(entry)
            continue
        of_all_jobs = next((each for each in found if each["slo"] == entry["slo"]), None)
        if of_all_jobs is None:
            raise document.refuse("metadata.name", "the objective of all jobs must come before")
        classes = of_all_jobs.setdefault("job_classes", {})
        assert isinstance(classes, dict)
        classes[job_class] = entry["good_ratio"]
    return found


def _entry(document: Document, measure: str) -> tuple[Entry, str]:
    name = document.get("metadata.name")
    if not isinstance(name, str):
        raise document.refuse("metadata.name", "write the name of the objective")
    counted, job_class = _counted(document, _period(document))
    slo = counted.pop("slo", name.replace("-", "_"))
    camel = "".join(part.capitalize() for part in str(slo).split("_"))
    entry: Entry = {
        "slo": slo,
        "measure": document.annotation(export.MEASURE) or measure,
        "good_ratio": _target(document),
        "bad": document.annotation(export.BAD) or f"bad events of {name}",
        **counted,
    }
    for field in (export.MIN_GPUS, export.MIN_RATIO, export.PAGE_MIN_RATIO):
        if text := document.annotation(field):
            entry[field] = float(text)
    if rates := document.annotation(export.BURN_RATES):
        pairs = (pair.partition("=") for pair in rates.split())
        entry[export.BURN_RATES] = {window: float(rate) for window, _, rate in pairs}
    for field in (export.PAGE, export.TICKET):
        if alert := document.annotation(field):
            entry[field] = alert
    if "counter" in entry and not {export.PAGE, export.TICKET} & set(entry):
        entry[export.TICKET] = f"TrainSLO{camel}"
    return entry, job_class


def _target(document: Document) -> float:
    objectives = document.get("spec.objectives")
    if not isinstance(objectives, list) or len(objectives) != 1:
        raise document.refuse("spec.objectives", "must be one; write a document for each")
    target = objectives[0].get("target") if isinstance(objectives[0], Fields) else None
    percent = objectives[0].get("targetPercent") if isinstance(objectives[0], Fields) else None
    if isinstance(percent, int | float) and target is None:
        target = round(percent / 100, 9)
    if not isinstance(target, int | float) or isinstance(target, bool):
        raise document.refuse("spec.objectives", "needs a target, or a targetPercent")
    if document.get("spec.budgetingMethod") != "Occurrences":
        raise document.refuse(
            "spec.budgetingMethod",
            "only Occurrences can be imported; slices of jobs are objectives of the spec itself",
        )
    return float(target)


def _period(document: Document) -> str:
    windows = document.get("spec.timeWindow")
    window = windows[0] if isinstance(windows, list) and len(windows) == 1 else None
    if not isinstance(window, Fields) or window.get("isRolling") is not True:
        raise document.refuse("spec.timeWindow", "must be one rolling window")
    duration = window.get("duration")
    if duration not in _PERIODS:
        raise document.refuse(
            "spec.timeWindow", f"duration {duration!r} must be one of {', '.join(_PERIODS)}"
        )
    return _PERIODS[str(duration)]


def _counted(document: Document, period: str) -> tuple[Entry, str]:
    """What is counted: fields of the entry, and the class of jobs."""
    at = "spec.indicator.spec.ratioMetric"
    is_bad = document.get(f"{at}.bad") is not None
    total = _selector(document, f"{at}.total")
    part = _selector(document, f"{at}.{'bad' if is_bad else 'good'}")
    if isinstance(total.series, Recorded):
        return _read_recorded(document, at, part, total)
    if is_bad:
        raise document.refuse(f"{at}.bad", "counters are imported by their good events")
    if part.series != total.series:
        raise document.refuse(f"{at}.good", f"must be of the same counter as total, {total.name}")
    every = _labels(total)
    if every.pop(_LE, "+Inf") != "+Inf":
        raise document.refuse(f"{at}.total", "must count all buckets")
    good = {name: value for name, value in _labels(part).items() if every.get(name) != value}
    if not good or any(name not in _labels(part) for name in every):
        raise document.refuse(f"{at}.good", "must be a part of total by one label more")
    assert isinstance(total.series, Metric)
    counted: Entry = {"counter": total.series.name, "good": good, "period": period}
    return ({**counted, "all": every} if every else counted), ""


def _read_recorded(
    document: Document, at: str, part: Selector, total: Selector
) -> tuple[Entry, str]:
    if (part.series, total.series) != (BAD_EVENTS, TOTAL_EVENTS):
        raise document.refuse(at, f"must be {BAD_EVENTS.name} of {TOTAL_EVENTS.name}")
    labels = _labels(total)
    if not {SLO.name, WINDOW.name} <= set(labels) or labels != _labels(part):
        raise document.refuse(at, "bad and total must have the same slo and window")
    return {"slo": labels[SLO.name]}, str(labels.get(JOB_CLASS.name, ""))


def _labels(selector: Selector) -> dict[str, str | list[str]]:
    return {
        name: value.split("|") if operator == "=~" else value
        for name, operator, value in selector.matchers
        if value
    }


def _selector(document: Document, field: str) -> Selector:
    query = document.get(f"{field}.metricSource.spec.query")
    if not isinstance(query, str):
        raise document.refuse(field, "needs metricSource.spec.query in PromQL")
    found = list(selectors(query))
    if len(found) != 1 or not _QUERY.fullmatch(query.strip()):
        raise document.refuse(
            field, "must read one counter of the catalogue, as sum(NAME{...}); docs/metrics.md"
        )
    if any(operator not in {"=", "=~"} for _, operator, _ in found[0].matchers):
        raise document.refuse(field, "matchers must be = or =~")
    series = found[0].series
    if isinstance(series, Metric) and series.kind is Kind.GAUGE:
        raise document.refuse(field, f"{series.name} is a gauge; only counters are counted")
    return found[0]
