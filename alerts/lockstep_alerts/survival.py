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
# A largest of all is the largest of equal ones too, and a group has no value.
_OF_EQUAL = r"\b(?:max|group) by \((?![^)]*\b(?:instance|job)\b)[^)]*\) \("
_READ = re.compile(f"({_OF_EQUAL})?({_CALL}|{_TIMESTAMP}|{_INSTANT})(\\))?")


def newest_of_equal(expression: str) -> str:
    """The expression with every series of agents, Kubernetes and ledger without its address.

    It takes the largest of equal series: of two scrapes of a counter the later one, of a state that
    only one of them still has the one that has it, and of another gauge either, which are at most
    a scrape apart.
    """
    return _READ.sub(_newest, expression)


def _newest(found: re.Match[str]) -> str:
    aggregation, read, end = found.groups(default="")
    if aggregation and end:
        return found[0]
    return f"{aggregation}max without (instance, job) ({read}){end}"
