"""Random ordinary weeks of 24 jobs on 64 nodes in two clusters, with at most one planted fault.

A week is a situation like those of alerts/situations, whose events are drawn from a seed. It is too
long for promtool, which evaluates every rule 10,080 times: it goes into VictoriaMetrics, and
``vmalert -replay`` asks for each rule once, as one range query. vmalert 1.79 has no
``keep_firing_for``: it is taken out of the rules, which can only end alerts earlier. MetricsQL
extrapolates no increase and looks back less far than Prometheus, so a finding is worth a situation.
"""

import json
import random
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import yaml

from .expand import SEVERITIES, Notified, Paging, through_alertmanager
from .fleet import Series, build, clusters_of

FLEET = "twenty-four jobs on sixty-four nodes"
SCRAPE = 60.0
DAY_SECONDS = 86400.0
WEEK_SECONDS = 7 * DAY_SECONDS
EPOCH = 1_760_000_040  # a whole minute; clocks in the series are moved to it
ORDINARY = {  # events of a kind in a week
    "scrape fails": 200,
    "hiccup": 60,
    "evaluation": 120,
    "requeue": 40,
    "reboot": 6,
    "autoscaler": 4,
    "rollout": 2,
    "Prometheus is away": 3,
    "kube-state-metrics is away": 3,
    "ledger is away": 2,
}
FAULTS = ("hang", "node dies")
READY_SECONDS = 30.0
Event = dict[str, Any]


def _event(kind: str, start: float, lasts: float, **labels: str) -> Event:
    return {"event": kind, "from": f"{start:g}s", "to": f"{start + lasts:g}s"} | labels


def _draw(kind: str, start: float, rng: random.Random) -> list[Event]:  # noqa: PLR0911 # by kind
    """One ordinary event of a kind, which may be several events of series."""
    clusters = clusters_of(FLEET)
    cluster = rng.choice(list(clusters))
    nodes, jobs = clusters[cluster]["node_names"], list(clusters[cluster]["jobs"])
    node, idle, job = rng.choice(nodes), rng.choice(nodes[-8:]), rng.choice(jobs)
    if kind == "scrape fails":
        return [_event(kind, start, SCRAPE, cluster=cluster, node=node)]
    if kind == "hiccup":
        return [_event("job stands", start, 12, cluster=cluster, job=job)]
    if kind == "evaluation":
        lasts = rng.uniform(120, 1200)
        return [
            _event("job stands", start, lasts, cluster=cluster, job=job),
            _event("ranks are in state", start, lasts, cluster=cluster, job=job, state="eval"),
        ]
    if kind == "requeue":
        return [_event("job is away", start, rng.uniform(60, 1800), cluster=cluster, job=job)]
    if kind == "reboot":
        return [
            _event("node is cordoned", start - 300, 1500, cluster=cluster, node=idle),
            _event("node dies", start, rng.uniform(120, 900), cluster=cluster, node=idle),
        ]
    if kind == "autoscaler":
        few = "|".join(rng.sample(nodes[-8:], 6))  # 15 % of the larger cluster
        return [_event("node leaves", start, rng.uniform(3600, 36000), cluster=cluster, node=few)]
    if kind == "rollout":
        lasts = rng.uniform(20, 90)
        return [
            _event("agents restart", start + 30 * planted, lasts, cluster=cluster, node=name)
            for planted, name in enumerate(nodes)
        ]
    return [_event(kind, start, rng.uniform(30, 180), cluster=cluster)]


def week(seed: int, fault: str | None = None, *, length: float = WEEK_SECONDS) -> dict[str, Any]:
    """The situation of a week; ``object`` names the cluster, job and time of the planted fault."""
    rng = random.Random(seed)
    events: list[Event] = []
    for kind, number in ORDINARY.items():
        for _ in range(round(number * length / WEEK_SECONDS)):
            events += _draw(kind, rng.uniform(3600, length - 7200), rng)
    situation: dict[str, Any] = {"name": f"week {seed}", "fleet": FLEET, "events": events}
    if fault:
        clusters = clusters_of(FLEET)
        cluster = rng.choice(list(clusters))
        job = rng.choice(list(clusters[cluster]["jobs"]))
        start = rng.uniform(length / 2, length - 7200)
        events[:] = [event for event in events if not _disturbs(event, cluster, job, start)]
        situation["object"] = {"cluster": cluster, "job_id": job, "time": start}
        plant(situation, fault, clusters[cluster]["jobs"][job]["nodes"][0])
    return situation


