"""Rules survive scraping: equal series of one agent count once.

One agent may be scraped by two jobs, under two addresses, or by two agents for a moment: what
distinguishes such series says nothing about a job. A selector that names the address or the scrape
job itself keeps it.
"""

import re

from lockstep_catalogue import FOREIGN, METRICS
from lockstep_catalogue.labels import CLUSTER, NODE
from lockstep_catalogue.metric import Endpoint

_KUBE = "kube-state-metrics"
_AGENT_SERIES = [
    name for metric in METRICS if metric.endpoint is Endpoint.AGENT for name in metric.sample_names
]
_LEDGER_SERIES = [
    name
    for metric in METRICS
    if metric.endpoint is not Endpoint.AGENT and CLUSTER in metric.labels
    for name in metric.sample_names
]
_KUBE_SERIES = [each.name for each in FOREIGN if each.source == _KUBE and NODE in each.labels]
_MATCHERS = r"(?:\{(?![^}]*\b(?:instance|job)\b(?:=|!))[^}]*\})?(?!\{)"
_RANGE = r"\[[^\]]+\](?: offset \w+)?"


def _selector(series: list[str]) -> str:
    listed = "|".join(sorted(series, key=len, reverse=True))
    return rf"(?<![\w:])(?:{listed})(?![\w:]){_MATCHERS}"


_AT_ONCE, _ALWAYS = _AGENT_SERIES + _KUBE_SERIES, _AGENT_SERIES + _KUBE_SERIES + _LEDGER_SERIES
_CALL = rf"\w+\((?:[\d.]+, )?{_selector(_ALWAYS)}{_RANGE}\)"
_TIMESTAMP = rf"timestamp\({_selector(_ALWAYS)}\)"
_INSTANT = rf"{_selector(_AT_ONCE)}(?!\[)(?: offset \w+)?"
_LABELS = r"\((?![^)]*\b(?:instance|job)\b)[^)]*\)"
# A largest of all is the largest of equal ones too, a group has no value, and a filter asks only
# whether there is a series.
_AGGREGATION = rf"\b(?:max|group) by {_LABELS} \("
_FILTER = rf"\b(?:and|unless) on {_LABELS} "
_OPERAND_ENDS = r"(?=\)|\s*$|\n| (?:and|or|unless) )"
_READS = f"(?:{_CALL}|{_TIMESTAMP}|{_INSTANT})"
_READ = re.compile(rf"{_AGGREGATION}{_READS}\)|{_FILTER}{_READS}{_OPERAND_ENDS}|({_READS})")


def newest_of_equal(expression: str) -> str:
    """The expression with every series of agents, Kubernetes and ledger without its address.

    It takes the largest of equal series: of two scrapes of a counter the later one, of a state that
    only one of them still has the one that has it, and of another gauge either, which are at most
    a scrape apart.
    """
    return _READ.sub(
        lambda found: f"max without (instance, job) ({found[1]})" if found[1] else found[0],
        expression,
    )
