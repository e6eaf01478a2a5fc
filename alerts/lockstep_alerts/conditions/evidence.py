"""Templates by which an alert asks Prometheus what it is about, when it is notified."""

import re

from lockstep_alerts.conditions.joins import RANK_LABELS
from lockstep_catalogue.labels import NAMESPACE, POD
from lockstep_catalogue.metric import Label
from lockstep_catalogue.training import RANK_INFO

_SERIES_LABEL = re.compile(r"\$series\.Labels\.([a-z_]+)")


def listing(
    query: str,
    item: str,
    *labels: Label,
    before: str = "",
    most: int = 8,
    order: Label | None = None,
    end: str = ".{{ end }}",
) -> str:
    """A Prometheus template: the series of a query, one phrase each; nothing where there are none.

    Args:
        query: PromQL with ``%[1]s`` and so on for the values of the labels.
        item: the phrase, a template over ``$series``, which begins with one of its labels: the
            series come in the order of that label.
        labels: of the alert, in the order of the query's numbers.
        before: words before the first.
        most: as many are named.
        order: label in whose order they come; that label where it is None.
        end: of the sentence and of the template; empty where an else follows.
    """
    first = _SERIES_LABEL.search(item)
    assert first is not None, f"{item} names no label"
    sorted_by = order.name if order else first[1]
    values = " ".join(f"$labels.{label.name}" for label in labels)
    answer = f"query (printf `topk({most}, {query})` {values})"
    return (
        f'{{{{ with {answer} | sortByLabel "{sorted_by}" }}}}'
        f"{before}{{{{ range $i, $series := . }}}}{{{{ if $i }}}}, {{{{ end }}}}{item}{{{{ end }}}}"
        f"{end}"
    )


def naming_pod(labels: str, before: str, after: str) -> str:
    """A Prometheus template: the pod of the rank in ``labels``, such as ``$labels``, or nothing."""
    matchers = ", ".join(f"{label.name}='%s'" for label in RANK_LABELS)
    values = " ".join(f"{labels}.{label.name}" for label in RANK_LABELS)
    query = f"query (printf \"{RANK_INFO.name}{{{matchers}, {POD.name}!=''}}\" {values})"
    pod = "/".join(f'{{{{ . | first | label "{part.name}" }}}}' for part in (NAMESPACE, POD))
    return f"{{{{ with {query} }}}}{before}{pod}{after}{{{{ end }}}}"
