"""What schedulers tell of a job: Slurm in whole seconds, Kubernetes by part."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .truth import Ending, TrueJob, TrueRun, tick

Write = Callable[[float, str, int, Mapping[str, Any]], None]
"""Takes stated time, kind, attempt and fields."""

_WORDS: dict[Ending, tuple[str, str | None, str]] = {
    "success": ("succeeded", None, "success"),
    "silent_success": ("succeeded", None, "success"),
    "not_converged": ("succeeded", None, "success"),
    "node_lost": ("failed", "infra", "node_failure"),
    "all_dead": ("failed", "infra", "node_failure"),
    "preempted": ("preempted", None, "preemption"),
    "time_limit": ("time_limit", "user", "time_limit"),
    "cancelled": ("cancelled", None, "cancelled"),
    "hang": ("cancelled", None, "cancelled"),
    "bare": ("failed", "user", "host_oom"),
}


@dataclass(kw_only=True, slots=True)
class SchedulerStory:
    """Tells a job as a scheduler does.

    Attributes:
        keeps_ends: whether it tells of the end of a run that it requeues, beside the requeue.
    """

    rng: random.Random
    job: TrueJob
    write: Write
    is_slurm: bool
    keeps_ends: bool
    aliases: tuple[str, ...]
    states_gpus: bool = True

    def report_all(self) -> None:
        """Writes all words of the scheduler."""
        words = {**self.job.words, "aliases": list(self.aliases)}
        if not self.states_gpus:
            words.pop("num_gpus", None)
        self._write(self.job.submitted, "job_submitted", 0, words)
        for restarts, run in enumerate(self.job.runs):
            self._report_run(restarts, run, is_last=restarts == len(self.job.runs) - 1)
        if self.job.in_queue == "cancelled":
            last = self.job.runs[-1].end if self.job.runs else self.job.submitted
            fields = {"outcome": "cancelled", "cause": "cancelled"}
            self._write(tick(last + 500), "job_finished", len(self.job.runs), fields)

    def _report_run(self, restarts: int, run: TrueRun, *, is_last: bool) -> None:
        fields: dict[str, Any] = {"num_nodes": len(run.nodes), "aliases": list(self.aliases)}
        if self.states_gpus:
            fields["num_gpus"] = len(run.nodes) * run.gpus_per_node
        self._write(run.begin, "job_started", restarts, fields)
        if not self.is_slurm:
            self._report_parts(restarts, run)
        if run.ending == "never":
            return
        if run.ending == "preempted" and (self.rng.random() < 0.7 or not self.keeps_ends):
            reason = {"reason": "Preempted"}
            self._write(run.attempts[-1].end - 2, "job_preempted", restarts, reason)
        is_requeued = not is_last or self.job.in_queue != "started"
        if not is_requeued or self.keeps_ends:
            outcome, failure_class, cause = _WORDS.get(run.ending, ("failed", "unknown", "exit"))
            ending = {"outcome": outcome, "failure_class": failure_class, "cause": cause}
            stated = {name: value for name, value in ending.items() if value is not None}
            self._write(run.end, "job_finished", restarts, stated)
        if is_requeued:
            self._write(run.end, "job_requeued", restarts, {"restart_count": restarts + 1})

    def _report_parts(self, restarts: int, run: TrueRun) -> None:
        for node in run.nodes:
            part = f"{self.job.job_id}-{restarts}-{node}"
            fields = {"part": part, "num_gpus": run.gpus_per_node, "node": node}
            self._write(run.begin, "resources_allocated", restarts, fields)
            if run.ending != "never" and self.rng.random() < 0.8:
                self._write(run.end, "resources_released", restarts, {"part": part})

    def _write(self, time: float, kind: str, restarts: int, fields: Mapping[str, Any]) -> None:
        self.write(math.floor(time) if self.is_slurm else time, kind, restarts, fields)
