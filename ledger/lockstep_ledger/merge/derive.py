"""The record of a job: a function of its facts and spans, whatever order its events came in."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from lockstep_catalogue.vocabulary import GoodputState
from lockstep_ledger.merge import allocation
from lockstep_ledger.merge.facts import Disagreement, JobFacts
from lockstep_ledger.merge.outcome import Settlement, SettleTimeouts, Verdict, judge, silent_nodes
from lockstep_ledger.merge.precedence import COMPARED, NAMED_CLASSES, SCHEDULER, SETTLED
from lockstep_ledger.merge.record import Record, RunRecord, sum_runs
from lockstep_ledger.merge.runs import SLACK_SECONDS, TOGETHER_SECONDS, Run, runs_of
from lockstep_ledger.merge.spans import Span
from lockstep_ledger.merge.sweep import Source
from lockstep_outcomes.evidence import NodeEvent
from lockstep_outcomes.progress.goodput import JobGoodput

STRUCTURAL = frozenset({
    "job_submitted", "resources_allocated", "job_started", "attempt_started", "attempt_ended",
    "job_preempted", "resources_released", "job_finished", "job_requeued", "node_event", SETTLED,
})  # fmt: skip
"""Kinds after which a record is derived from its spans anew; others only let a run grow."""
_STATED_NUMBERS = {
    "world_size": "world_size", "expected_nodes": "num_nodes", "gpus": "num_gpus",
    "deadline": "deadline_time", "price_per_gpu_hour": "price_per_gpu_hour",
    "declared_tokens": "declared_tokens",
}  # fmt: skip
"""Fields of a record by what a job states."""
_NEVER = Verdict(failure_class="unknown", cause="never_started")
_MAX_OTHERS = 20


Incidents = Callable[[float, float], Sequence[NodeEvent]]
"""Looks up the incidents of a job's nodes from a time on and before another."""


