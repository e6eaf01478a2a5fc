"""Rules survive scraping: of equal series every expression takes the newest.

One agent may be scraped by two jobs, under two addresses, or by two agents for a moment: what
distinguishes such series says nothing about a job. A selector that names the address or the scrape
job itself keeps it.
"""

import re

from lockstep_catalogue import FOREIGN, METRICS
from lockstep_catalogue.labels import CLUSTER, NODE
from lockstep_catalogue.metric import Endpoint

_KUBE = "kube-state-metrics"
_OF_AGENTS = [
    name for metric in METRICS if metric.endpoint is Endpoint.AGENT for name in metric.sample_names
]
_OF_LEDGER = [
    name
    for metric in METRICS
    if metric.endpoint is not Endpoint.AGENT and CLUSTER in metric.labels
    for name in metric.sample_names
]
_OF_KUBE = [each.name for each in FOREIGN if each.source == _KUBE and NODE in each.labels]
_MATCHERS = r"(?:\{(?![^}]*\b(?:instance|job)\b(?:=|!))[^}]*\})?(?!\{)"
_RANGE = r"\[[^\]]+\](?: offset \w+)?"


def _selector(series: list[str]) -> str:
    listed = "|".join(sorted(series, key=len, reverse=True))
    return rf"(?<![\w:])(?:{listed})(?![\w:]){_MATCHERS}"


_AT_ONCE, _ALWAYS = _OF_AGENTS + _OF_KUBE, _OF_AGENTS + _OF_KUBE + _OF_LEDGER
_CALL = rf"\w+\((?:[\d.]+, )?{_selector(_ALWAYS)}{_RANGE}\)"
_TIMESTAMP = rf"timestamp\({_selector(_ALWAYS)}\)"
_INSTANT = rf"{_selector(_AT_ONCE)}(?!\[)(?: offset \w+)?"
_READ = re.compile(f"{_CALL}|{_TIMESTAMP}|{_INSTANT}")


def newest_of_equal(expression: str) -> str:
    """The expression with every series of agents, Kubernetes and ledger without its address.

    The largest of equal series is the newest: of two scrapes of a counter the later one, and of a
    state that only one of them still has the one that has it.
    """
    return _READ.sub(lambda found: f"max without (instance, job) ({found[0]})", expression)