def _disturbs(event: Event, cluster: str, job: str, start: float) -> bool:
    """Whether an ordinary event of the job itself would hide its fault."""
    mine = event.get("job") == job and event.get("cluster") == cluster
    return mine and float(event["from"][:-1]) > start - 1800


def plant(situation: dict[str, Any], fault: str, node: str) -> None:
    """Put a fault into a week: an event, or what `series` and `adds` of a situation would say."""
    planted = situation["object"]
    labels = {"cluster": planted["cluster"], "job": planted["job_id"]}
    if fault not in FAULTS:
        raise ValueError(f"fault {fault!r} is none of {list(FAULTS)}")
    situation["events"].append(_event("job stands", planted["time"], 3600, **labels))
    if fault == "node dies":
        situation["events"].append(
            _event("node dies", planted["time"], 3600, cluster=planted["cluster"], node=node)
        )


def import_lines(series: Sequence[Series], length: float) -> Iterator[bytes]:
    """Lines of VictoriaMetrics' JSON import; clocks count from ``EPOCH``."""
    times = np.arange(0.0, length + SCRAPE / 2, SCRAPE)
    stamps = ((times + EPOCH) * 1000).astype(np.int64)
    every = json.dumps(stamps.tolist(), separators=(",", ":"))
    for item in series:
        level, hidden = item.course(SCRAPE, length).arrays()
        if item.labels["__name__"].endswith("_timestamp_seconds"):
            level = level + EPOCH
        served = hidden == 0
        stamps_text = every
        if not served.all():
            level = level[served]
            stamps_text = json.dumps(stamps[served].tolist(), separators=(",", ":"))
        if len(level) and (level == level[0]).all():
            text = "[" + ",".join([f"{level[0]:.12g}"] * len(level)) + "]"
        else:
            text = json.dumps(level.round(6).tolist())
        metric = json.dumps(item.labels)
        yield f'{{"metric":{metric},"values":{text},"timestamps":{stamps_text}}}\n'.encode()


@contextmanager
def victoria(folder: Path) -> Iterator[str]:
    """Address of a VictoriaMetrics with an empty store; it ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    options = [
        f"-storageDataPath={folder}/data",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-retentionPeriod=100y",
        "-search.maxPointsPerTimeseries=50000",
        "-search.latencyOffset=0s",
        "-search.maxQueryDuration=10m",
        "-search.maxUniqueTimeseries=1000000",
        "-maxInsertRequestSize=256MiB",
    ]
    with Path(folder, "victoria.log").open("wb") as log:
        server = subprocess.Popen(["victoria-metrics", *options], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + READY_SECONDS
            while True:
                try:
                    httpx.get(f"{url}/health", trust_env=False).raise_for_status()
                    break
                except httpx.HTTPError:
                    if time.monotonic() > deadline or server.poll() is not None:
                        raise
                    time.sleep(0.1)
            yield url
        finally:
            server.terminate()
            server.wait(timeout=READY_SECONDS)


def stages(rule_files: Sequence[Path]) -> Iterator[list[dict[str, Any]]]:
    """The rules, each stage reading only what the stages before it have computed.

    What vmalert has written is not at once in an answer: a rule that is replayed too early reads
    nothing, and its alert never fires.
    """
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in rule_files]
    waiting = [_replayable(r) for file in files for group in file["groups"] for r in group["rules"]]
    reads = {id(rule): set(re.findall(r"[a-zA-Z_:][\w:]*", rule["expr"])) for rule in waiting}
    while waiting:
        reading = (rule for rule in waiting if "ALERTS{" not in rule["expr"])
        missing = {rule.get("record", "ALERTS") for rule in reading}
        # A series that carries on from its own past has none in a replay.
        ready = [r for r in waiting if not (reads[id(r)] - {r.get("record")}) & missing]
        yield ready
        waiting = [rule for rule in waiting if rule not in ready]


def _replayable(rule: dict[str, Any]) -> dict[str, Any]:
    """The rule without what vmalert 1.79 refuses."""
    rule.pop("keep_firing_for", None)
    rule.pop("annotations", None)
    # Without the suffix MetricsQL counts the first sample of a series as growth.
    rule["expr"] = re.sub(r"\b(increase|changes|delta)\(", r"\1_prometheus(", rule["expr"])
    # A replay asks nobody what a job is: every page of the rules stays one.
    templates = {name for name, text in rule.get("labels", {}).items() if text.startswith("{{")}
    for name in templates:
        del rule["labels"][name]
    if "severity" in templates:
        rule["labels"]["severity"] = "critical"
    return rule


def replay(
    situation: Mapping[str, Any], paging: Paging, length: float = WEEK_SECONDS
) -> list[Notified]:
    """Everything that a week would have notified, at each minute at which it stands."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with victoria(folder) as url:
            rules = "\n".join(path.read_text(encoding="utf-8") for path in paging.rule_files)
            series = build(situation, SCRAPE, length, read=rules)
            with httpx.Client(trust_env=False, timeout=600) as client:
                lines = import_lines(series, length)
                client.post(f"{url}/api/v1/import", content=lines).raise_for_status()
                client.get(f"{url}/internal/force_flush").raise_for_status()
                for rules_of_stage in stages(paging.rule_files):
                    _replay_stage(url, rules_of_stage, folder / "stage.rules.yaml", length)
                    client.get(f"{url}/internal/force_flush").raise_for_status()
                query = {"match[]": 'ALERTS{alertstate="firing"}'}
                exported = client.get(f"{url}/api/v1/export", params=query).raise_for_status().text
    firing: dict[float, list[dict[str, str]]] = {}
    for line in exported.splitlines():
        found = json.loads(line)
        if found["metric"].get("severity") in SEVERITIES:
            for stamp in found["timestamps"]:
                firing.setdefault(stamp / 1000 - EPOCH, []).append(found["metric"])
    return through_alertmanager(firing, paging, SCRAPE)