class Derivation:
    """A derivation of a record, from spans of nodes, scheduler and parts by name."""

    def __init__(
        self,
        facts: JobFacts,
        sources: Mapping[str, Source],
        incidents: Incidents = lambda _since, _until: (),
        timeouts: SettleTimeouts | None = None,
    ) -> None:
        self._facts, self._incidents = facts, incidents
        scheduler = sources[SCHEDULER].spans if SCHEDULER in sources else []
        nodes = [span for source in sources.values() if source.is_node for span in source.spans]
        others = [s for source in sources.values() if not source.is_node for s in source.spans]
        parts = [span for span in others if span.node != SCHEDULER]
        self.num_spans = len(scheduler) + len(nodes) + len(parts)
        self.runs = runs_of(nodes, scheduler, parts, facts)
        self._own_start = min((s.begin for s in scheduler if s.has_start), default=None)
        self._verdicts: dict[int, Verdict] = {}
        self._settlement = Settlement(facts, self.runs, timeouts or SettleTimeouts())

    def record(self) -> Record:
        """The record."""
        facts, runs = self._facts, self.runs
        record = Record(facts.cluster, facts.canonical_id, facts.number, facts.owner,
                        sorted({*facts.ids, *facts.aliases}))  # fmt: skip
        self._describe(record)
        settle_at = self._settlement.settle_at(self._outcome)
        is_finished = self._settlement.is_finished(settle_at, self._outcome)
        is_over = (
            is_finished
            or self._settlement.waits_in_queue
            or (bool(runs) and self._settlement.is_complete)
        )
        record.runs = [
            self._run_record(index, is_over=is_over or index < len(runs) - 1)
            for index in range(len(runs))
        ]
        record.disagreements = self._disagreements()
        sum_runs(record)
        self._describe_machines(record)
        record.settle_at = None if is_finished else settle_at
        if is_finished:
            self._end(record)
        elif runs and not self._settlement.waits_in_queue:
            record.status = "ended" if runs[-1].has_end else "running"
        return record

    def update(self, record: Record, changed: Iterable[Span]) -> bool:
        """Brings up to date a record whose run has only grown; whether that is all to be done."""
        facts, run = self._facts, self.runs[-1] if self.runs else Run()
        if record.status not in {"running", "ended"} or not record.runs or record.runs[-1].end:
            return False
        for span in changed:
            key = (span.node, span.number)
            if key not in run.held or run.words[key] != len(span.stated):
                return False
            micros = micros_of(span, run.scheduler_end, facts.gpus_of_node, is_over=False)
            run.hold(span, micros)
            run.heard = max(run.heard, span.heard)
            if not run.has_end:
                run.end = max(run.end, span.heard)
        newest = record.runs[-1]
        newest.states, newest.heard, newest.end_time = states_of(run), run.heard, run.end
        newest.used_gpu_seconds = _used(run)
        self._count(record)
        sum_runs(record)
        record.settle_at = self._settlement.settle_at(self._outcome)
        return True

    def _describe(self, record: Record) -> None:
        facts = self._facts
        for name in ("project", "queue", "job_class", "user", "name", "gpu_model", "currency"):
            setattr(record, name, facts.value(name) or "")
        for name, stated in _STATED_NUMBERS.items():
            setattr(record, name, facts.value(stated))
        record.voucher = facts.voucher
        record.submitted = min((t for t in facts.submitted if t is not None), default=None)
        record.started = next((run.begin for run in self.runs if run.has_start), None)
        self._wait(record)
        self._count(record)

    def _wait(self, record: Record) -> None:
        """Fills in how long it waited, from when it could start, and was held before."""
        submitted, started = self._facts.submitted[0], self._own_start
        if submitted is None or started is None:
            submitted, started = record.submitted, record.started
        if submitted is None or started is None:
            return
        word = self._facts.scheduler_value("eligible_time", started)
        eligible = max(submitted, min(started, submitted if word is None else word))
        record.held_seconds = eligible - submitted
        record.queue_wait_seconds = max(0.0, started - eligible)

    def _count(self, record: Record) -> None:
        """Fills in what counts once, and when the job was heard of."""
        facts = self._facts
        record.updated = facts.heard
        if facts.checkpoint is not None:
            record.last_checkpoint, record.last_checkpoint_step = facts.checkpoint
        record.checkpoint_counts = dict(sorted(facts.counts.items()))
        record.checkpoints = facts.counts.get("ok", 0)
        record.resumes = facts.counts.get("resumed", 0) + facts.counts.get("fallback", 0)

    def _run_record(self, index: int, *, is_over: bool) -> RunRecord:
        run = self.runs[index]
        verdict = self._verdict(index) if is_over else None
        has_failed = verdict is not None and verdict.outcome == "failed"
        gpus_of_node = self._facts.gpus_of_node
        for span in run.spans:
            run.hold(span, micros_of(span, run.scheduler_end, gpus_of_node, is_over=is_over))
        allocate(run, self._facts, is_over=is_over)
        return RunRecord(
            begin=run.begin,
            end=run.end if is_over else None,
            end_time=run.end,
            heard=run.heard,
            has_start=run.has_start,
            nodes=len(run.newest),
            gpus=allocation.gpus_at_end(run.allocation, SLACK_SECONDS),
            attempts=run.attempts() if run.has_start else [],
            outcome=None if verdict is None else verdict.outcome,
            failure_class=None if verdict is None else verdict.failure_class,
            cause=None if verdict is None else verdict.cause,
            requeued_after=self._requeued_after(index),
            is_preempted=run.is_preempted,
            lost_gpu_seconds=self._lost(run) if run.is_preempted or has_failed else 0.0,
            states=states_of(run),
            allocation=run.steps,
            used_gpu_seconds=_used(run),
            is_estimated=is_over and run.is_left_open,
        )

    def _requeued_after(self, index: int) -> str:
        """Why a started run was needed; empty of the first."""
        before = [i for i in range(index) if self.runs[i].has_start]
        if not before or not self.runs[index].has_start:
            return ""
        verdict = self._verdict(before[-1])
        if verdict.outcome == "preempted":
            return "preemption"
        return (
            (verdict.failure_class or "") if verdict.failure_class in NAMED_CLASSES else "unknown"
        )

    def _lost(self, run: Run) -> float:
        """GPU-seconds since the last durable checkpoint or begin of an attempt: nothing is left."""
        stated = [word.lost_gpu_seconds for word in run.preemptions]
        values = [value for value in stated if value is not None]
        if values:
            return max(values)
        times = (t for s in run.spans for t in (*s.starts.values(), *s.checkpoints))
        safe = [time for time in times if time <= run.end]
        return allocation.gpu_seconds(run.allocation, max([run.begin, *safe]), run.end)

    def _describe_machines(self, record: Record) -> None:
        if self.runs:
            newest = self.runs[-1]
            record.run_begin = newest.begin
            record.machines = len(newest.newest)
            of_node = self._facts.gpus_of_node
            gpus = sum(span.gpus(of_node) for span in newest.newest)
            granted = (
                math.inf if newest.granted is None else allocation.gpus_at_end(newest.granted, 0.0)
            )
            record.machine_gpus = min(gpus, granted)

    def _end(self, record: Record) -> None:
        record.status = "finished"
        verdict = self._verdict(len(self.runs) - 1) if self.runs else _NEVER
        record.outcome, record.failure_class = verdict.outcome, verdict.failure_class
        record.cause, record.reason = verdict.cause, verdict.reason
        record.cause_node, record.cause_rank = verdict.node, verdict.rank
        record.ended = self.runs[-1].end if self.runs else self._facts.heard
        if self.runs:
            run = self.runs[-1]
            record.silent_nodes = silent_nodes(run, run.num_nodes(self._facts))

    def _outcome(self) -> str:
        return self._verdict(len(self.runs) - 1).outcome

    def _verdict(self, index: int) -> Verdict:
        if index not in self._verdicts:
            run, later = self.runs[index], self.runs[index + 1 : index + 2]
            until = later[0].begin if later else float("inf")
            since = run.begin if index else 0.0
            self._verdicts[index] = judge(
                run,
                run.num_nodes(self._facts),
                lambda time: self._incidents(max(time, since), until),
            )
        return self._verdicts[index]

    def _disagreements(self) -> list[Disagreement]:
        """Words of launchers and outcomes that do not hold, and statuses that no success has."""
        facts = self._facts
        found = {
            ("launcher", name, value, facts.value(name))
            for name in COMPARED
            if facts.scheduler.get(name)
            for _, value in (*facts.launchers.get(name, ()), *facts.unvouched.get(name, ()))
            if value != facts.value(name)
        }
        others = [node for node in sorted(facts.claimants) if not facts.is_placed(node)]
        found |= {("launcher", "nodes", node, None) for node in others[:_MAX_OTHERS] if facts.nodes}
        for index, run in enumerate(self.runs):
            verdict = self._verdict(index) if run.has_end or index < len(self.runs) - 1 else None
            if verdict is not None and verdict.loser:
                found.add((verdict.loser, "outcome", verdict.lost, verdict.outcome))
            found |= {
                ("launcher", "ended", span.ending.order[0], span.end)
                for span in run.spans
                if span.ending and span.is_inverted
            }
            ending = None if run.scheduler is None else run.scheduler.ending
            if ending is not None and ending.outcome == "succeeded" and ending.exit_code:
                found.add(("scheduler", "exit_code", ending.exit_code, 0))
            found |= {("launcher", "gpus", *each) for each in run.exceeded}
        return sorted({*found, *map(tuple, facts.contradictions)}, key=str)


