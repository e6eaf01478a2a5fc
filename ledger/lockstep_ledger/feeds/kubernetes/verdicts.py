"""The party at fault for an end: pods' statuses and conditions by the outcome table."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from lockstep_ledger.feeds.kubernetes.objects import PODS, Ending, Owned
from lockstep_ledger.feeds.kubernetes.pods import DISRUPTIONS, Pod, PodRun
from lockstep_outcomes.classify import Classification, classify
from lockstep_outcomes.evidence import Evidence, RankEnd
from lockstep_outcomes.signs import SCHEDULER_SIGNS
from lockstep_records.text.printable import printable

_QUEUE_WORDS = {"Preempted": "PreemptionByKueue", "NodeFailures": "NodeLost"}
_MAX_PODS, _MAX_NAME = 64, 100
_RANKS = re.compile(r" on ranks? [\d, ]*\d(?:, \.\.\.)?")
_ONE_RANK = re.compile(r"Ranks? [\d, .]+ was")


def judge_attempt(runs: Sequence[PodRun], pods: dict[str, Pod], word: str = "") -> dict[str, Any]:
    """Fields of the end of an attempt before another; ``word`` is of who took its pods."""
    if word in _QUEUE_WORDS:
        return _fields(classify(Evidence(scheduler=(_QUEUE_WORDS[word],))), word)
    found = _judge_pods(runs, pods)
    if found is not None and not word:
        return _fields(found, "")
    return _fields(classify(Evidence(scheduler=("Deleted",))), word or "Its pods were taken away.")


def judge_job(
    ending: Ending, runs: Sequence[PodRun], pods: dict[str, Pod], *, has_run: bool
) -> dict[str, Any]:
    """Fields of the end of a job."""
    word = ending.word
    if word in {"Completed", "Deleted"}:
        return _fields(classify(Evidence(scheduler=(word,))), ending.message)
    if word == "Unseen":
        return _fields(classify(Evidence()), ending.message)
    if not has_run:
        return _fields(_judge_waiting(word, pods.values()), ending.message)
    sign = SCHEDULER_SIGNS.get(word, "")
    if sign in {"time_limit", "preempted", "cancelled"}:
        return _fields(classify(Evidence(scheduler=(word,))), ending.message)
    found = _judge_pods(runs, pods)
    if found is None:
        found = classify(Evidence(scheduler=(word if sign else "Failed",)))
    bad = [pods[run.pod].name for run in _bad(runs) if run.pod in pods] if len(runs) > 1 else []
    names = (f"Pod {printable(name, _MAX_NAME)} failed first." for name in bad[:1])
    return _fields(found, " ".join((*names, ending.message)))


def find_ending(top: Owned | None, kind: str, pods: Sequence[Pod]) -> Ending | None:
    """The end of a job by its object; by its pods where its object cannot be seen."""
    if top is not None:
        is_deleted = top.ending is None and top.gone is not None
        reason = "Its object was deleted before it had ended."
        return Ending("Deleted", top.gone, reason) if is_deleted else top.ending
    stated = pods[0].ending if pods and kind == PODS.name else None
    left = [pod.gone for pod in pods if pod.gone is not None]
    if stated is not None or not pods or len(left) < len(pods):
        return stated
    if any(run.fate == "unseen" for pod in pods for run in pod.runs.values()):
        return unseen(max(left))
    has_succeeded = {pod.phase for pod in pods if not pod.is_deleted} == {"Succeeded"}
    return Ending("Completed" if has_succeeded else "Deleted", max(left))


def unseen(time: float) -> Ending:
    """The end of a job that left the server while nobody looked."""
    moment = datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")
    return Ending("Unseen", time, f"It was last seen at {moment}.")


def _judge_waiting(word: str, pods: Iterable[Pod]) -> Classification:
    """Why a job ended that never ran."""
    waiting = list(pods)
    reasons = [pod.waiting for pod in waiting if pod.waiting in SCHEDULER_SIGNS]
    if reasons:
        return classify(Evidence(scheduler=(reasons[0],)))
    if any(pod.is_unschedulable for pod in waiting):
        return classify(Evidence(reported=("launch_system",)))
    return classify(Evidence(scheduler=(word if word in SCHEDULER_SIGNS else "Failed",)))


def _bad(runs: Sequence[PodRun]) -> list[PodRun]:
    """The runs that failed, the first of them first."""
    bad = (run for run in runs if run.fate in {"failed", "disrupted"} and run.end is not None)
    return sorted(bad, key=lambda run: (run.end or 0.0, run.part))


def _judge_pods(runs: Sequence[PodRun], pods: dict[str, Pod]) -> Classification | None:
    """The verdict on the runs that failed; None where none did."""
    bad = _bad(runs)
    if not bad:
        return None
    first, pod = bad[0], pods.get(bad[0].pod)
    word = _word_of(first, pod)
    if word:
        return classify(Evidence(scheduler=(word,), outside_time=first.end))
    ranks = tuple(
        RankEnd(
            rank=index, node=run.node or None, exit_code=run.exit_code, first=index == 0,
            last_lines=run.message, time=run.end,
        )
        for index, run in enumerate(bad[:_MAX_PODS])
    )  # fmt: skip
    return classify(Evidence(ranks=ranks, world_size=len(runs)))


def _word_of(run: PodRun, pod: Pod | None) -> str:
    """The reason that names a cause: of the pod, its disruption, or its container."""
    reasons = (
        pod.reason if pod is not None and pod.reason in DISRUPTIONS else "",
        pod.disruption if pod is not None else "",
        run.reason if run.reason not in {"Error", "Completed"} else "",
    )
    return next((reason for reason in reasons if reason in SCHEDULER_SIGNS), "")


def _fields(found: Classification, message: str) -> dict[str, Any]:
    fields = found.event_fields()
    # Ranks are the job's own count, and the pods of an evidence are numbered as they ended.
    reason = _RANKS.sub("", fields["reason"]).replace("Ranks were", "Pods were")
    fields["reason"] = f"{_ONE_RANK.sub('A pod was', reason)} {message}".strip()
    fields["cause_ranks"] = []
    fields.pop("followers", None)
    return fields
