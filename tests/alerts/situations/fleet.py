"""Builds the series of a situation: the healthy fleet, bent by events and overrides."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import yaml

from lockstep_prometheus.promql import selectors

from .timelines import Course, segments

SITUATIONS = Path(__file__).parents[3] / "alerts" / "situations"
TESTS: dict[str, Callable[[str, str], bool]] = {
    "=": lambda value, text: value == text,
    "!=": lambda value, text: value != text,
    "=~": lambda value, text: re.fullmatch(text, value) is not None,
    "!~": lambda value, text: re.fullmatch(text, value) is None,
}
Labels = dict[str, str]
Node = Mapping[str, Any]


@cache
def library() -> dict[str, Any]:
    """fleets.yaml, read once."""
    text = (SITUATIONS / "fleet" / "fleets.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    return found


@dataclass
class Series:
    """A series of the fleet, its own timeline and what bends it."""

    labels: Labels
    timeline: str
    bends: list[str] = field(default_factory=list)

    def course(self, scrape: float, end: float) -> Course:
        times = np.arange(0.0, end + scrape / 2, scrape)
        course = Course(self.labels["__name__"], times, scrape)
        for timeline in (self.timeline, *self.bends):
            for segment in segments(timeline, scrape, end):
                course.apply(segment, base=timeline is self.timeline)
        return course


def matchers(selector: str) -> list[tuple[str, str, str]]:
    """The matchers (label, operator, value) of a selector; its name is the label ``__name__``."""
    [read] = selectors(selector)
    others = [each for each in read.matchers if each[:2] != ("__name__", "=")]
    return [("__name__", "=", read.name), *others] if read.name else others


def matches(labels: Labels, tests: list[tuple[str, str, str]]) -> bool:
    """Whether the labels pass all matchers; a label that is not there is empty."""
    return all(TESTS[test](labels.get(label, ""), value) for label, test, value in tests)


@cache
def _formats(selector: str, timeline: str) -> tuple[dict[str, str], str]:
    """Labels and timeline of a template as formats of ``%``: half a million are filled in."""
    texts = {label: value for label, _, value in matchers(selector)} | {"": timeline}
    found = {
        label: re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"%(\1)s", text.replace("%", "%%"))
        for label, text in texts.items()
    }
    return found, found.pop("")


def _series(
    templates: Mapping[str, Any], values: Mapping[str, Any], own: Labels
) -> Iterator[Series]:
    for selector, timeline in templates.items():
        labels, course = _formats(selector, str(timeline))
        filled = {label: text % values for label, text in labels.items()}
        yield Series(own | filled, course % values)


def _job_values(job_id: str, job: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    world = gpus * len(job["nodes"])
    done, step = job["done_steps"], job["step"]
    return dict(job) | {
        "job": job_id, "world": world, "local_ranks": gpus, "step_all": step * gpus,
        "done_sum": done * step * gpus, "done_count": done * gpus, "tokens": 8192 * gpus,
        "sync_all": 0.1 * step * gpus, "phase_length": max(step / 8, 0.001), "owned": 1,
    }  # fmt: skip


def _of_job(job: Mapping[str, Any], node: str, position: int, own: Labels) -> Iterator[Series]:
    lists, step, done, gpus = library()["lists"], job["step"], job["done_steps"], job["local_ranks"]
    values = dict(job) | {"node": node, "first_rank": position * gpus}
    yield from _series(library()["per_job_node"], values, own)
    for state in lists["other_states"]:
        yield from _series(library()["per_state"], values | {"state": state}, own)
    for edge in lists["step_buckets"]:
        under = gpus if float(edge) >= step else 0
        counts = {"le": edge, "under": under, "done_under": done * under}
        yield from _series(library()["per_bucket"], values | counts, own)
    for state, share in lists["goodput"].items():
        parts = {"goodput": state, "seconds": share * step * gpus}
        parts["done_seconds"] = parts["seconds"] * done
        yield from _series(library()["per_goodput"], values | parts, own)
    for gpu in range(gpus):
        rank = values | {"rank": position * gpus + gpu, "gpu": gpu, "uuid": f"GPU-{node}-{gpu}"}
        yield from _series(library()["per_rank"], rank, own)
        for phase, share in lists["phases"].items():
            parts = {"phase": phase, "seconds": share * step, "done_seconds": share * step * done}
            yield from _series(library()["per_rank_phase"], rank | parts, own)


def _of_node(node: str, cluster: Mapping[str, Any], own: Labels) -> Iterator[Series]:
    user = next((job for job in cluster["jobs"].values() if node in job["nodes"]), None)
    values = {"node": node, "cluster": cluster["cluster"], "gpus": cluster["gpus"]}
    yield from _series(library()["per_node"], values, own)
    if cluster["kube"]:
        yield from _series(library()["per_kube_node"], values, {})
    position = user["nodes"].index(node) if user else 0
    values |= user or {"job": "", "owned": 0, "model": "NVIDIA H100 80GB HBM3"}
    for gpu in range(cluster["gpus"]):
        pci, rank = f"0000:{gpu + 1}a:00.0", str(position * cluster["gpus"] + gpu) if user else ""
        names = {"gpu": gpu, "uuid": f"GPU-{node}-{gpu}", "pci": pci, "busy": 0.9 if user else 0}
        for series in _series(library()["per_gpu"], values | names | {"rank": rank}, own):
            yield from _served(series, user)
    for port in range(cluster["ports"]):
        names = {"port": port, "port8": f"{port + 1}8"}
        for series in _series(library()["per_port"], values | names, own):
            yield from _served(series, user)
    if user:
        yield from _of_job(user, node, position, own)


def _served(series: Series, user: object) -> Iterator[Series]:
    if user or not series.labels["__name__"].endswith("_owner_info"):
        yield series  # a GPU of nobody has no owner


def _of_cluster(name: str, cluster: Node, scrape: float) -> Iterator[Series]:
    values = {"cluster": name, "scrape": scrape, "jobs": len(cluster["jobs"])}
    own = {"job": "prometheus"}
    yield from _series(library()["per_cluster"], values, own)
    if cluster["ledger"]:
        own = {"job": "lockstep-ledger", "instance": "ledger-0:9450", "cluster": name}
        yield from _series(library()["per_ledger"], values, own)
        for slo in library()["lists"]["ledger_slos"]:
            for window, events in library()["lists"]["windows"].items():
                counts = {"slo": slo, "window": window, "events": events}
                yield from _series(library()["per_slo_window"], values | counts, own)
    for node in cluster["node_names"]:
        own = {"job": "lockstep-agent", "instance": f"{node}:9440", "cluster": name, "node": node}
        yield from _of_node(node, cluster, own)


def clusters_of(fleet: str | Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The clusters of a fleet with every default filled in."""
    overrides: Mapping[str, Any] = {"like": fleet} if isinstance(fleet, str) else fleet
    if overrides["like"] not in library()["fleets"]:
        raise ValueError(f"fleet {overrides['like']!r} is none of {list(library()['fleets'])}")
    defaults = library()["defaults"]
    found: dict[str, dict[str, Any]] = {}
    for name, own in library()["fleets"][overrides["like"]]["clusters"].items():
        cluster = defaults["cluster"] | own | overrides.get("cluster", {})
        cluster["node_names"] = [f"n{number + 1}" for number in range(cluster["nodes"])]
        jobs = dict(cluster["jobs"])
        for number in range(cluster.get("every_node_a_job", 0)):
            jobs[f"J{number + 1}"] = {"nodes": [f"n{number + 1}"]}
        for number in range(cluster.get("pairs_of_nodes_a_job", 0)):
            nodes = [f"n{2 * number + 1}", f"n{2 * number + 2}"]
            jobs[f"{cluster['prefix']}{number + 1}"] = {"nodes": nodes}
        cluster["cluster"], cluster["jobs"] = name, {}
        for job_id, job in jobs.items():
            changed = overrides.get("every_job", {}) | overrides.get("jobs", {}).get(job_id, {})
            values = _job_values(job_id, defaults["job"] | job | changed, cluster["gpus"])
            cluster["jobs"][job_id] = values
        found[name] = cluster
    return found


