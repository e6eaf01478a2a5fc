"""Restricts PromQL to what a board's variables choose, and checks its matchers by the catalogue."""

import re
from collections.abc import Sequence

from lockstep_catalogue import FOREIGN, METRICS, RECORDED, Label, Series
from lockstep_dashboards.panel import Variable

_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
_OTHERS: tuple[Series, ...] = (*RECORDED, *FOREIGN)
_STORED: dict[str, Series] = {
    **{name: metric for metric in METRICS for name in metric.sample_names},
    **{series.name: series for series in _OTHERS},
}
_LE = Label(name="le", help="upper bound of a bucket")


def restrict(expression: str, variables: Sequence[Variable]) -> str:
    """The expression with a matcher, in each selector, for every variable whose label it has.

    Raises:
        ValueError: a matcher names a label that its series lacks, or a value that the label cannot
            take.
    """

    def restricted(found: re.Match[str]) -> str:
        series = _STORED.get(found[1])
        if series is None:
            return found[0]
        labels = {label.name: label for label in (*series.exposed_labels, _LE)}
        own = found[2] or ""
        _check_matchers(series, labels, own)
        chosen = [
            f'{each.label.name}{"=~" if each.several else "="}"${each.name}"'
            for each in variables
            if each.label.name in labels
        ]
        inside = ", ".join([*chosen, *filter(None, [own])])
        return f"{found[1]}{{{inside}}}" if inside else found[1]

    return _SELECTOR.sub(restricted, expression)


def _check_matchers(series: Series, labels: dict[str, Label], text: str) -> None:
    for name, operator, value in _MATCHER.findall(text):
        if name not in labels:
            raise ValueError(f"{series.name} has no label {name}; it has {', '.join(labels)}")
        allowed = labels[name].values
        for each in value.split("|") if "~" in operator else [value]:
            if allowed and each and each not in allowed:
                raise ValueError(f"{name}={each!r} is not one of {', '.join(allowed)}")
