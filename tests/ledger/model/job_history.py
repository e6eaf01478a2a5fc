"""A job as its facts tell it: runs, words, verdicts, GPU time, and when it is settled."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from .arrivals import Fact
from .gpu_time import GpuTime, parts_of, times_of_runs
from .joins import JoinedJob
from .runs import (
    NO_SIGNS_OF_LIFE,
    SLACK_SECONDS,
    Run,
    Span,
    add_words,
    runs_of,
    spans_of_node,
    spans_of_scheduler,
)
from .verdicts import RunVerdict, is_preempted, judge, silent_nodes
from .words import Words, words_of

NEVER_STARTED_SECONDS = 30 * 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the ledger was started with; ``price`` is of a GPU-hour where a job declares none."""

    node_wait_seconds: float = 600.0
    requeue_wait_seconds: float = 86_400.0
    silent_wait_seconds: float = 21_600.0
    price: float | None = None
    currency: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settlement:
    """The ledger's own word that it waits no longer for the run that began then."""

    job_id: str
    run_begin: float
    time: float


@dataclass(frozen=True, kw_only=True)
class JobHistory:
    """What a job's facts tell at a moment of the ledger's clock."""

    joined: JoinedJob
    settings: Settings
    now: float
    settlements: Sequence[Settlement] = ()

    @cached_property
    def facts(self) -> Sequence[Fact]:
        return self.joined.facts

    @cached_property
    def words(self) -> Words:
        """What is stated about the job as a whole."""
        return words_of(self.facts)

    @cached_property
    def scheduler_spans(self) -> list[Span]:
        return spans_of_scheduler([fact for fact in self.facts if not fact.node])

    @cached_property
    def node_spans(self) -> list[Span]:
        zones = [span.begin - SLACK_SECONDS for span in self.scheduler_spans if span.has_start]
        of_nodes = sorted((f for f in self.facts if f.node), key=lambda fact: fact.node)
        by_node = groupby(of_nodes, key=lambda fact: fact.node)
        return [span for _, own in by_node for span in spans_of_node(own, zones)]

    @cached_property
    def runs(self) -> list[Run]:
        """Its runs by begin, with preemptions and incidents."""
        num_nodes = self.words.value("num_nodes")
        runs = runs_of(self.node_spans, self.scheduler_spans, num_nodes)
        if runs:
            add_words(runs, self.facts)
        return runs

    @property
    def started_runs(self) -> list[Run]:
        return [run for run in self.runs if run.has_start]

    @cached_property
    def verdicts(self) -> list[RunVerdict]:
        """What became of each run, as if nothing more was heard."""
        return [judge(run, self.num_nodes(run)) for run in self.runs]

    def num_nodes(self, run: Run) -> int | None:
        """Nodes that a run needs; None where nobody says."""
        value = self.words.scheduler_value("num_nodes", run.scheduler_end)
        if value is None:
            own = [f.number("num_nodes") for f in run.facts if f.kind == "job_started"]
            value = next((each for each in own if each is not None), None)
        if value is None:
            value = self.words.value("num_nodes")
        return None if value is None else int(value)

    @cached_property
    def gpu_times(self) -> list[GpuTime]:
        """GPU time of each run; of the newest up to its last word while it goes on."""
        parts = parts_of([fact for fact in self.facts if not fact.node])
        over = [*[True] * len(self.runs[1:]), *[self.is_last_run_over] * len(self.runs[:1])]
        return times_of_runs(self.runs, over, self.words, parts)

    def time_of(self, run: Run) -> GpuTime:
        return next(t for each, t in zip(self.runs, self.gpu_times, strict=True) if each is run)

    @property
    def waits_in_queue(self) -> bool:
        """Whether it went back to the queue after its newest run, and did not start again."""
        requeued = [fact.time for fact in self.facts if fact.kind == "job_requeued"]
        if not self.runs or not requeued or not self.runs[-1].has_start:
            return False
        run = self.runs[-1]
        if run.scheduler is None:
            return max(requeued) >= run.begin
        return run.scheduler_end is not None and max(requeued) >= run.scheduler_end

    @property
    def is_complete(self) -> bool:
        """Whether as many nodes of its newest run have ended as it needs, or the scheduler's."""
        run = self.runs[-1]
        if not run.spans:
            return run.scheduler_end is not None
        needed = self.num_nodes(run)
        has_all = needed is None or len(run.last_spans) >= needed
        return not silent_nodes(run) and has_all and not run.goes_on

    @cached_property
    def settled_at(self) -> float | None:
        """Clock from which on the ledger waits no longer; None where it waits for ever."""
        heard = max(fact.received for fact in self.facts)
        if not self.runs or self.waits_in_queue:
            return heard + NEVER_STARTED_SECONDS
        run, settings = self.runs[-1], self.settings
        ends = [span.end_fact for span in run.last_spans if span.end_fact is not None]
        received = [fact.received for fact in ends]
        if run.scheduler_end is not None:
            received.append(self._scheduler_end_received(run))
        if not received or run.goes_on:
            is_reported = run.scheduler is not None and run.scheduler_end is None
            wait = NEVER_STARTED_SECONDS if is_reported else settings.silent_wait_seconds
            return heard + wait
        first = min(received)
        settled = first if self.is_complete else first + settings.node_wait_seconds
        if self.verdicts[-1].verdict.outcome == "preempted" and run.has_start:
            settled = max(settled, first + settings.requeue_wait_seconds)
        return settled

    @cached_property
    def is_finished(self) -> bool:
        is_due = self.settled_at is not None and self.settled_at <= self.now
        return is_due or (bool(self.runs) and any(map(self._holds, self.settlements)))

    @property
    def is_last_run_over(self) -> bool:
        """Whether its newest run has an end that nothing is waited for."""
        if not self.runs:
            return False
        return self.is_finished or self.waits_in_queue or self.is_complete

    @property
    def status(self) -> str:
        """Pending, running, ended (and waited for) or finished."""
        if self.is_finished:
            return "finished"
        if not self.runs or self.waits_in_queue:
            return "pending"
        run = self.runs[-1]
        has_end = run.scheduler_end is not None or any(
            span.end is not None for span in run.last_spans
        )
        return "ended" if has_end else "running"

    @property
    def is_preempted(self) -> list[bool]:
        """Whether each run has a word of preemption."""
        return [is_preempted(run) for run in self.runs]

    @property
    def has_failed(self) -> list[bool]:
        over = [*[True] * len(self.runs[1:]), *[self.is_last_run_over] * len(self.runs[:1])]
        return [
            is_over and each.verdict.outcome == "failed"
            for is_over, each in zip(over, self.verdicts, strict=True)
        ]

    def _scheduler_end_received(self, run: Run) -> float:
        """When the ledger first heard the scheduler's end of a run."""
        received = [
            fact.received
            for fact in self.facts
            if not fact.node
            and fact.kind in {"job_finished", "job_requeued"}
            and fact.time == run.scheduler_end
        ]
        return min(received)

    def _holds(self, settlement: Settlement) -> bool:
        """Whether a settlement is about the newest run, and none of its nodes is alive since."""
        run = self.runs[-1]
        words = run.scheduler.facts if run.scheduler is not None and run.is_left_open else []
        life = [fact.time for fact in (*run.facts, *words) if fact.kind not in NO_SIGNS_OF_LIFE]
        is_about = settlement.run_begin >= run.begin - SLACK_SECONDS and not self.waits_in_queue
        return is_about and max(life, default=0.0) <= settlement.time
