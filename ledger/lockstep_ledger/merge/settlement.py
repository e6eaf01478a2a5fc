"""Waits of a job for what is missing, and the time at which its newest run is settled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockstep_ledger.merge.facts import JobFacts
from lockstep_ledger.merge.runs import SLACK_SECONDS, Run

_LOST_SECONDS = 30 * 86_400.0
"""For a start, and for any word on what a scheduler has started and not ended."""
Outcome = Callable[[], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class SettleTimeouts:
    """How long the ledger waits, by its own clock.

    Attributes:
        node_seconds: for the ends of the other nodes, after an end of one.
        requeue_seconds: for a start after a preemption, before it is the job's outcome.
        silent_seconds: for any event of a job that started and of which no scheduler speaks.
    """

    node_seconds: float = 600.0
    requeue_seconds: float = 86_400.0
    silent_seconds: float = 21_600.0


@dataclass(frozen=True, slots=True)
class Settlement:
    """Whether the newest run of a job is over.

    The outcome that questions take is that of the newest run, as if nothing more was heard of it.
    """

    facts: JobFacts
    runs: Sequence[Run]
    timeouts: SettleTimeouts

    @property
    def waits_in_queue(self) -> bool:
        """Whether the job went back to the queue after its newest run, and did not start again."""
        requeued = self.facts.requeued
        if not self.runs or requeued is None or not self.runs[-1].has_start:
            return False
        run = self.runs[-1]
        if run.scheduler is None:
            return requeued >= run.begin
        return run.scheduler_end is not None and requeued >= run.scheduler_end

    @property
    def is_complete(self) -> bool:
        """Whether all nodes of the newest run have ended, and as many as it needs."""
        run = self.runs[-1]
        if run.scheduler is not None and not run.spans and run.scheduler_end is not None:
            return True
        num_nodes = run.num_nodes(self.facts)
        has_all = num_nodes is None or len(run.newest) >= num_nodes
        return bool(run.spans) and not run.silent and has_all and not run.goes_on

    def settle_at(self, outcome: Outcome) -> float | None:
        """Clock from which on the ledger waits no longer; None where it waits for ever."""
        facts, timeouts = self.facts, self.timeouts
        if not self.runs or self.waits_in_queue:
            return facts.received + _LOST_SECONDS
        run = self.runs[-1]
        stated = (*run.newest, *([run.scheduler] if run.scheduler else ()))
        received = [span.end_received for span in stated if span.end_received is not None]
        if not received or run.goes_on:
            has_scheduler = run.scheduler is not None
            return facts.received + (_LOST_SECONDS if has_scheduler else timeouts.silent_seconds)
        first = min(received)
        settle_at: float = first if self.is_complete else first + timeouts.node_seconds
        if run.has_start and outcome() == "preempted":
            settle_at = max(settle_at, first + timeouts.requeue_seconds)
        return settle_at

    def is_finished(self, settle_at: float | None, outcome: Outcome) -> bool:
        """Whether nothing is waited for any more."""
        facts = self.facts
        if not self.runs or self.waits_in_queue:
            return any(
                each.run_begin is None and each.time >= facts.heard for each in facts.settlements
            )
        run = self.runs[-1]
        if self.is_complete and not (run.has_start and outcome() == "preempted"):
            return True
        own = [
            each
            for each in facts.settlements
            if each.run_begin is not None and each.run_begin >= run.begin - SLACK_SECONDS
        ]
        is_due = settle_at is not None and settle_at <= facts.received
        # A later sign of life of a node tells that the ledger settled too early.
        stated = [run.scheduler] if run.scheduler is not None and run.is_left_open else []
        alive = max((span.alive for span in (*run.spans, *stated)), default=0.0)
        return bool(own) and (is_due or any(alive <= each.time for each in own))