def _used(run: Run) -> float | None:
    """GPU-seconds of its launchers, of what was granted; None without a launcher."""
    if not run.spans:
        return None
    return max(
        0.0,
        allocation.held(run.steps, run.until) - allocation.gpu_seconds(run.unused, until=run.until),
    )


UNUSED = "idle"
"""What becomes of GPUs that a scheduler granted and no launcher used."""
HELD = "held_after_end"
States = dict[str, float]


def micros_of(
    span: Span, scheduler_end: float | None, gpus_of_node: float | None, *, is_over: bool
) -> dict[str, int]:
    """GPU-microseconds of a span by state; of a run that goes on only what is reported.

    Whole numbers: their sum over a thousand nodes is the same whatever its order is.
    """
    reported: States = {}
    for totals in span.goodput.values():
        for state, seconds in totals.items():
            reported[state] = reported.get(state, 0.0) + seconds
    if span.recovery_gpu_seconds:
        reported["recovery"] = reported.get("recovery", 0.0) + span.recovery_gpu_seconds
    if not (is_over or reported):
        return {}
    end = _end_of(span, scheduler_end if is_over else None)
    had = allocation.gpu_seconds(span.intervals(end, gpus_of_node, ""))
    total = had if is_over else min(had, sum(reported.values()))
    fitted = _fit(reported, total, "unknown")
    return {state: round(seconds * allocation.MICRO) for state, seconds in fitted.items()}


