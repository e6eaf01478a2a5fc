"""Compares ledger, pages and nodes with what a situation expects; a complaint is a line."""

import re
import subprocess
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from servers import captured

from .lab import NODES
from .scenario import PLAIN, Expected, ExpectedJob, ExpectedNode, ExpectedText, Situation
from .turn import Turn

_TEXTS = ("outcome", "failure_class", "cause", "queue", "project", "user")


def complaints(turn: Turn, situation: Situation) -> list[str]:
    """What differs; empty where all is right."""
    found: list[str] = []
    for expected in situation.expected:
        found += _judge(turn, expected)
    return found or [*_strangers(turn, situation)]


def record_of(turn: Turn, job_id: str) -> dict[str, Any] | None:
    assert turn.lab.ledger is not None
    url = f"{turn.lab.ledger.url}/api/jobs/{quote(job_id, safe='')}"
    answer = turn.lab.client.get(url)
    if answer.status_code == 404:
        return None
    answer.raise_for_status()
    document: dict[str, Any] = answer.json()
    record: dict[str, Any] = document.get("job", document)
    return record


def _judge(turn: Turn, expected: Expected) -> Iterator[str]:
    if isinstance(expected, ExpectedJob):
        yield from _judge_job(turn, expected)
    elif isinstance(expected, ExpectedNode):
        node = turn.text(expected.node)
        state = turn.lab.run(["sinfo", "-h", "-n", node, "-o", "%T|%E"], check=False).stdout
        is_drained = "drain" in state
        if is_drained != expected.drained or expected.reason not in state:
            yield f"{node}: sinfo says {state.strip()!r}"
    else:
        yield from _judge_text(turn, expected)


def _judge_text(turn: Turn, expected: ExpectedText) -> Iterator[str]:
    command = turn.text(expected.command)
    if expected.node:
        result = turn.lab.lab("on", turn.text(expected.node), "bash", "-c", command, check=False)
        done, status = result.stdout, result.returncode
    else:
        try:
            result = turn.lab.run(["bash", "-c", command], check=False)
            done, status = result.stdout, result.returncode
        except subprocess.TimeoutExpired:
            done, status = "", -1
    for text in map(turn.text, expected.contains):
        if text not in done:
            yield f"{command!r} lacks {text!r}: {done[-300:]!r}"
    for text in map(turn.text, expected.lacks):
        if text in done:
            yield f"{command!r} has {text!r}"
    if expected.status is not None and status != expected.status:
        yield f"{command!r} ends with {status}: {done[-300:]!r}"


def _judge_job(turn: Turn, expected: ExpectedJob) -> Iterator[str]:
    job_id = turn.text(expected.job_id)
    record = record_of(turn, job_id)
    if record is None:
        yield f"{job_id}: no record"
        return
    if record["job_id"] != job_id:
        yield f"{job_id}: its record is called {record['job_id']}"
    runs = record.get("runs_list") or []
    if record.get("outcome") is None and runs and record["status"] != "running":
        # While a preempted job waits for its restart its newest run alone has an outcome.
        record |= {name: runs[-1][name] for name in ("outcome", "failure_class", "cause")}
    yield from _judge_texts(expected, record, job_id)
    attempts = expected.attempts
    if attempts is None and isinstance(expected.gpu_seconds, tuple):
        attempts = len(expected.gpu_seconds)
    if attempts is not None and record["attempts"] != attempts:
        yield f"{job_id}: attempts are {record['attempts']}, not {attempts}"
    is_closed = record["status"] == "finished"
    if expected.closed is not None and is_closed != expected.closed:
        yield f"{job_id}: status is {record['status']}"
    if expected.disagreement is not None:
        disagreements = record.get("disagreements") or []
        if bool(disagreements) != expected.disagreement:
            yield f"{job_id}: disagreements are {disagreements}"
    yield from _judge_figures(turn, expected, record, job_id)
    yield from _judge_pages(turn, expected, job_id)


def _judge_texts(expected: ExpectedJob, record: dict[str, Any], job_id: str) -> Iterator[str]:
    failure_class, cause = PLAIN.get(expected.outcome or "", (None, None))
    plain = {"failure_class": failure_class, "cause": cause}
    for name in _TEXTS:
        expected_value = getattr(expected, name)
        if expected_value is None:
            expected_value = plain.get(name)
        if expected_value is not None and (record.get(name) or "") != expected_value:
            yield f"{job_id}: {name} is {record.get(name)!r}, not {expected_value!r}"


