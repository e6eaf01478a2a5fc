"""PromQL of what is lost: nodes that are gone, GPUs of jobs, their causes, and work at risk."""

from lockstep_alerts.conditions.joins import (
    JOB_JOIN,
    JOB_LABELS,
    MACHINE_JOIN,
    NODE_LABELS,
    RUNNING,
    has_paused,
    kube_says,
    recent,
)
from lockstep_alerts.conditions.wide import explained_jobs, hit_nodes
from lockstep_alerts.rules.parameters import Expressions, Parameters
from lockstep_catalogue import agent, foreign, recorded, training
from lockstep_catalogue.labels import CLUSTER, GOODPUT, NODE, STATE
from lockstep_catalogue.ledger import SLO
from lockstep_catalogue.promql import Matcher, by, eq, names, one_of, rate, select
from lockstep_outcomes.progress.hangs import HANG_TIMEOUT_SECONDS

_MEMORY, _MEMORY_SECONDS = "1h", 3600
_RESTART_SECONDS = 300
"""An agent is replaced in less, and says nothing meanwhile of a job that it alone reports."""
_LONG_STEPS = 1.5
_AGENT = select(agent.AGENT_INFO)


def _carried(_: Parameters) -> str:
    # A job that leaves while the agent is seen is written off by a zero: it is not hit any more.
    ranks = select(training.RANKS, one_of(STATE, *RUNNING))
    now = by("max", f"timestamp({ranks} > 0)", *NODE_LABELS)
    carried = (
        f"(last_over_time({select(recorded.CARRIED)}[{_MEMORY}]) > time() - {_MEMORY_SECONDS})"
    )
    return f"({now}\nor 0 * {carried}) and {MACHINE_JOIN} {_AGENT}\nor {carried}"


def _gone(rules: Parameters) -> str:
    windows, carried = rules.windows, select(recorded.CARRIED)

    def silent(window: str) -> str:
        present = by("group", f"present_over_time({_AGENT}[{window}])", CLUSTER, NODE)
        return f"({carried} unless {MACHINE_JOIN} {present})"

    def ready(status: str, *matchers: Matcher) -> str:
        kind = (eq(foreign.KUBE_CONDITION, "Ready"), eq(foreign.KUBE_STATUS, "true"))
        condition = select(foreign.KUBE_NODE_CONDITION, *kind, *matchers)
        return f"({by('max', condition, CLUSTER, NODE)} == {status})"

    is_ready = kube_says(carried, lambda *matchers: ready("1", *matchers))
    not_ready = kube_says(carried, lambda *matchers: ready("0", *matchers))
    # Ranks that are reported elsewhere go on, pause by plan, or stand.
    seen = f"{JOB_JOIN} {select(recorded.PROGRESS_AGE)}"
    stands = f"{JOB_JOIN} ({_stands(rules)} unless {has_paused(windows)})"
    return by(
        "group",
        f"{silent(windows.live)} and {stands}\n"
        f"or ({silent(windows.cover(_RESTART_SECONDS))} unless {seen} unless {is_ready})\n"
        # A node that still answers is not gone, whatever an API server says of it.
        f"or ({not_ready} and {MACHINE_JOIN} {silent(windows.live)})",
        *NODE_LABELS,
    )


def _stands(rules: Parameters) -> str:
    """Jobs without progress for longer than a step takes."""
    mean = f"last_over_time({select(recorded.STEP_MEAN)}[{_MEMORY}])"
    age = select(recorded.PROGRESS_AGE)
    least = least_seconds(rules)
    return f"({age} > {least} unless {JOB_JOIN} {age} < {JOB_JOIN} {_LONG_STEPS:g} * {mean})"