def states_of(run: Run) -> States:
    """GPU-seconds of a run by state, from those of its spans; they sum to its allocation.

    Of one that goes on these are up to the newest word on it; what no report explains is unknown.
    """
    total, end = allocation.held(run.steps, run.until), run.scheduler_end
    unused = min(total, allocation.gpu_seconds(run.unused, until=run.until))
    late = (i for i in run.granted or () if end and i.end_by(math.inf) > end + SLACK_SECONDS)
    after_end = min(unused, allocation.gpu_seconds(late, end or 0.0, run.until))
    states = {state: number / allocation.MICRO for state, number in run.micros.items() if number}
    states = _fit(states, total - unused, "unknown")
    rest = UNUSED if run.spans else "unknown"
    for state, seconds in ((rest, unused - after_end), (HELD, after_end)):
        if seconds:
            states[state] = states.get(state, 0.0) + seconds
    return states


def allocate(run: Run, facts: JobFacts, *, is_over: bool) -> None:
    """Fills in what was granted and used, of each field the heaviest word."""
    model, gpus_of_node = facts.value("gpu_model") or "", facts.gpus_of_node
    stated = facts.scheduler_value("gpu_model", run.scheduler_end) or ""
    run.used = []
    for span in run.spans:
        is_open = span.end is None and span.bound is None and not is_over
        end = None if is_open else _end_of(span, run.scheduler_end if is_over else None)
        of_node = stated or span.gpu_model or model
        run.used += span.intervals(end, gpus_of_node, of_node)
    granted = _granted(run, facts, is_over=is_over)
    run.granted = None if granted is None else list(allocation.share_models(granted, run.used))
    run.unused, run.exceeded = [], set()
    for begin, end, own, worn in (
        () if granted is None else allocation.side_by_side(run.granted or (), run.used)
    ):
        if own - min(own, worn) > 1 / allocation.MICRO:
            until = None if end == math.inf else end
            run.unused.append(allocation.Interval(begin, until, own - min(own, worn)))
        if worn > own > 0 and end - begin > TOGETHER_SECONDS:
            run.exceeded.add((worn, own))
    heavier = run.used if run.granted is None else run.granted
    run.allocation = [each if each.model else each._replace(model=model) for each in heavier]
    run.steps, run.is_over = allocation.steps_of(run.allocation), is_over


def ratios(goodput_seconds: Mapping[GoodputState, float]) -> dict[str, float | None]:
    """Goodput and ETTR of a job; None where no GPU time is reported."""
    shares = JobGoodput(gpu_seconds=goodput_seconds)
    return {"goodput_ratio": shares.productive_ratio, "ettr_ratio": shares.ettr_ratio}


def _end_of(span: Span, scheduler_end: float | None) -> float:
    """Its end, else that of the scheduler or its newest event, at the latest the next begin."""
    if span.end is not None:
        return span.end
    end = span.heard if scheduler_end is None else scheduler_end
    return end if span.bound is None else min(end, span.bound)


def _fit(states: States, total: float, rest: str) -> States:
    """States that sum to a total: scaled down where they are more, with a rest where less."""
    reported = sum(states.values())
    if reported > total:
        return {state: seconds * total / reported for state, seconds in states.items()}
    if total > reported:
        return {**states, rest: states.get(rest, 0.0) + total - reported}
    return states


def _granted(run: Run, facts: JobFacts, *, is_over: bool) -> list[allocation.Interval] | None:
    """What the scheduler granted a run; None where it does not state it.

    What it does not end itself ends with the run, and without nodes where the next one begins.
    """
    span = run.scheduler
    if span is None or not span.has_start:
        return None
    end = span.end if run.spans or span.end is not None else span.bound
    end = run.end if end is None and is_over else end
    if run.parts:
        models = {each.machine: each.gpu_model for each in run.spans if each.gpu_model}
        found: list[allocation.Interval] = []
        for part in run.parts:
            until = part.end
            if until is None and part.bound and part.bound < (span.bound or math.inf):
                until = part.bound  # it is held on
            elif until is None and end is not None:
                until = max(end, part.heard)
            model = part.gpu_model or models.get(part.machine, "")
            found += part.intervals(until, 0.0, model)
        return found
    words = facts.words_of_run(span.begin, end)
    return None if words is None else list(allocation.step_intervals(span.begin, end, words))
