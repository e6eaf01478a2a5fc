"""What launchers of nodes and a scheduler each say of a job."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep_catalogue.vocabulary import GOODPUT_STATES

from .truth import Ending, TrueAttempt, TrueJob, TrueRun, tick

NodeWrite = Callable[[str, float, str, int, Mapping[str, Any]], None]
"""Takes node, true time, kind, attempt and fields."""
_STATES = tuple(sorted(set(GOODPUT_STATES) - {"startup", "hang"}))


@dataclass(kw_only=True, slots=True)
class NodeStory:
    """Tells a run as its nodes do.

    Attributes:
        fields: of each node's start, beside the ranks.
        always_states_start: whether no start of a launcher is ever lost, for it alone joins ids.
        last_step: newest durable checkpoint of the job so far.
        restarts_launcher: whether the launcher itself restarts in place, not only its ranks.
    """

    rng: random.Random
    job: TrueJob
    run: TrueRun
    write: NodeWrite
    fields: Mapping[str, Any]
    last_step: int = 0
    restarts_launcher: bool = False
    always_states_start: bool = False

    def report_all(self) -> int:
        """Writes all events of the run; returns the step of the newest durable checkpoint."""
        for node in self.run.nodes:
            begin = tick(self.run.begin + self.rng.uniform(0.125, 3.5))
            self._report_node(node, begin)
        for attempt in self.run.attempts:
            self._report_checkpoints(attempt)
        return self.last_step

    def _report_node(self, node: str, begin: float) -> None:
        first, rng = self.run.attempts[0], self.rng
        ranks = {"nproc_per_node": self.run.gpus_per_node}
        if self.always_states_start or rng.random() < 0.9:
            self.write(node, begin, "job_started", first.number, {**self.fields, **ranks})
        for attempt in self.run.attempts:
            is_last = attempt is self.run.attempts[-1]
            start = begin + 0.25 if attempt is first else attempt.begin
            gpus = {"num_gpus": self.run.gpus_per_node}
            if attempt is not first and self.restarts_launcher:
                self.write(node, start - 0.125, "job_started", attempt.number, dict(self.fields))
            self.write(node, start, "attempt_started", attempt.number, gpus)
            end, is_silent = self._node_end(node, attempt, is_last)
            self._report_goodput(node, attempt, start, end)
            if is_silent:
                return
            self._report_end(node, attempt, end, is_last)

    def _node_end(self, node: str, attempt: TrueAttempt, is_last: bool) -> tuple[float, bool]:
        """When a node's attempt ends, and whether its node is silent from then on."""
        if not is_last:
            return tick(attempt.end + self.rng.uniform(0, 1)), False
        ending, is_cause = self.run.ending, node == self.run.cause_node
        is_silent = ending in {"all_dead", "never"} or (
            ending in {"node_lost", "silent_success"} and is_cause
        )
        delay = 0.0 if is_cause else self.rng.uniform(0.125, 2)
        return tick(attempt.end + delay), is_silent

    def _report_end(self, node: str, attempt: TrueAttempt, end: float, is_last: bool) -> None:
        if not is_last:
            fields = {"outcome": "failed", "failure_class": "unknown", "cause": "exit"}
            self.write(node, end, "attempt_ended", attempt.number, fields)
            if self.restarts_launcher:
                self.write(node, end + 0.125, "job_finished", attempt.number, fields)
            return
        fields = self._end_fields(node)
        if self.rng.random() < 0.8:
            self.write(node, end, "attempt_ended", attempt.number, fields)
        self.write(node, tick(end + 0.125), "job_finished", attempt.number, fields)

    def _end_fields(self, node: str) -> dict[str, Any]:
        rng, ending = self.rng, self.run.ending
        if ending in {"success", "silent_success"}:
            return {"outcome": "succeeded", "cause": "success"}
        if ending in {"user_failure", "infra_failure"} and node == self.run.cause_node:
            failure_class = ending.removesuffix("_failure")
            return {"outcome": "failed", "failure_class": failure_class, "cause": self.run.cause}
        causes = {
            "user_failure": ["peer_failure", "collective_timeout"],
            "infra_failure": ["peer_failure", "collective_timeout"],
            "node_lost": ["collective_timeout"],
            "xid_elsewhere": ["collective_timeout"],
            "bare": ["exit", "killed"],
            "hang": ["hang"],
        }
        if ending in causes:
            cause = rng.choice(causes[ending])
            return {"outcome": "failed", "failure_class": "unknown", "cause": cause}
        # A launcher that knows nothing of the reason saw a signal.
        is_blunt = self.job.scheduler and ending != "not_converged" and rng.random() < 0.4
        outcome = "cancelled" if is_blunt else ending
        fields: dict[str, Any] = {"outcome": outcome, "cause": outcome}
        return {**fields, "failure_class": "user"} if outcome == "time_limit" else fields

    def _report_goodput(self, node: str, attempt: TrueAttempt, start: float, end: float) -> None:
        """Reports of totals that grow, in rank-seconds that the attempt can have had."""
        rng, gpus = self.rng, self.run.gpus_per_node
        ranks = gpus * rng.choice([1, 1, 1, 2])
        startup = min(tick(rng.uniform(5, 30)), (end - start) / 2)
        states = ["productive", *rng.sample(_STATES, k=4)]
        shares = [rng.random() for _ in states]
        coverage = rng.choice([0.9, 1.0, 1.0])
        for index in range(1, rng.randint(0, 3) + 1):
            time = tick(start + (end - start) * index / 3.5)
            stepping = max(0.0, time - start - startup) * ranks * coverage / sum(shares)
            seconds = {"startup": tick(startup * ranks)} if time - start >= startup else {}
            seconds |= {
                name: int(share * stepping * 8) / 8
                for name, share in zip(states, shares, strict=True)
            }
            if self.run.ending == "hang":
                seconds["hang"] = seconds.pop("productive")
            fields = {"rank_seconds": seconds, "num_gpus": gpus, "num_ranks": ranks}
            self.write(node, time, "goodput", attempt.number, fields)

    def _report_checkpoints(self, attempt: TrueAttempt) -> None:
        rng, nodes = self.rng, list(self.run.nodes)
        if self.last_step and rng.random() < 0.8:
            self._report_resume(attempt)
        for index in range(rng.randint(0, 3)):
            self.last_step += 100
            time = attempt.begin + (attempt.end - attempt.begin) * (index + 1) / 5
            for node in nodes if rng.random() < 0.5 else nodes[:1]:
                at = tick(time + rng.uniform(4, 6))
                self.write(node, at, "checkpoint_durable", attempt.number, {"step": self.last_step})
        if rng.random() < 0.15:
            for total, node in enumerate(rng.choices(nodes, k=2), 1):
                at = tick(attempt.begin + (attempt.end - attempt.begin) * (0.3 + total / 10))
                outcome = rng.choice(["failed", "invalid"])
                fields = {"total": total, "outcome": outcome}
                self.write(node, at, "checkpoint_failed", attempt.number, fields)

    def _report_resume(self, attempt: TrueAttempt) -> None:
        rng = self.rng
        if rng.random() < 0.15:
            node = rng.choice(list(self.run.nodes))
            at = tick(attempt.begin + 4.5)
            self.write(node, at, "restore_failed", attempt.number, {"total": rng.randint(1, 2)})
        fell_back = rng.choice([None, *self.run.nodes]) if rng.random() < 0.2 else None
        for node in self.run.nodes:
            at = tick(attempt.begin + rng.uniform(5, 6))
            fields = {"step": self.last_step, "fallback": node == fell_back}
            self.write(node, at, "job_resumed", attempt.number, fields)


SchedulerWrite = Callable[[float, str, int, Mapping[str, Any]], None]
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
    """Tells a job as a scheduler does, an end beside the requeue where it ``keeps_ends``."""

    rng: random.Random
    job: TrueJob
    write: SchedulerWrite
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