def _replay_stage(url: str, rules: Sequence[dict[str, Any]], file: Path, length: float) -> None:
    """Recorded series a day at a time, alerts in one go: what holds for long is their state.

    vmalert writes all that it still holds at its end in one request: a week of all ranks is more
    than the server takes in time.
    """
    for kind, span in (("record", DAY_SECONDS), ("alert", length)):
        of_kind = [rule for rule in rules if kind in rule]
        group = {"name": "stage", "interval": f"{SCRAPE:g}s", "rules": of_kind}
        file.write_text(yaml.safe_dump({"groups": [group]}), encoding="utf-8")
        for begin in np.arange(0, length, span) if of_kind else ():
            _vmalert(url, file, begin, min(begin + span - SCRAPE, length))


def _vmalert(url: str, rule_file: Path, begin: float, until: float) -> None:
    start, end = (
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH + at)) for at in (begin, until)
    )
    options = [
        f"-rule={rule_file}",
        f"-datasource.url={url}",
        f"-remoteWrite.url={url}",
        f"-replay.timeFrom={start}",
        f"-replay.timeTo={end}",
        "-replay.maxDatapointsPerQuery=50000",
        "-replay.rulesDelay=1ms",
        "-remoteWrite.flushInterval=200ms",
        "-replay.disableProgressBar",
        "-httpListenAddr=127.0.0.1:0",
        "-rule.validateTemplates=false",
        f"-datasource.queryStep={SCRAPE:g}s",
    ]
    done = subprocess.run(
        ["vmalert", *options], capture_output=True, text=True, check=False, timeout=1800
    )
    # What is not taken is logged and dropped: without its series an alert would keep silent.
    lost = [line for line in done.stderr.splitlines() if "\terror\t" in line or "\twarn\t" in line]
    if done.returncode or lost:
        raise RuntimeError(f"vmalert cannot replay the rules: {lost or done.stderr[-2000:]}")


def incidents(
    notified: Sequence[Notified], kind: str = "pages", gap: float = 900.0
) -> list[Notified]:
    """The first of each run of notifications of a group without a break of ``gap`` seconds."""
    last: dict[tuple[str, ...], float] = {}
    found = []
    for item in sorted(notified, key=lambda item: item.time):
        if item.kind == kind:
            group = tuple(item.labels.get(label, "") for label in ("cluster", "job_id"))
            if item.time - last.get(group, -gap - 1) > gap:
                found.append(item)
            last[group] = item.time
    return found
