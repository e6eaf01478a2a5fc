"""What a job adds to every counter: a function of what is known of it now."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from .arrivals import Fact
from .job_history import JobHistory
from .runs import Run

CHECKPOINT_OUTCOMES = ("ok", "failed", "invalid")
RESTORES = ("ok", "fallback", "failed")


def attempt_starts(run: Run) -> list[float]:
    """When each attempt of a run began, the first with it: one ends where a node comes again."""
    starts: dict[tuple[str, int, int], float] = {}
    for number, span in enumerate(run.spans):
        for fact in span.facts:
            if fact.kind in {"job_started", "attempt_started"}:
                starts.setdefault((span.node, number, fact.attempt), fact.time)
    found, nodes = [run.begin], set[str]()
    for time, node in sorted((time, key[0]) for key, time in starts.items()):
        if node in nodes:
            found.append(time)
            nodes = set()
        nodes.add(node)
    return found


def requeue_causes(job: JobHistory) -> list[str]:
    """Why each started run but the first was needed."""
    verdicts = [
        each.verdict for run, each in zip(job.runs, job.verdicts, strict=True) if run.has_start
    ]
    return [
        "preemption"
        if verdict.outcome == "preempted"
        else verdict.failure_class
        if verdict.failure_class in {"infra", "user"}
        else "unknown"
        for verdict in verdicts[:-1]
    ]


def durable_checkpoints(job: JobHistory) -> dict[tuple[int, int | None], Fact]:
    """The earliest event of each durable checkpoint, by attempt and step."""
    found: dict[tuple[int, int | None], Fact] = {}
    for fact in job.facts:
        if fact.kind == "checkpoint_durable":
            found.setdefault((fact.attempt, fact.fields.get("step")), fact)
    return found


def growths(facts: Sequence[Fact], kind: str) -> Iterator[tuple[Fact, str, int]]:
    """Growth of the highest total of an attempt and outcome: event, outcome, number."""
    highest: Counter[tuple[int, str]] = Counter()
    for fact in facts:
        if fact.kind == kind:
            key = (fact.attempt, fact.text("outcome") or "")
            total = int(fact.number("total") or 0)
            if total > highest[key]:
                yield fact, key[1], total - highest[key]
                highest[key] = total


def checkpoints(job: JobHistory) -> Counter[str]:
    counts = Counter(dict.fromkeys(CHECKPOINT_OUTCOMES, 0))
    counts["ok"] = len(durable_checkpoints(job))
    for _, outcome, number in growths(job.facts, "checkpoint_failed"):
        counts[outcome] += number
    return counts


def resumed_attempts(job: JobHistory) -> dict[int, tuple[Fact, bool]]:
    """The earliest resume of each attempt, and whether any node fell back."""
    found: dict[int, tuple[Fact, bool]] = {}
    for fact in job.facts:
        if fact.kind == "job_resumed" and (fact.number("step") or 0) > 0:
            first, fell_back = found.get(fact.attempt, (fact, False))
            found[fact.attempt] = (first, fell_back or fact.fields.get("fallback") is True)
    return found


def restores(job: JobHistory) -> Counter[str]:
    counts = Counter(dict.fromkeys(RESTORES, 0))
    for _, fell_back in resumed_attempts(job).values():
        counts["fallback" if fell_back else "ok"] += 1
    counts["failed"] = sum(number for *_, number in growths(job.facts, "restore_failed"))
    return counts


def checkpoints_until(job: JobHistory, time: float) -> list[float]:
    """When the durable checkpoints of a job became so, up to a time."""
    return [fact.time for fact in durable_checkpoints(job).values() if fact.time <= time]


def lost_gpu_seconds(job: JobHistory, run: Run) -> float:
    """GPU time of a run since its last checkpoint or attempt, unless the scheduler says it."""
    stated = [fact.number("lost_gpu_seconds") for fact in run.preemptions]
    values = [value for value in stated if value is not None]
    if values:
        return max(values)
    safe = [run.begin]
    for span in run.spans:
        begun: dict[int, float] = {}
        for fact in span.facts:
            if fact.kind in {"job_started", "attempt_started"}:
                begun.setdefault(fact.attempt, fact.time)
        safe += [*begun.values(), *(f.time for f in span.facts if f.kind == "checkpoint_durable")]
    return job.time_of(run).between(max(time for time in safe if time <= run.end), run.end)


def states_of(job: JobHistory) -> dict[str, float]:
    """GPU-seconds of all runs by goodput state."""
    states: dict[str, float] = defaultdict(float)
    for time in job.gpu_times:
        for state, seconds in time.states.items():
            states[state] += seconds
    return {state: seconds for state, seconds in sorted(states.items()) if seconds}


def cost_of(job: JobHistory) -> tuple[str, float]:
    """Currency and amount of all GPU time."""
    price, currency = job.words.value("price_per_gpu_hour"), job.words.value("currency")
    if price is None:
        price, currency = job.settings.price, job.settings.currency
    hours = sum(time.total for time in job.gpu_times) / 3600
    return str(currency or ""), hours * float(price or 0.0)


def ended_at(job: JobHistory) -> float | None:
    """When the job ended; None while it is not finished."""
    if not job.is_finished:
        return None
    return job.runs[-1].end if job.runs else job.facts[-1].time


def outcome_of(job: JobHistory) -> tuple[str | None, str | None, str | None]:
    """Outcome, class and cause; nothing while it is not finished."""
    if not job.is_finished:
        return None, None, None
    if not job.runs:
        return "unknown", "unknown", "never_started"
    verdict = job.verdicts[-1].verdict
    return verdict.outcome, verdict.failure_class, verdict.cause


def met_deadline(job: JobHistory) -> bool | None:
    """Whether it succeeded in time; None without a deadline or an end of its own."""
    deadline, end = job.words.value("deadline_time"), ended_at(job)
    outcome = outcome_of(job)[0]
    if deadline is None or end is None or outcome == "cancelled":
        return None
    return outcome == "succeeded" and end <= deadline