def _judge_figures(
    turn: Turn, expected: ExpectedJob, record: dict[str, Any], job_id: str
) -> Iterator[str]:
    rows = _accounting(turn, job_id)
    gpu_seconds = expected.gpu_seconds
    if isinstance(gpu_seconds, tuple):
        ran = [end - start for start, end, node in rows if node and end]
        gpu_seconds = sum(g * s for g, s in zip(gpu_seconds, ran, strict=False))
    if gpu_seconds is not None and abs(record["gpu_seconds"] - gpu_seconds) > 0.5:
        runs = record.get("runs_list")
        yield f"{job_id}: gpu_seconds are {record['gpu_seconds']}, not {gpu_seconds}: {rows} {runs}"
    waited = record.get("queue_wait_seconds")
    if expected.queue_wait_seconds == "absent" and waited is not None:
        yield f"{job_id}: a queue wait of {waited} is made up"
    elif expected.queue_wait_seconds == "first_start":
        wait = _first_wait(turn, job_id)
        if wait is not None and (waited is None or abs(waited - wait) > 1.0):
            yield f"{job_id}: queue_wait is {waited}, not {wait}"
    if expected.lost_run is not None:
        runs = record.get("runs_list") or []
        lost = (
            runs[expected.lost_run]["lost_gpu_seconds"] if len(runs) > expected.lost_run else None
        )
        if not lost:
            yield f"{job_id}: lost of run {expected.lost_run} is {lost}"


def _judge_pages(turn: Turn, expected: ExpectedJob, job_id: str) -> Iterator[str]:
    if expected.watched_on is None:
        return
    expected_value = {turn.text(node) for node in expected.watched_on}
    # Beside others in the lab a job runs where there is room.
    ran = {node for *_, node in _accounting(turn, job_id)}
    if len(expected_value) == 1 and len(ran) == 1:
        expected_value = ran
    for node in NODES:
        is_there = any(turn.lab.pages(node, job_id))
        if is_there != (node in expected_value):
            yield f"{job_id}: pages on {node}: {is_there}"


def _accounting(turn: Turn, job_id: str) -> list[tuple[int, int, str]]:
    """Start, end and node of each row; every size of a run has the start of its first in Slurm."""
    found: list[tuple[int, int, str]] = []
    newest = ""
    for submit, _, start, end, node in _rows(turn, job_id):
        begin, newest = submit if start == newest else start, start
        since, until = (int(time) if time.isdecimal() else 0 for time in (begin, end))
        found.append((since, until, "" if node == "None assigned" else node))
    return found


def _first_wait(turn: Turn, job_id: str) -> float | None:
    rows = _rows(turn, job_id)
    if not rows or not rows[0][2].isdecimal():
        return None
    submit, eligible, start = (int(time) if time.isdecimal() else 0 for time in rows[0][:3])
    # A slurmctld that is busy makes a job eligible some seconds after its submission.
    return float(start - max(submit, min(eligible, start)))


def _rows(turn: Turn, job_id: str) -> list[tuple[str, ...]]:
    command = ["sacct", "-naDXP", "-o", "Submit,Eligible,Start,End,NodeList", "-j", job_id]
    done = captured(
        command, env=turn.lab.environment | {"SLURM_TIME_FORMAT": "%s", "TZ": "UTC"}, timeout=240
    )
    return [tuple(line.split("|")) for line in done.stdout.splitlines() if line.count("|") == 4]


def _strangers(turn: Turn, situation: Situation) -> Iterator[str]:
    """Records of the situation's jobs under ids that nobody expects."""
    assert turn.lab.ledger is not None
    if not turn.ids:
        return
    expected = {
        turn.text(each.job_id) for each in situation.expected if isinstance(each, ExpectedJob)
    }
    answer = turn.lab.client.get(f"{turn.lab.ledger.url}/api/jobs", params={"limit": 500})
    listed = {str(job["job_id"]) for job in answer.json()["jobs"]}
    for raw in turn.ids.values():
        own = re.compile(rf"{raw}(?:[_+.].*)?")
        for job_id in sorted(listed - expected):
            if own.fullmatch(job_id) and any(each.startswith(raw) for each in expected):
                yield f"{job_id}: a record nobody expects"
    for job_id in sorted(listed):
        if job_id.startswith("local-") or re.fullmatch(r"20\d{6}-.*", job_id):
            yield f"{job_id}: a record under an invented id"