def least_seconds(rules: Parameters) -> int:
    """The age that the newest word of a rank that moves may have: a scrape and a half."""
    return max(rules.limits.standing.seconds, 3 * rules.windows.scrape_seconds // 2)


def _job_loss(rules: Parameters) -> str:
    gpus = by("max", select(recorded.JOB_SIZE), *JOB_LABELS)
    stands = f"{JOB_JOIN} ({select(recorded.STANDING)} unless {has_paused(rules.windows)})"
    # Gone altogether: a job of which ranks are seen elsewhere stands, or goes on.
    gone = f"{JOB_JOIN} ({select(recorded.GONE)} unless {JOB_JOIN} {select(recorded.PROGRESS_AGE)})"
    late = by("max", select(recorded.LATENESS_RATIO), *JOB_LABELS)
    throughput = f"last_over_time({select(recorded.SLICE_RATIO, _THROUGHPUT)}[2m])"
    slower = f"(1 - {by('max', throughput, *JOB_LABELS)})"
    of = 'label_replace({}, "of", "{}", "", "")'.format
    shares = f"{of(late, 'late')} or {of(slower, 'slow')}"
    share = f"clamp({by('max', shares, *JOB_LABELS)}, 0, 1)"
    return (
        f"({gpus} and {stands})\nor\n({gpus} and {gone})\nor\n"
        f"{gpus} * {JOB_JOIN} {share}\nor\n0 * {gpus}"
    )


_THROUGHPUT = eq(SLO, "throughput")
_PLACE = (CLUSTER, foreign.ALERT_CAUSE)


def _shared_loss(rules: Parameters) -> str:
    """What jobs lose to a cause that stands; a job that lost long before loses to its own."""
    losses, windows = rules.limits.losses, rules.windows
    lost = f"({recent(recorded.JOB_LOSS, windows)} > {losses.job_gpus:g})"
    earlier = f"{select(recorded.JOB_LOSS)}[{_RECENT}] offset {windows.long}"
    own = f"min_over_time({earlier}) > {losses.job_gpus:g}"
    counted = by("group", recent(recorded.SHARED_LOSS, windows), *JOB_LABELS)
    others = f"({lost} unless {JOB_JOIN} ({own} unless {JOB_JOIN} {counted}))"
    return f"{explained_jobs(losses)} * {JOB_JOIN} group_left () {others}"


def _cluster_loss(rules: Parameters) -> str:
    losses, jobs = rules.limits.losses, select(recorded.SHARED_LOSS)
    enough = by("sum", jobs, *_PLACE) + f" >= {losses.cluster_gpus:g}"
    several = by("count", jobs, *_PLACE) + f" >= {losses.cluster_jobs}"
    return f"{jobs}\nand on ({names(*_PLACE)}) ({enough})\nand on ({names(*_PLACE)}) ({several})"


_MINUTE = 60
_RECENT = "10m"
_DURABLE = select(recorded.LAST_DURABLE)
_ATTEMPT = by("max", select(training.ATTEMPT_NUMBER), *JOB_LABELS)
_BEFORE = f"[{_MEMORY}] offset {_MINUTE}s"
_WAS_DURABLE = f"last_over_time({_DURABLE}{_BEFORE})"
_WAS_ATTEMPT = by("max", f"last_over_time({select(training.ATTEMPT_NUMBER)}{_BEFORE})", *JOB_LABELS)
_WRITTEN = (
    f"({_DURABLE} > {JOB_JOIN} {_WAS_DURABLE} or {_DURABLE} unless {JOB_JOIN} {_WAS_DURABLE})"
)
"""Jobs whose newest durable checkpoint is newer than a minute ago."""
_RESTARTED = f"({_ATTEMPT} != {JOB_JOIN} {_WAS_ATTEMPT})"
_SEEN = f"and {JOB_JOIN} {_ATTEMPT}"


def _add_risk(rules: Parameters) -> str:
    """What was at risk a minute ago and what was done since; nothing of before a checkpoint."""
    working = rate(training.GOODPUT_SECONDS, rules.windows.long, eq(GOODPUT, "productive"))
    done = f"{_MINUTE} * {by('sum', working, *JOB_LABELS)}"
    before = f"last_over_time({select(recorded.WORK_AT_RISK)}[{_RECENT}])"
    earlier = f"({before} unless {JOB_JOIN} ({_WRITTEN} or {_RESTARTED}))"
    return f"({earlier} + {JOB_JOIN} {done}\nor\n{earlier}\nor\n{done})\n{_SEEN}"


def _usual(_: Parameters) -> str:
    """The most that a checkpoint saved; of the first one the sign says that it stands alone.

    A job that is resumed, or seen only now, may be in the middle of an interval.
    """
    usual = f"last_over_time({select(recorded.USUAL_AT_RISK)}[{_RECENT}])"
    was_at_risk = f"last_over_time({select(recorded.WORK_AT_RISK)}[{_RECENT}] offset {_MINUTE}s)"
    saved = f"({was_at_risk} and {JOB_JOIN} {_WRITTEN} unless {JOB_JOIN} {_RESTARTED})"
    still_usual = f"({usual} unless {JOB_JOIN} {_RESTARTED})"
    most = f"{saved} > {JOB_JOIN} abs({still_usual})\nor\nabs({still_usual}) and {JOB_JOIN} {saved}"
    return f"({most}\nor\n{still_usual}\nor\n-1 * {saved})\n{_SEEN}"


_KEPT, _STEPS_KEPT = "1d", "6h"


def _net_attempt(_: Parameters) -> str:
    """The attempt in which a job came further than in all before it, by more than its time-out.

    The farthest step is that of two time-outs ago: an attempt that goes on leaves it behind, one
    that does again what was done never reaches it, and one that ends a moment later than the last
    has gained nothing.
    """
    attempt, step = _ATTEMPT, select(recorded.JOB_STEP)
    before = f"last_over_time({select(recorded.NET_ATTEMPT)}[{_KEPT}])"
    past = f"[{_STEPS_KEPT}] offset {round(2 * HANG_TIMEOUT_SECONDS)}s"
    farthest = f"max_over_time({step}{past})"
    mean = f"last_over_time({select(recorded.STEP_MEAN)}[{_MEMORY}])"
    gained = f"({step} - {JOB_JOIN} {farthest}) * {JOB_JOIN} {mean} > {HANG_TIMEOUT_SECONDS:g}"
    return (
        f"{attempt} <= {JOB_JOIN} {before}\nor\n{attempt} and {JOB_JOIN} ({gained})\nor\n"
        f"{before} and {JOB_JOIN} {attempt}\nor\n{attempt}"
    )


EXPRESSIONS: Expressions = {
    recorded.CARRIED: _carried,
    recorded.GONE: _gone,
    recorded.JOB_LOSS: _job_loss,
    recorded.NET_ATTEMPT: _net_attempt,
    recorded.HIT: lambda rules: hit_nodes(rules.windows, rules.limits.losses),
    recorded.SHARED_LOSS: _shared_loss,
    recorded.CLUSTER_LOSS: _cluster_loss,
    recorded.USUAL_AT_RISK: _usual,
    recorded.WORK_AT_RISK: _add_risk,
}