@cache
def _healthy(fleet: str, scrape: float) -> tuple[dict[str, dict[str, Any]], list[Series]]:
    """Clusters and series of a fleet that is given as JSON; most situations have the same."""
    clusters = clusters_of(json.loads(fleet))
    of_each = (_of_cluster(name, cluster, scrape) for name, cluster in clusters.items())
    return clusters, [*chain.from_iterable(of_each)]


def build(
    situation: Mapping[str, Any], scrape: float, end: float, *, read: str | None = None
) -> list[Series]:
    """The series of a situation: the fleet, the situation's own series, events, overrides.

    Where ``read`` is the text of rules, series that it does not name are left out.
    """
    fleet = json.dumps(situation.get("fleet", "two jobs on four nodes"))
    clusters, healthy = _healthy(fleet, scrape)
    found = [
        Series(dict(series.labels), series.timeline)
        for series in healthy
        if read is None or series.labels["__name__"] in read
    ]
    own, of_fleet = next(iter(clusters)), _by_name(found)
    for selector, timeline in situation.get("adds", {}).items():
        labels = {label: value for label, _, value in matchers(selector)}
        found.append(Series(_with_target(labels, own), str(timeline)))
    by_name = _by_name(found)
    for event in situation.get("events", ()):
        values = {"cluster": ".*", "node": ".*", "job": ".*", "from": "0", "to": f"{end + 60:g}s"}
        values |= {"local_ranks": clusters[own]["gpus"]} | dict(event)
        if event["event"] not in library()["events"]:
            raise ValueError(f"event {event['event']!r} is none of {list(library()['events'])}")
        for selector, timeline in library()["events"][event["event"]].items():
            _bend(
                by_name,
                Template(selector).substitute(values),
                Template(timeline).substitute(values),
            )
    for selector, timeline in situation.get("series", {}).items():
        # What the situation adds has a timeline of its own: only the fleet's series are overridden.
        if not _bend(of_fleet, selector, str(timeline)) and read is None:
            raise ValueError(f"{situation['name']}: selector {selector!r} matches no series")
    return found


def _by_name(found: list[Series]) -> dict[str, list[Series]]:
    by_name: dict[str, list[Series]] = {}
    for series in found:
        by_name.setdefault(series.labels["__name__"], []).append(series)
    return by_name


def _with_target(labels: Labels, cluster: str) -> Labels:
    if not labels["__name__"].startswith("lockstep_"):
        return {"cluster": cluster} | labels
    name = labels["__name__"].split("_")[1]
    target = {"job": "lockstep-agent", "instance": f"{labels.get('node', '')}:9440"}
    if name == "ledger":
        target = {"job": "lockstep-ledger", "instance": "ledger-0:9450"}
    return {"cluster": cluster} | target | labels


def _bend(found: Mapping[str, list[Series]], selector: str, timeline: str) -> int:
    tests, count = matchers(selector), 0
    names = [tests[0][2]] if tests[0][:2] == ("__name__", "=") else list(found)
    for series in (series for name in names for series in found.get(name, ())):
        if matches(series.labels, tests):
            series.bends.append(timeline)
            count += 1
    return count
