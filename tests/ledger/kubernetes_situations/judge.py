"""What the ledger has, held against what a situation expects."""

import re
from typing import Any

from .cluster import Cluster
from .diary import Diary
from .scenario import Between, ExpectedJob, Figure, Situation

LAG_SECONDS = 1.5  # of the lab for each run of a pod: times are whole seconds


def compare(situation: Situation, cluster: Cluster) -> list[str]:
    findings = [text for each in situation.expected for text in _compare_job(each, cluster)]
    for part in situation.absent:
        findings += [f"{job['job_id']} is there" for job in cluster.find_jobs(part)]
    return findings


def compare_feed(situation: Situation, log: str) -> list[str]:
    """What the feed's own words are not."""
    findings = []
    if situation.logged_once is not None:
        number = sum(bool(re.search(situation.logged_once, line)) for line in log.splitlines())
        if number != 1:
            findings.append(f"{number} lines of the log match {situation.logged_once}")
    return findings


def _compare_job(expected: ExpectedJob, cluster: Cluster) -> list[str]:
    found = cluster.find_jobs(expected.name)
    if expected.namespace is not None:
        side = cluster.namespace if expected.namespace == "own" else cluster.second_namespace
        found = [job for job in found if job["project"] == side]
    if len(found) != 1:
        return [f"{expected.name}: {len(found)} jobs: {[job['job_id'] for job in found]}"]
    job = found[0] | cluster.read_job(found[0]["job_id"])
    return [f"{expected.name}: {text}" for text in _compare_record(expected, job, cluster)]


def _compare_record(expected: ExpectedJob, job: dict[str, Any], cluster: Cluster) -> list[str]:
    findings = []
    outcome = job["outcome"] or (_last_outcome(job) if expected.is_open else None)
    if outcome in expected.refused:
        findings.append(f"outcome {outcome} is refused")
    is_finished = job["status"] == "finished"
    if is_finished == expected.is_open:
        findings.append(f"status {job['status']}, outcome {job['outcome']}")
    if expected.outcome is not None and outcome != expected.outcome:
        findings.append(f"outcome {outcome} ({job['cause']}) and not {expected.outcome}")
    for name in ("failure_class", "cause", "attempts", "queue"):
        value = getattr(expected, name)
        if value is not None and job[name] != value:
            findings.append(f"{name} {job[name]} and not {value}")
    if expected.num_gpus is not None and job["gpus"] != expected.num_gpus:
        findings.append(f"gpus {job['gpus']} and not {expected.num_gpus}")
    return findings + _compare_figures(expected, job, cluster.diary)


def _last_outcome(job: dict[str, Any]) -> str | None:
    """What the scheduler said of the run that ended last."""
    ends = [event for event in job["timeline"] if event["kind"] == "job_finished"]
    return ends[-1]["fields"]["outcome"] if ends else None


def _compare_figures(expected: ExpectedJob, job: dict[str, Any], diary: Diary) -> list[str]:
    pods = expected.pods or expected.name
    gpus, findings = max(1.0, diary.gpus(pods)), []
    if expected.gpu_seconds is not None:
        findings += _check("gpu_seconds", job["gpu_seconds"], expected.gpu_seconds, diary, gpus)
        is_sum = isinstance(expected.gpu_seconds, int | float)
        measured = diary.gpu_seconds(pods, expected.namespace or "")
        if is_sum and not expected.is_open and abs(job["gpu_seconds"] - measured) > gpus:
            findings.append(
                f"gpu_seconds {job['gpu_seconds']:.1f}, and the pods ran {measured:.1f}"
            )
    wait = expected.queue_wait_seconds
    if wait is not None:
        findings += _check("queue_wait_seconds", job["queue_wait_seconds"], wait, diary, 1.0)
    for name in ("started", "ended"):
        if (figure := getattr(expected, name)) is not None:
            findings += _check(name, job[name], figure, diary, 1.0)
    return findings


def _check(
    name: str, value: float | None, figure: Figure | Between, diary: Diary, tolerance: float
) -> list[str]:
    if isinstance(figure, Between):
        low, high = _number(figure.low, diary), _number(figure.high, diary)
    else:
        low = high = _number(figure, diary)
        if not callable(figure):
            tolerance *= LAG_SECONDS  # of the lab, whose kubelets are late
    if value is None or not low - tolerance <= value <= high + tolerance:
        return [f"{name} {value} and not {low:.1f} to {high:.1f}"]
    return []


def _number(figure: Figure, diary: Diary) -> float:
    return float(figure(diary)) if callable(figure) else float(figure)
